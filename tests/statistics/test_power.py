"""Power and plans: exact enumeration against simulation, the pilot's sentences, monotone searches."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from agentrl.statistics.paired import mcnemar_exact
from agentrl.statistics.power import (
    Design,
    Spread,
    assumed_spread,
    false_alarms,
    mcnemar_items,
    mcnemar_power,
    needed,
    observed_spread,
    sentences,
    smallest_mcnemar_gain,
    smallest_size,
    smallest_t_gain,
    t_power,
)
from agentrl.statistics.scores import StatisticsError, seed_differences
from agentrl.statistics.two_way import two_way_mean
from agentrl.statistics.variance import anova

pytestmark = pytest.mark.filterwarnings("error")
unhurried = settings(deadline=None, max_examples=40)


class TestMcnemar:
    @pytest.mark.parametrize(
        ("n", "gain", "discordance", "alpha"),
        [(12, 0.3, 0.5, 0.05), (20, 0.1, 0.1, 0.05), (9, -0.1, 0.4, 0.2), (7, 0.5, 1, 0.05)],
    )
    def test_is_the_sum_over_all_outcomes(
        self, n: int, gain: float, discordance: float, alpha: float
    ) -> None:
        win, loss = (discordance + gain) / 2, (discordance - gain) / 2
        expected = sum(
            stats.multinomial.pmf([wins, losses, n - wins - losses], n, [win, loss, 1 - win - loss])
            for wins in range(n + 1)
            for losses in range(n + 1 - wins)
            if wins > losses and mcnemar_exact(wins, losses) <= alpha
        )
        assert mcnemar_power(n, gain, discordance, alpha) == pytest.approx(expected)

    def test_critical_count_at_equality_is_significant(self) -> None:
        assert mcnemar_power(6, 1.0, 1.0, alpha=0.03125) == pytest.approx(1)
        assert mcnemar_power(6, 1.0, 1.0, alpha=0.03) == 0.0

    def test_pilot_needs_six_wins(self) -> None:
        gain = smallest_mcnemar_gain(32, 0.0)
        assert gain == pytest.approx(0.2359)
        assert stats.binom.sf(5, 32, gain) >= 0.8 > stats.binom.sf(5, 32, gain - 1e-4)

    def test_too_few_items(self) -> None:
        assert smallest_mcnemar_gain(5, 0.2) is None
        assert mcnemar_power(5, 1.0, 1.0) == 0.0

    @pytest.mark.parametrize(("gain", "discordance"), [(0.1, 0.2), (0.05, 0.1), (0.3, 0.1)])
    def test_items(self, gain: float, discordance: float) -> None:
        items, share = mcnemar_items(gain, discordance), max(gain, discordance)
        assert mcnemar_power(items, gain, share) >= 0.8 > mcnemar_power(items - 1, gain, share)
        normal = (
            (1.96 * math.sqrt(share) + 0.8416 * math.sqrt(share - gain**2)) / gain
        ) ** 2  # Connor 1987
        assert 0.9 * normal <= items <= 1.3 * normal + 6

    @unhurried
    @given(st.integers(1, 200), st.floats(0, 1), st.floats(0, 1))
    def test_false_finds_stay_below_half_of_alpha(
        self, n: int, discordance: float, share: float
    ) -> None:
        gain = -share * discordance
        assert mcnemar_power(n, gain, discordance) <= 0.025 + 1e-12

    @unhurried
    @given(st.integers(6, 200), st.floats(0.05, 1), st.floats(0, 1), st.floats(0, 1))
    def test_grows_with_the_gain(
        self, n: int, discordance: float, first: float, second: float
    ) -> None:
        low, high = sorted((first * discordance, second * discordance))
        assert mcnemar_power(n, low, discordance) <= mcnemar_power(n, high, discordance) + 1e-12

    @pytest.mark.parametrize(
        ("call", "fragment"),
        [
            (lambda: mcnemar_power(10, 0.3, 0.2), "discordance is 0.2"),
            (lambda: mcnemar_power(0, 0.1, 0.2), "n is 0"),
            (lambda: mcnemar_items(0.0, 0.2), "gain is 0.0"),
            (lambda: smallest_mcnemar_gain(10, 1.5), "discordance is 1.5"),
            (lambda: Design(0), "items is 0"),
            (lambda: Design(10, alpha=5), "alpha is 5"),
            (lambda: assumed_spread(0.2, -0.1), "seed_sd is -0.1"),
            (lambda: needed(Design(10), 0.0, Spread(0.1)), "gain is 0.0"),
        ],
    )
    def test_refusals(self, call: object, fragment: str) -> None:
        with pytest.raises(StatisticsError) as caught:
            call()
        assert fragment in str(caught.value)


class TestT:
    def test_one_seed_is_the_one_sample_t_test(self) -> None:
        design, spread = Design(40, trials=4), Spread(item=0.05, trial=0.2, stream=0.1)
        sd = math.sqrt(0.05 + 0.3 / 4)
        expected = stats.nct.sf(stats.t.ppf(0.975, 39), 39, 0.1 / (sd / math.sqrt(40)))
        assert t_power(design, 0.1, spread) == pytest.approx(expected)

    @pytest.mark.parametrize(
        ("design", "spread", "gain"),
        [
            (Design(100, 4, 5), Spread(0.03, 0.0025, 0.01, 0.1, 0.1), 0.08),
            (Design(250, 1, 10), Spread(0.05, 0.001, 0.0, 0.15, 0.15), 0.05),
            (Design(60, 2, 3), Spread(0.05, 0.0, 0.02, 0.1, 0.1), 0.12),
        ],
    )
    def test_agrees_with_simulated_studies(
        self, design: Design, spread: Spread, gain: float
    ) -> None:
        rng, studies = np.random.default_rng(0), 3000
        n, k, trials = design.items, design.seeds, design.trials
        item = math.sqrt(spread.item + spread.stream / trials) * rng.standard_normal(
            (studies, n, 1)
        )
        seed = math.sqrt(spread.seed) * rng.standard_normal((studies, 1, k))
        data = (
            gain
            + item
            + seed
            + math.sqrt(spread.interaction + spread.trial / trials)
            * rng.standard_normal((studies, n, k))
        )
        squares = anova(data)
        found = np.mean(
            data.mean(axis=(1, 2)) > stats.t.ppf(0.975, squares.df) * np.sqrt(squares.variance)
        )
        assert t_power(design, gain, spread) == pytest.approx(found, abs=0.06)

    def test_expected_squares_give_the_variance(self) -> None:
        spread = Spread(0.04, 0.01, 0.02, 0.2, 0.1)
        se, _ = spread.error(Design(50, 4, 3))
        assert se**2 == pytest.approx((0.04 + 0.1 / 4) / 50 + 0.01 / 3 + (0.02 + 0.2 / 4) / 150)

    def test_needed_changes_one_number(self) -> None:
        design, spread = Design(64, 2, 3), Spread(0.005, 0.0001, 0.005, 0.1, 0.1)
        found = needed(design, 0.1, spread)
        for name, size in found.items():
            enough, less = (
                {"items": 64, "trials": 2, "seeds": 3, name: value} for value in (size, size - 1)
            )
            assert t_power(Design(**enough), 0.1, spread) >= 0.8
            assert (
                size == {"items": 2, "trials": 1, "seeds": 2}[name]
                or t_power(Design(**less), 0.1, spread) < 0.8
            )

    def test_what_cannot_help_is_none(self) -> None:
        assert needed(Design(64, 2, 3), 0.05, Spread(0.0, seed=0.01))["items"] is None
        assert needed(Design(20, 2, 3), 0.05, Spread(0.2))["seeds"] is None
        assert needed(Design(20, 2, 3), 0.05, Spread(0.2))["trials"] is None

    def test_edges(self) -> None:
        assert t_power(Design(1), 0.5, Spread(0.1)) == 0.0
        assert t_power(Design(10), 0.01, Spread(0.0)) == 1.0
        assert smallest_t_gain(Design(2), Spread(1.0)) is None
        gain = smallest_t_gain(Design(250, 4, 5), assumed_spread(0.2, 0.03))
        assert t_power(Design(250, 4, 5), gain, assumed_spread(0.2, 0.03)) >= 0.8


class TestSpread:
    def test_assumed_spread_keeps_the_discordance_of_one_trial(self) -> None:
        for share in (0.0, 0.3, 1.0):
            se, df = assumed_spread(0.2, repeatable=share).error(Design(50))
            assert (se**2 * 50, df) == (pytest.approx(0.2), 49)

    @pytest.mark.parametrize("flips", [0.1, 0.5], ids=["shared streams", "streams of their own"])
    @pytest.mark.parametrize("seeds", [1, 6])
    def test_observed_spread_finds_what_made_the_data(self, seeds: int, flips: float) -> None:
        made, found = (
            Tied(flips),
            observed_spread(
                two_way_mean(Tied(flips).differences(4000, 3, seeds, np.random.default_rng(1)))
            ),
        )
        assert found.item == pytest.approx(made.item, abs=0.006)
        if seeds == 1:
            assert (found.trial, found.stream) == (
                pytest.approx(made.trial + made.stream, rel=0.05),
                0,
            )
        else:
            assert (found.trial, found.stream) == (
                pytest.approx(made.trial, rel=0.05),
                pytest.approx(made.stream, rel=0.1),
            )
        assert found.interaction == pytest.approx(0, abs=0.004)
        assert found.seed < 1e-4

    def test_observed_spread_foretells_more_trials(self) -> None:
        """Planned from studies with 2 trials, the standard error with 8 is that of studies with 8."""
        rng, made, items, seeds = np.random.default_rng(2), Tied(0.1), 60, 4
        spread = observed_spread(two_way_mean(made.differences(3000, 2, seeds, rng)))
        studies = (made.outcomes(items, 8, seeds, rng) for _ in range(400))
        means = [candidates.mean() - baseline.mean() for baseline, candidates in studies]
        assert spread.error(Design(items, 8, seeds))[0] == pytest.approx(np.std(means), rel=0.1)

    def test_equally_good_policies_share_half_of_the_trial_noise_however_closely_streams_tie_them(
        self,
    ) -> None:
        for flips in (0.05, 0.2, 0.5):
            made, rng = Tied(flips, help_most=0.0), np.random.default_rng(3)
            cube = made.differences(4000, 3, 5, rng)
            expected = assumed_spread(float((cube["difference"] != 0).mean()), repeatable=0.0)
            found = observed_spread(two_way_mean(cube))
            assert (found.trial, found.stream) == (
                pytest.approx(expected.trial, rel=0.05),
                pytest.approx(expected.stream, rel=0.1),
            )

    def test_one_trial_leaves_everything_where_it_is(self) -> None:
        baseline = pd.DataFrame({"item": ["a", "b", "c"], "trial": 0, "score": [0, 1, 0]})
        candidates = {1: baseline.assign(score=[1, 1, 0]), 2: baseline.assign(score=[1, 0, 0])}
        estimate = two_way_mean(seed_differences(baseline, candidates))
        found, parts = observed_spread(estimate), estimate.components
        assert (found.item, found.interaction, found.trial, found.stream) == (
            parts.item,
            parts.residual,
            0,
            0,
        )
        with pytest.raises(StatisticsError, match="one item only"):
            observed_spread(two_way_mean(seed_differences(baseline.head(1), {1: baseline.head(1)})))


class Tied:
    """Policies tied by streams: a stream holds success with probability 1/2, and each policy reads it wrongly with probability `flips`.

    So every policy succeeds half of the time, with variance v = 1/4, and two have covariance c = (1 - 2 flips)^2 / 4. A candidate also
    succeeds whatever it read with probability g, uniform in [0, help_most] per item. Given g, with a and a' two candidates, b the baseline:
    E(a - b) = g / 2, Cov(a, b) = (1 - g) c, Cov(a, a') = (1 - g)^2 c, Var(a) = (1 + g) (1 - g) / 4.
    """

    def __init__(self, flips: float, help_most: float = 0.4) -> None:
        self.flips, self.most = flips, help_most
        c, g = (1 - 2 * flips) ** 2 / 4, (np.arange(1000) + 0.5) / 1000 * help_most
        stream = (1 - g) ** 2 * c - 2 * (1 - g) * c + 0.25
        self.item, self.stream = help_most**2 / 12 / 4, stream.mean()
        self.trial = ((1 - g**2) / 4 + 0.25 - 2 * (1 - g) * c - stream).mean()

    def outcomes(
        self, items: int, trials: int, seeds: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """The baseline's (items, trials) and the candidates' (seeds, items, trials)."""
        held = rng.random((items, trials)) < 0.5
        read = held ^ (rng.random((seeds + 1, items, trials)) < self.flips)
        helped = rng.random((seeds, items, trials)) < self.most * rng.random((items, 1))
        return read[0], read[1:] | helped

    def differences(
        self, items: int, trials: int, seeds: int, rng: np.random.Generator
    ) -> pd.DataFrame:
        baseline, candidates = self.outcomes(items, trials, seeds, rng)
        return seed_differences(
            self._scores(baseline),
            {seed: self._scores(found) for seed, found in enumerate(candidates)},
        )

    @staticmethod
    def _scores(outcomes: np.ndarray) -> pd.DataFrame:
        items, trials = np.indices(outcomes.shape)
        return pd.DataFrame(
            {
                "item": [f"i{i:04d}" for i in items.ravel()],
                "trial": trials.ravel(),
                "score": outcomes.ravel().astype(int),
            }
        )


class TestWords:
    PILOT = (Design(32), 0.03125, 0.05, assumed_spread(0.05), 64, [3 / 64])

    def test_pilot(self) -> None:
        sees, takes, gate = sentences(*self.PILOT)
        assert sees.startswith(
            "32 items, 1 trial, 1 seed: significance takes at least 6 wins to 0 losses, and the smallest gain found "
        )
        assert sees.endswith("with 80% power is 23.6 points.")
        assert takes == "To find 3.1 points with 80% power (this design: 0%) it takes 423 items."
        assert gate == (
            "The zero-drop gate on 64 items fails an equally accurate model 38% of the time if 4.7% of the items differ "
            "under shared random streams."
        )

    def test_more_seeds_and_trials(self) -> None:
        sees, takes, _ = sentences(
            Design(250, 4, 5), 0.07, 0.2, assumed_spread(0.2, 0.03), 64, [0.1]
        )
        assert "250 items, 4 trials, 5 seeds: the smallest gain found with 80% power is" in sees
        assert "descriptive" not in sees
        assert "trials alone" in takes
        assert "the rest unchanged" in takes
        assert (
            "fewer than 5 seeds are descriptive only"
            in sentences(Design(250, 4, 3), 0.05, 0.2, assumed_spread(0.2), 64, [0.1])[0]
        )
        assert (
            "not for other seeds"
            in sentences(Design(250, 4, 1), 0.05, 0.2, assumed_spread(0.2), 64, [0.1])[0]
        )

    def test_hopeless_designs_say_so(self) -> None:
        assert (
            "too few for any outcome to be significant"
            in sentences(Design(4), 0.1, 0.2, assumed_spread(0.2), 64, [0.1])[0]
        )
        assert (
            "no one number is enough"
            in sentences(Design(4, 1, 2), 0.01, 0.2, Spread(0.2, 0.01), 64, [0.1])[1]
        )

    def test_gate_at_several_discordances(self) -> None:
        gate = sentences(Design(32), 0.1, 0.2, assumed_spread(0.2), 64, [0.1, 0.03])[2]
        assert gate.endswith(
            "fails an equally accurate model 34% of the time if 3.0% of the items differ under shared random streams, 42% if 10.0%."
        )

    def test_false_alarms(self) -> None:
        found = false_alarms(64, [0.0, 3 / 64])
        assert (found[0.0], found[3 / 64]) == (0.0, pytest.approx(0.38, abs=0.005))


@unhurried
@given(st.integers(1, 50), st.integers(1, 300), st.integers(0, 200))
def test_smallest_size_is_the_first(low: int, threshold: int, more: int) -> None:
    most = low + more
    expected = max(low, threshold) if threshold <= most else None
    assert smallest_size(lambda size: size >= threshold, low, most) == expected

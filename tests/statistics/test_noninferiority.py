"""Non-inferiority: Tango's bound against its likelihood, sizes by enumeration and simulation, items needed, edges."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from agentrl.statistics.noninferiority import (
    NO_EVENT,
    SKEWED,
    matched_items,
    matched_lower,
    non_inferiority,
    tango_items,
    tango_lower,
    tango_power,
    tango_z,
)
from agentrl.statistics.paired import Paired, paired
from agentrl.statistics.power import Spread
from agentrl.statistics.scores import StatisticsError, seed_differences
from agentrl.statistics.two_way import TwoWay, two_way_mean

pytestmark = pytest.mark.filterwarnings("error")
unhurried = settings(deadline=None, max_examples=60)
Z = float(stats.norm.ppf(0.975))


def table(scores: list[list[float]]) -> pd.DataFrame:
    rows = [
        (f"a{item:03d}", trial, score)
        for item, row in enumerate(scores)
        for trial, score in enumerate(row)
    ]
    return pd.DataFrame(rows, columns=["item", "trial", "score"])


def outcomes(n: int, wins: int, losses: int) -> Paired:
    ties = [[1]] * (n - wins - losses)
    return paired(
        table([[0]] * wins + [[1]] * losses + ties), table([[1]] * wins + [[0]] * losses + ties)
    )


def over_seeds(seeds: int, lost: list[int], items: int, trials: int = 1) -> TwoWay:
    """Seed s loses `lost[s]` of the items in all trials."""
    baseline = table([[1] * trials] * items)
    return two_way_mean(
        seed_differences(
            baseline,
            {
                s: table([[0 if i < lost[s] else 1] * trials for i in range(items)])
                for s in range(seeds)
            },
        )
    )


class TestTango:
    @pytest.mark.parametrize(
        ("wins", "losses", "n", "difference"),
        [(3, 5, 40, -0.1), (0, 4, 30, -0.02), (7, 2, 64, 0.3), (2, 2, 20, -0.4)],
    )
    def test_variance_uses_the_restricted_maximum_likelihood(
        self, wins: int, losses: int, n: int, difference: float
    ) -> None:
        def against(loss: float) -> float:
            win, tie = loss + difference, 1 - 2 * loss - difference
            return (
                -(wins * math.log(win) if wins else 0)
                - (losses * math.log(loss) if losses else 0)
                - (n - wins - losses) * math.log(tie)
            )

        low, high = max(0.0, -difference), (1 - difference) / 2
        loss = optimize.minimize_scalar(
            against, bounds=(low + 1e-9, high - 1e-9), method="bounded", options={"xatol": 1e-10}
        ).x
        expected = (wins - losses - n * difference) / math.sqrt(
            n * (2 * loss + difference * (1 - difference))
        )
        assert float(tango_z(wins, losses, n, difference)) == pytest.approx(expected, rel=1e-4)

    def test_at_no_difference_it_is_mcnemars_statistic(self) -> None:
        assert float(tango_z(9, 4, 50, 0.0)) == pytest.approx(5 / math.sqrt(13))

    def test_no_event(self) -> None:
        assert tango_lower(0, 0, 64, Z) == pytest.approx(-(Z**2) / (64 + Z**2))
        assert tango_lower(0, 64, 64, Z) == -1.0
        assert -1 < tango_lower(0, 63, 64, Z) < -63 / 64

    @unhurried
    @given(st.integers(1, 80), st.integers(0, 80), st.integers(0, 80))
    def test_bound_inverts_the_test(self, n: int, wins: int, losses: int) -> None:
        wins, losses = wins % (n + 1), losses % (n + 1)
        losses = min(losses, n - wins)
        lower = tango_lower(wins, losses, n, Z)
        assert -1 <= lower <= (wins - losses) / n
        if losses < n:
            assert float(tango_z(wins, losses, n, lower)) == pytest.approx(Z, abs=1e-6)

    @pytest.mark.parametrize("n", [64, 128, 250])
    @pytest.mark.parametrize("discordance", [0.05, 0.07, 0.1, 0.2])
    def test_a_model_at_the_margin_passes_2_5_percent_at_most(
        self, n: int, discordance: float
    ) -> None:
        assert tango_power(n, 0.05, discordance, difference=-0.05) <= 0.027

    def test_power_is_the_sum_over_all_outcomes(self) -> None:
        expected = sum(
            stats.multinomial.pmf([wins, losses, 30 - wins - losses], 30, [0.05, 0.15, 0.8])
            for wins in range(31)
            for losses in range(31 - wins)
            if tango_lower(wins, losses, 30, Z) > -0.3
        )
        assert tango_power(30, 0.3, 0.2, difference=-0.1) == pytest.approx(expected, abs=1e-8)

    def test_items(self) -> None:
        assert tango_items(0.05, 0.0) == math.ceil(Z**2 * 0.95 / 0.05) == 73
        for discordance in (3 / 64, 0.2):
            items = tango_items(0.05, discordance)
            assert (
                tango_power(items, 0.05, discordance)
                >= 0.8
                > tango_power(int(0.95 * items), 0.05, discordance)
            )


class TestVerdict:
    def test_pilot_cannot_pass_five_points_with_64_items(self) -> None:
        result = non_inferiority(outcomes(64, 1, 2), 0.05)
        assert (result.passed, result.method) == (False, "tango-score")
        assert result.lower == pytest.approx(-0.0939, abs=5e-5)
        assert result.items_needed == 195
        assert not non_inferiority(outcomes(64, 0, 0), 0.05).passed
        assert non_inferiority(outcomes(80, 0, 0), 0.05).passed
        assert NO_EVENT in non_inferiority(outcomes(64, 0, 0), 0.05).note

    def test_lower_confidence_and_wider_margin_are_easier(self) -> None:
        pair = outcomes(250, 8, 10)
        bounds = [non_inferiority(pair, 0.05, confidence).lower for confidence in (0.8, 0.9, 0.95)]
        assert bounds == sorted(bounds, reverse=True)
        assert non_inferiority(pair, 0.05).passed
        assert not non_inferiority(pair, 0.02).passed

    def test_matching_gives_back_single_trials(self) -> None:
        n, wins, losses = 200, 9, 14
        difference = (wins - losses) / n
        se = math.sqrt(((wins + losses) / n - difference**2) / n)
        assert matched_lower(difference, se, n, Z) == pytest.approx(tango_lower(wins, losses, n, Z))

    def test_several_trials(self) -> None:
        pair = paired(
            table([[1, 1], [1, 0], [0, 0], [1, 1]] * 30),
            table([[1, 1], [1, 1], [0, 0], [0, 1]] * 30),
        )
        result = non_inferiority(pair, 0.2)
        assert (result.method, result.passed) == ("matched-tango-score", True)
        t = stats.ttest_1samp(pair.differences, 0).confidence_interval(0.95).low
        assert result.lower < t

    def test_over_seeds(self) -> None:
        estimate = over_seeds(5, [4, 6, 5, 3, 7], 250)
        result = non_inferiority(estimate, 0.05)
        assert (result.method, result.passed) == ("matched-tango-score", True)
        assert result.lower < estimate.interval.low
        assert SKEWED in result.note
        assert result.items_needed <= 250
        assert not non_inferiority(over_seeds(5, [0, 0, 0, 0, 60], 250), 0.05).passed

    def test_seeds_that_differ_too_much_need_more_seeds(self) -> None:
        assert non_inferiority(over_seeds(5, [0, 0, 0, 0, 60], 250), 0.05).items_needed is None

    @pytest.mark.parametrize("seeds", [1, 5])
    def test_no_variation_still_has_a_bound(self, seeds: int) -> None:
        small, large = (
            non_inferiority(over_seeds(seeds, [0] * seeds, n, trials=4), 0.05) for n in (64, 250)
        )
        assert (small.passed, large.passed) == (False, True)
        assert small.lower == pytest.approx(-(Z**2) / (64 + Z**2))
        assert NO_EVENT in small.note

    def test_small_steady_losses_count_as_losses_without_wins(self) -> None:
        assert matched_lower(-0.02, 0.0, 100, Z) == pytest.approx(tango_lower(0, 2, 100, Z))
        assert matched_lower(0.02, 0.001, 100, Z) == pytest.approx(tango_lower(2, 0, 100, Z))

    def test_never_above_the_t_bound(self) -> None:
        rng = np.random.default_rng(1)
        for _ in range(300):
            n, df = int(rng.integers(5, 300)), float(rng.uniform(1, 100))
            difference, se, quantile = (
                rng.uniform(-1, 1),
                rng.uniform(0, 0.3),
                float(stats.t.ppf(0.975, df)),
            )
            assert (
                -1
                <= matched_lower(difference, se, n, quantile)
                <= max(difference - quantile * se, -1)
            )

    def test_one_item_and_total_loss(self) -> None:
        assert not non_inferiority(over_seeds(1, [0], 1), 0.5).passed
        assert non_inferiority(over_seeds(2, [1, 1], 1), 0.5).lower == -1.0
        assert non_inferiority(over_seeds(5, [250] * 5, 250), 0.05).lower == -1.0

    def test_refusals(self) -> None:
        with pytest.raises(StatisticsError, match="margin is 5"):
            non_inferiority(outcomes(64, 1, 2), 5)
        with pytest.raises(StatisticsError, match="confidence is 95"):
            non_inferiority(outcomes(64, 1, 2), 0.05, 95)

    def test_matched_items_are_near_the_exact_ones(self) -> None:
        for discordance in (0.03, 0.1, 0.2):
            assert matched_items(0.05, Spread(discordance), 1) == pytest.approx(
                tango_items(0.05, discordance), rel=0.02
            )

    @pytest.mark.parametrize("n", [64, 128])
    def test_lost_items_fool_a_t_bound_but_not_this_one(self, n: int) -> None:
        estimate = over_seeds(1, [1], n)
        rng = np.random.default_rng(0)
        passed, fooled = [], []
        for lost in rng.binomial(n, 0.05, size=1000):
            mean, se = -lost / n, math.sqrt(lost / n * (1 - lost / n) / (n - 1))
            study = replace(estimate, difference=mean, se=se or None, df=n - 1.0 if se else None)
            passed.append(
                matched_lower(study.difference, study.se or 0.0, n, stats.t.ppf(0.975, n - 1))
                > -0.05
            )
            fooled.append(mean - stats.t.ppf(0.975, n - 1) * se > -0.05)
        assert np.mean(passed) <= 0.03
        assert np.mean(fooled) > 0.035

"""Paired tests and intervals: the pilot's known answers, independent recomputation, and refused inputs."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from agentrl.statistics import paired as agent_statistics
from agentrl.statistics.paired import (
    COVERS,
    Paired,
    StatisticsError,
    item_bootstrap,
    mcnemar_exact,
    mean_distribution,
    paired,
    sign_flip,
    smallest_significant_wins,
    wilson,
    zero_drop_false_alarm,
    zero_drop_gate,
)

pytestmark = pytest.mark.filterwarnings("error")  # a division by zero must not pass as a warning
unhurried = settings(deadline=None)  # a busy machine is no failure
SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
MONTE_CARLO = 1_000_000


def table(scores: list[list[float]]) -> pd.DataFrame:
    """Return a score table from one list of trial scores per item; the items are a0, a1, ..."""
    rows = [
        (f"a{item}", trial, score)
        for item, row in enumerate(scores)
        for trial, score in enumerate(row)
    ]
    return pd.DataFrame(rows, columns=["item", "trial", "score"])


def outcomes(n: int, wins: int, losses: int) -> Paired:
    """Return a pair of single-trial 0/1 outcomes; ties alternate between both right and both wrong."""
    ties = [[index % 2] for index in range(n - wins - losses)]
    return paired(
        table([[0]] * wins + [[1]] * losses + ties), table([[1]] * wins + [[0]] * losses + ties)
    )


def differences_of(n: int, wins: int, losses: int) -> list[int]:
    """Return n item differences in {-1, 0, 1}."""
    return [1] * wins + [-1] * losses + [0] * (n - wins - losses)


lattice_values = st.sampled_from([1, 2, 3, 4, 7]).flatmap(
    lambda m: st.lists(st.integers(-m, m), min_size=1, max_size=24).map(
        lambda ks: [k / m for k in ks]
    )
)
confidences = st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.99])


class TestPilot:
    """The figures that the pilot's evidence fixes."""

    def test_one_win_in_32(self) -> None:
        pair = outcomes(32, wins=1, losses=0)
        interval = item_bootstrap(pair.differences)
        assert (pair.n, pair.trials, pair.wins, pair.losses, pair.ties) == (32, 1, 1, 0, 31)
        assert pair.difference == 1 / 32
        assert (interval.low, interval.high) == (0.0, 3 / 32)
        assert interval.method == "exact-percentile-bootstrap"
        assert mcnemar_exact(pair.wins, pair.losses) == 1.0

    def test_one_win_two_losses_in_64(self) -> None:
        pair = outcomes(64, wins=1, losses=2)
        interval = item_bootstrap(pair.differences)
        assert pair.difference == -1 / 64
        assert (interval.low, interval.high) == (-5 / 64, 2 / 64)

    def test_lower_end_in_64_is_not_minus_four_items(self) -> None:
        distribution = mean_distribution(differences_of(64, 1, 2))
        assert distribution.cdf(-5 / 64) == pytest.approx(0.0254, abs=5e-5)
        assert distribution.cdf(-6 / 64) < 0.025 < distribution.cdf(-5 / 64)

    def test_retention_gate(self) -> None:
        gate = zero_drop_gate(outcomes(64, wins=1, losses=2))
        assert not gate.passed
        assert gate.difference == -1 / 64
        assert gate.false_alarm_rate == pytest.approx(0.38, abs=0.005)
        assert zero_drop_false_alarm(64, 3 / 64) == pytest.approx(gate.false_alarm_rate, abs=1e-12)

    def test_smallest_significant_wins(self) -> None:
        assert smallest_significant_wins(32) == 6
        assert mcnemar_exact(6, 0) == pytest.approx(0.03125)
        assert smallest_significant_wins(32, alpha=0.03125) == 6
        assert smallest_significant_wins(32, alpha=0.03) == 7
        assert smallest_significant_wins(5) is None


class TestPaired:
    """Alignment and counting."""

    def test_row_order_and_trial_order_do_not_matter(self) -> None:
        before, after = table([[0, 1], [1, 1], [0, 0]]), table([[1, 1], [0, 1], [0, 0]])
        pair, shuffled = (
            paired(before, after),
            paired(before.sample(frac=1, random_state=1), after[::-1]),
        )
        assert pair.differences.to_dict() == {"a0": 0.5, "a1": -0.5, "a2": 0.0}
        pd.testing.assert_series_equal(pair.differences, shuffled.differences)
        assert (pair.wins, pair.losses, pair.ties, pair.trials) == (1, 1, 1, 2)
        assert (pair.baseline_mean, pair.candidate_mean, pair.difference) == (0.5, 0.5, 0.0)

    def test_equal_means_of_reordered_float_scores_tie(self) -> None:
        assert 0.1 + 0.2 + 0.3 != 0.3 + 0.2 + 0.1
        pair = paired(table([[0.1, 0.2, 0.3]]), table([[0.3, 0.2, 0.1]]))
        assert (pair.ties, pair.difference) == (1, 0.0)
        assert zero_drop_gate(pair).passed

    def test_bool_scores_and_one_seed_are_accepted(self) -> None:
        before, after = table([[False], [True]]), table([[True], [True]]).assign(seed=3)
        assert paired(before, after).wins == 1

    def test_swapping_the_policies_negates(self) -> None:
        before, after = table([[0, 1], [1, 1], [0, 0]]), table([[1, 1], [0, 0], [0, 1]])
        there, back = paired(before, after), paired(after, before)
        assert (there.wins, there.losses, there.difference) == (
            back.losses,
            back.wins,
            -back.difference,
        )


FULL = table([[0, 1], [1, 1], [0, 0]])
REFUSED = {
    "missing trial": (FULL.drop(index=3), ["candidate", "no row for 'a1' trial 1"]),
    "missing item": (FULL[FULL["item"] != "a2"], ["candidate: lacks the items 'a2'"]),
    "extra item": (
        pd.concat([FULL, FULL.tail(2).assign(item="new")]),
        ["baseline: lacks the items 'new'"],
    ),
    "fewer trials": (FULL[FULL["trial"] == 0], ["candidate: lacks the trials 1"]),
    "duplicate": (
        pd.concat([FULL, FULL.head(1)]),
        ["candidate", "more than one row for 'a0' trial 0"],
    ),
    "above one": (FULL.assign(score=[0, 1, 1, 2, 0, 0]), ["'a1' trial 1: 2", "[0, 1]"]),
    "negative": (FULL.assign(score=[0, 1, 1, 1, 0, -0.1]), ["'a2' trial 1: -0.1"]),
    "NaN": (FULL.assign(score=[np.nan, 1, 1, 1, 0, 0]), ["'a0' trial 0: nan"]),
    "infinite": (FULL.assign(score=[np.inf, 1, 1, 1, 0, 0]), ["'a0' trial 0: inf"]),
    "text score": (FULL.assign(score=list("011100")), ["score must be a number"]),
    "number as item": (
        FULL.assign(item=[1, 1, 2, 2, 3, 3]),
        ["be str", "1, 1, 2, 2, 3 and 1 more"],
    ),
    "empty item": (FULL.assign(item=["a0", None, "a1", "a1", "a2", "a2"]), ["item must be str"]),
    "fractional trial": (FULL.assign(trial=FULL["trial"] + 0.5), ["trial must be a whole number"]),
    "empty trial": (
        FULL.assign(trial=pd.array([0, 1, 0, None, 0, 1], "Int64")),
        ["Int64 or a gap"],
    ),
    "no column": (FULL.drop(columns="score"), ["no column score", "found item, trial"]),
    "no rows": (FULL.head(0), ["candidate: no rows"]),
    "two seeds": (
        pd.concat([FULL.assign(seed=1), FULL.assign(seed=2)]),
        ["seeds 1, 2 in one table"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_tables_name_the_fault(case: str) -> None:
    candidate, fragments = REFUSED[case]
    with pytest.raises(StatisticsError) as caught:
        paired(FULL, candidate)
    for fragment in fragments:
        assert fragment in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("call", "fragment"),
    [
        (lambda: item_bootstrap([]), "non-empty"),
        (lambda: item_bootstrap([[0.0], [1.0]]), "shape (2, 1)"),
        (lambda: item_bootstrap([0.0, 3.125]), "3.125"),
        (lambda: item_bootstrap([0.0, math.nan]), "nan"),
        (lambda: item_bootstrap([0, 1], confidence=95), "confidence is 95"),
        (lambda: item_bootstrap([0, 1 / math.pi], resamples=0), "resamples is 0"),
        (lambda: mean_distribution([0, 1], draws=0), "draws is 0"),
        (lambda: mcnemar_exact(-1, 2), "wins -1"),
        (lambda: wilson(3, 2), "successes is 3"),
        (lambda: wilson(0, 0), "n is 0"),
        (lambda: zero_drop_false_alarm(64, 3), "discordance is 3"),
        (lambda: zero_drop_false_alarm(0, 0.5), "n is 0"),
        (lambda: smallest_significant_wins(32, alpha=5), "alpha is 5"),
    ],
)
def test_refused_arguments_name_the_value(call: object, fragment: str) -> None:
    with pytest.raises(StatisticsError) as caught:
        call()
    assert fragment in str(caught.value)


def rational_distribution(values: list[Fraction]) -> dict[Fraction, Fraction]:
    """Return the bootstrap distribution of the mean in rational arithmetic, one convolution per draw."""
    sums = {Fraction(0): Fraction(1)}
    for _ in values:
        grown: dict[Fraction, Fraction] = {}
        for (total, weight), value in itertools.product(sums.items(), values):
            grown[total + value] = grown.get(total + value, Fraction(0)) + weight / len(values)
        sums = grown
    return {total / len(values): weight for total, weight in sums.items()}


class TestExactBootstrap:
    """The convolution against rational arithmetic, resampling and the binomial."""

    @pytest.mark.parametrize(
        ("numerators", "denominator"),
        [
            ([1, 0, 0, -1, 0, 0, 1, 1], 1),
            ([3, -2, 1, 0, 4, -4], 4),
            ([2, 5, -6], 7),
            ([3, 3, -3, 3], 4),
            ([999], 1000),
        ],
    )
    def test_matches_rational_arithmetic(self, numerators: list[int], denominator: int) -> None:
        expected = rational_distribution([Fraction(k, denominator) for k in numerators])
        found = mean_distribution([k / denominator for k in numerators])
        assert found.probability.sum() == pytest.approx(1, abs=1e-12)
        for point, weight in expected.items():
            at_point = found.probability[np.isclose(found.support, float(point), atol=1e-12)].sum()
            assert at_point == pytest.approx(float(weight), abs=1e-13)

    @pytest.mark.parametrize(
        "values",
        [
            differences_of(32, 1, 0),
            differences_of(64, 1, 2),
            differences_of(32, 9, 4),
            [0.25, 0.5, -0.25, 0, 0, 1, -0.75, 0.25, 0, 0.5, 0, 0, -0.25, 0, 0.75, 0],
            [1 / 3, -2 / 3, 0, 0, 1, 1 / 3, 0, -1 / 3],
        ],
        ids=["1-0-of-32", "1-2-of-64", "9-4-of-32", "four-trials", "three-trials"],
    )
    def test_matches_a_million_multinomial_resamples(self, values: list[float]) -> None:
        support, counts = np.unique(values, return_counts=True)
        rng = np.random.default_rng(20240607)
        draws = rng.multinomial(len(values), counts / len(values), size=MONTE_CARLO)
        means = draws @ support / len(values)
        exact = mean_distribution(values)
        for point in exact.support[:: max(1, len(exact.support) // 40)]:
            probability = exact.cdf(point)
            error = 5 * math.sqrt(max(probability * (1 - probability), 1e-6) / MONTE_CARLO)
            assert np.mean(means <= point + 1e-9) == pytest.approx(probability, abs=error)
        interval = item_bootstrap(values)
        for level, end in ((0.025, interval.low), (0.975, interval.high)):
            assert (
                np.mean(means < end - 1e-9) - 1e-3 <= level <= np.mean(means <= end + 1e-9) + 1e-3
            )

    @pytest.mark.parametrize(("n", "wins"), [(1, 1), (32, 1), (64, 31), (250, 200)])
    def test_wins_alone_are_binomial(self, n: int, wins: int) -> None:
        for confidence in (0.5, 0.9, 0.95, 0.99):
            interval = item_bootstrap(differences_of(n, wins, 0), confidence)
            expected = (
                stats.binom.ppf([(1 - confidence) / 2, (1 + confidence) / 2], n, wins / n) / n
            )
            assert [interval.low, interval.high] == pytest.approx(expected.tolist())

    def test_fine_lattice_stays_exact_and_accurate(self) -> None:
        values = np.linspace(-1, 1, 2001)[::8]
        exact = mean_distribution(values)
        variance = exact.probability @ (exact.support - values.mean()) ** 2
        assert item_bootstrap(values).method == "exact-percentile-bootstrap"
        assert variance == pytest.approx(values.var() / len(values), rel=1e-9)
        assert exact.probability.min() >= 0

    def test_level_hit_exactly_is_decided_by_the_rule_not_by_noise(self) -> None:
        assert mean_distribution([0, 1]).probability.tolist() == pytest.approx([0.25, 0.5, 0.25])
        interval, swapped = item_bootstrap([0, 1], 0.5), item_bootstrap([0, -1], 0.5)
        assert (interval.low, interval.high) == (0.0, 0.5)
        assert (swapped.low, swapped.high) == (
            -1.0,
            -0.5,
        )  # the mirror would be -0.5, 0: see item_bootstrap

    @pytest.mark.parametrize(("n", "wins"), [(10, 3), (12, 5), (31, 2), (64, 1)])
    def test_rounding_of_the_level_moves_no_end(self, n: int, wins: int) -> None:
        never = (1 - wins / n) ** n  # P(no win), equal to the lower level only up to rounding
        for confidence in np.nextafter(1 - 2 * never, [0, 1]):
            if 0 < confidence < 1:
                assert item_bootstrap(differences_of(n, wins, 0), confidence).low == 0.0


class TestSignFlip:
    """The paired permutation test over items."""

    @unhurried
    @given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 5))
    def test_one_trial_is_mcnemar(self, wins: int, losses: int, ties: int) -> None:
        assume(wins + losses + ties > 0)
        found = sign_flip(differences_of(wins + losses + ties, wins, losses))
        assert found.p == pytest.approx(mcnemar_exact(wins, losses), rel=1e-12)
        assert found.method == "exact-sign-flip"

    @pytest.mark.parametrize(
        "values",
        [
            [0.25, 0.5, -0.25, 0, 1, -0.75, 0.25, 0.5],
            [1 / 3, 2 / 3, -1 / 3, 1, 0],
            [-1.0, -0.5, -1.0],
        ],
    )
    def test_exact_route_agrees_with_scipy(self, values: list[float]) -> None:
        sums = (np.array(values) * 12).round()
        other = stats.permutation_test(
            (sums,), np.sum, permutation_type="samples", n_resamples=np.inf
        )
        assert sign_flip(values).p == pytest.approx(other.pvalue)

    @unhurried
    @given(lattice_values.filter(lambda values: len(values) <= 10))
    def test_counts_every_sign_vector(self, values: list[float]) -> None:
        sums = [
            abs(sum(s * v for s, v in zip(signs, values, strict=True)))
            for signs in itertools.product((-1, 1), repeat=len(values))
        ]
        assert sign_flip(values).p == pytest.approx(
            np.mean(np.array(sums) >= abs(sum(values)) - 1e-9)
        )

    def test_drawn_signs_agree_with_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        values = np.random.default_rng(3).integers(-3, 6, size=60) / 4
        values = np.clip(values, -1, 1)
        exact = sign_flip(values)
        monkeypatch.setattr(agent_statistics, "MAX_SIGN_STEPS", 0)
        drawn = sign_flip(values, seed=4, resamples=200_000)
        assert (exact.method, drawn.method, drawn.seed, drawn.resamples) == (
            "exact-sign-flip",
            "monte-carlo-sign-flip",
            4,
            200_000,
        )
        assert drawn.p == pytest.approx(exact.p, abs=5 * math.sqrt(exact.p / 200_000) + 1e-5)

    def test_off_the_lattice_signs_are_drawn_and_p_is_never_zero(self) -> None:
        values = np.full(40, 1 / math.pi)
        assert sign_flip(values, resamples=999).p == pytest.approx(1 / 1000)
        assert sign_flip(values, resamples=999) == sign_flip(values, resamples=999)

    def test_small_p_keeps_its_accuracy(self) -> None:
        assert sign_flip([0.5] * 200).p == pytest.approx(2.0**-199, rel=1e-12)

    def test_edges(self) -> None:
        assert sign_flip([0.0, 0.0]).p == 1.0
        assert sign_flip([0.5]).p == 1.0
        assert sign_flip([0.5, -0.5]).p == 1.0
        assert "Conditional on the training seeds" in sign_flip([0.5]).note
        with pytest.raises(StatisticsError, match="resamples is 0"):
            sign_flip([1 / math.pi], resamples=0)

    def test_is_exact_for_one_seed_of_four_trials(self) -> None:
        rng = np.random.default_rng(9)
        rates = rng.beta(2, 2, size=(2000, 24))
        studies = (rng.binomial(4, rates) - rng.binomial(4, rates)) / 4
        assert np.mean([sign_flip(study).p <= 0.05 for study in studies]) <= 0.06


class TestResampling:
    """The fallback where differences share no denominator."""

    VALUES = (math.pi / 10, -math.e / 10, 0.0, math.sqrt(2) / 3, 0.123456789)

    def test_records_its_seed_and_repeats(self) -> None:
        first, again = (item_bootstrap(self.VALUES, seed=7, resamples=5_000) for _ in range(2))
        assert first == again
        assert (first.method, first.seed, first.resamples) == (
            "resampled-percentile-bootstrap",
            7,
            5_000,
        )
        other = item_bootstrap(self.VALUES, seed=8, resamples=5_000)
        assert (other.low, other.high) != (first.low, first.high)

    def test_ends_are_resampled_means_by_the_exact_rule(self) -> None:
        means = np.sort(agent_statistics._resampled_means(np.asarray(self.VALUES), 0, 30))
        interval = item_bootstrap(self.VALUES, confidence=0.8, resamples=30)
        assert (interval.low, interval.high) == (means[2], means[26])  # the 3rd and the 27th of 30

    def test_agrees_with_the_exact_route(self, monkeypatch: pytest.MonkeyPatch) -> None:
        values = np.random.default_rng(5).integers(-4, 5, size=64) / 4
        exact = item_bootstrap(values)
        monkeypatch.setattr(agent_statistics, "mean_distribution", lambda values: None)
        resampled = item_bootstrap(values, resamples=100_000)
        assert resampled.method == "resampled-percentile-bootstrap"
        assert [resampled.low, resampled.high] == pytest.approx(
            [exact.low, exact.high], abs=1.5 / 256
        )

    def test_chunks_cover_every_resample(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(agent_statistics, "CHUNK_CELLS", 64)
        means = agent_statistics._resampled_means(np.asarray(self.VALUES), 0, 1_001)
        assert means.shape == (1_001,)
        assert len(np.unique(means)) > 100

    def test_agrees_with_scipy(self) -> None:
        found = item_bootstrap(self.VALUES, resamples=200_000)
        other = stats.bootstrap(
            (self.VALUES,),
            np.mean,
            n_resamples=200_000,
            method="percentile",
            rng=np.random.default_rng(1),
        ).confidence_interval
        assert [found.low, found.high] == pytest.approx([other.low, other.high], abs=0.01)


class TestProperties:
    """What must hold for every input."""

    @unhurried
    @given(lattice_values, confidences)
    def test_swapping_mirrors_the_interval(self, values: list[float], confidence: float) -> None:
        cumulative = np.cumsum(mean_distribution(values).probability)
        levels = np.array([(1 - confidence) / 2, (1 + confidence) / 2])
        assume(np.abs(cumulative[:, None] - levels).min() > 1e-9)
        there, back = (
            item_bootstrap(values, confidence),
            item_bootstrap(np.negative(values), confidence),
        )
        assert [there.low, there.high] == pytest.approx([-back.high, -back.low], abs=1e-12)

    @unhurried
    @given(lattice_values, confidences)
    def test_swapping_moves_an_end_one_point_at_most(
        self, values: list[float], confidence: float
    ) -> None:
        support = mean_distribution(values).support
        step = support[1] - support[0] if len(support) > 1 else 0.0
        there, back = (
            item_bootstrap(values, confidence),
            item_bootstrap(np.negative(values), confidence),
        )
        assert abs(there.low + back.high) <= step + 1e-12
        assert abs(there.high + back.low) <= step + 1e-12

    @unhurried
    @given(lattice_values)
    def test_intervals_are_nested_in_confidence(self, values: list[float]) -> None:
        intervals = [
            item_bootstrap(values, confidence) for confidence in (0.5, 0.8, 0.9, 0.95, 0.99)
        ]
        for inner, outer in itertools.pairwise(intervals):
            assert outer.low <= inner.low <= inner.high <= outer.high

    @unhurried
    @given(lattice_values, st.sampled_from([0.9, 0.95, 0.99]))
    def test_interval_holds_the_mean_and_stays_in_the_data(
        self, values: list[float], confidence: float
    ) -> None:
        interval = item_bootstrap(values, confidence)
        mean = float(np.mean(values))
        assert min(values) - 1e-12 <= interval.low <= mean + 1e-12
        assert mean - 1e-12 <= interval.high <= max(values) + 1e-12

    @unhurried
    @given(lattice_values)
    def test_bootstrap_keeps_mean_and_variance(self, values: list[float]) -> None:
        exact = mean_distribution(values)
        mean = exact.probability @ exact.support
        assert mean == pytest.approx(np.mean(values), abs=1e-10)
        assert exact.probability @ (exact.support - mean) ** 2 == pytest.approx(
            np.var(values) / len(values), abs=1e-10
        )

    @unhurried
    @given(lattice_values, st.randoms(use_true_random=False))
    def test_order_of_items_does_not_matter(self, values: list[float], random: object) -> None:
        shuffled = list(values)
        random.shuffle(shuffled)
        assert item_bootstrap(values) == item_bootstrap(shuffled)

    @unhurried
    @given(st.integers(0, 60), st.integers(0, 60))
    def test_mcnemar_is_symmetric_and_matches_its_formula(self, wins: int, losses: int) -> None:
        p = mcnemar_exact(wins, losses)
        tail = sum(math.comb(wins + losses, k) for k in range(min(wins, losses) + 1)) / 2 ** (
            wins + losses
        )
        assert p == pytest.approx(min(1.0, 2 * tail))
        assert mcnemar_exact(losses, wins) == pytest.approx(p)

    @unhurried
    @given(st.integers(1, 80), st.integers(0, 80), st.integers(0, 80))
    def test_gate_rate_is_the_formula_for_single_trials(
        self, n: int, wins: int, losses: int
    ) -> None:
        assume(wins + losses <= n)
        gate = zero_drop_gate(outcomes(n, wins, losses))
        assert gate.passed == (wins >= losses)
        assert gate.false_alarm_rate == pytest.approx(
            zero_drop_false_alarm(n, (wins + losses) / n), abs=1e-10
        )


class TestAgainstScipy:
    """Other routes to the same number."""

    @pytest.mark.parametrize(("wins", "losses"), [(1, 0), (6, 0), (5, 2), (3, 8)])
    def test_mcnemar_is_the_sign_flip_permutation_test(self, wins: int, losses: int) -> None:
        result = stats.permutation_test(
            (np.array(differences_of(wins + losses + 2, wins, losses)),),
            np.mean,
            permutation_type="samples",
            n_resamples=np.inf,
        )
        assert mcnemar_exact(wins, losses) == pytest.approx(result.pvalue)

    @pytest.mark.parametrize(("successes", "n"), [(0, 32), (7, 32), (64, 64)])
    def test_wilson_formula(self, successes: int, n: int) -> None:
        z, rate = stats.norm.ppf(0.975), successes / n
        centre = (rate + z**2 / (2 * n)) / (1 + z**2 / n)
        half = z / (1 + z**2 / n) * math.sqrt(rate * (1 - rate) / n + z**2 / (4 * n**2))
        interval = wilson(successes, n)
        assert [interval.low, interval.high] == pytest.approx(
            [centre - half, centre + half], abs=1e-12
        )
        assert (interval.method, interval.note) == ("wilson", COVERS["rate"])

    def test_false_alarm_by_simulation(self) -> None:
        rng = np.random.default_rng(11)
        draws = rng.multinomial(64, [1.5 / 64, 1.5 / 64, 61 / 64], size=MONTE_CARLO)
        assert np.mean(draws[:, 0] < draws[:, 1]) == pytest.approx(
            zero_drop_false_alarm(64, 3 / 64), abs=0.0025
        )


class TestEdges:
    """Degenerate inputs keep an honest note instead of an invented width."""

    @pytest.mark.parametrize(("wins", "losses", "end"), [(32, 0, 1.0), (0, 32, -1.0), (0, 0, 0.0)])
    def test_items_that_differ_alike_give_a_point_and_say_so(
        self, wins: int, losses: int, end: float
    ) -> None:
        interval = item_bootstrap(differences_of(32, wins, losses))
        assert (interval.low, interval.high) == (end, end)
        assert COVERS["items"] in interval.note
        assert "All 32 items differ alike" in interval.note

    def test_zero_variance_off_the_lattice(self) -> None:
        interval = item_bootstrap([1 / math.pi] * 8, resamples=100)
        assert (interval.low, interval.high) == pytest.approx((1 / math.pi, 1 / math.pi))
        assert "All 8 items differ alike" in interval.note

    def test_one_item(self) -> None:
        interval = item_bootstrap(paired(table([[0, 1]]), table([[1, 1]])).differences)
        assert (interval.low, interval.high) == (0.5, 0.5)
        assert "One item only" in interval.note

    def test_ordinary_interval_carries_the_plain_sentence(self) -> None:
        assert item_bootstrap([0, 1, -1]).note == COVERS["items"]
        assert "not training seeds" in COVERS["items"]

    def test_no_discordant_pair(self) -> None:
        gate = zero_drop_gate(outcomes(16, 0, 0))
        assert mcnemar_exact(0, 0) == 1.0
        assert (gate.passed, gate.false_alarm_rate) == (True, 0.0)
        assert "no promise" in gate.note

    def test_gate_weighs_sizes_with_several_trials(self) -> None:
        before = table([[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0]])
        pair = paired(before, table([[1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0]]))
        gate = zero_drop_gate(pair)
        assert (pair.wins, pair.losses, gate.passed) == (1, 2, True)
        signed = [Fraction(sign * k, 4) for k in (4, 1, 1) for sign in (-1, 1)]
        below = sum(1 for drawn in itertools.product(signed, repeat=3) if sum(drawn) < 0)
        assert gate.false_alarm_rate == pytest.approx(below / 6**3)

    def test_gate_off_the_lattice_gives_no_rate(self) -> None:
        gate = zero_drop_gate(paired(table([[0.1], [0.2]]), table([[1 / math.pi], [0.2]])))
        assert (gate.passed, gate.false_alarm_rate) == (True, None)
        assert "No false-alarm rate" in gate.note

    def test_false_alarm_limits(self) -> None:
        assert zero_drop_false_alarm(64, 0.0) == 0.0
        assert zero_drop_false_alarm(1, 1.0) == pytest.approx(0.5)
        assert zero_drop_false_alarm(2, 1.0) == pytest.approx(0.25)


def test_import_leaves_torch_out() -> None:
    code = "import sys, agentrl.statistics; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"

"""Two-way means: hand-computed components, agreement with scipy, simulated coverage, honest edges; crossed bootstrap; Holm."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from agentrl.statistics import two_way as inference
from agentrl.statistics.noninferiority import SKEWED
from agentrl.statistics.paired import item_bootstrap
from agentrl.statistics.scores import StatisticsError
from agentrl.statistics.two_way import (
    COVERS,
    INFERENTIAL_SEEDS,
    _crossed_means,
    crossed_bootstrap,
    holm,
    two_way_mean,
)
from agentrl.statistics.variance import SEED_FOLD, anova, satterthwaite, within_items

pytestmark = pytest.mark.filterwarnings("error")
unhurried = settings(deadline=None, max_examples=60)
ROOT = Path(__file__).resolve().parents[2]


def frame(cube: NDArray[np.float64]) -> pd.DataFrame:
    """Return differences from an item x seed x trial array; seeds are 10, 11, ..."""
    items, seeds, trials = np.indices(cube.shape)
    columns = {
        "item": [f"i{i:04d}" for i in items.ravel()],
        "seed": seeds.ravel() + 10,
        "trial": trials.ravel(),
    }
    return pd.DataFrame({**columns, "difference": cube.ravel()})


def cells(rows: list[list[float]]) -> pd.DataFrame:
    """Return differences with one trial from a list of items, each a list over seeds."""
    return frame(np.array(rows, dtype=np.float64)[:, :, None])


def random_cube(
    seed: int, items: int = 40, seeds: int = 4, trials: int = 3, seed_sd: float = 0.1
) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    cube = 0.1 * rng.standard_normal((items, 1, 1)) + seed_sd * rng.standard_normal((1, seeds, 1))
    return np.clip(
        cube
        + 0.05 * rng.standard_normal((items, seeds, 1))
        + 0.1 * rng.standard_normal((items, seeds, trials)),
        -1,
        1,
    )


class TestTwoWay:
    # Items 1..3 x seeds 1, 2, in tenths: (1, 3), (2, 6), (3, 3). Grand mean 3, item means 2, 4, 3, seed means 2, 4.
    # SS item = 2 (1 + 1 + 0) = 4, MS 2; SS seed = 3 (1 + 1) = 6, MS 6; SS total = 4 + 0 + 1 + 9 + 0 + 0 = 14, SS residual 4, MS 2.
    HAND = ((0.1, 0.3), (0.2, 0.6), (0.3, 0.3))

    def test_hand_computed_example(self) -> None:
        result = two_way_mean(cells(self.HAND))
        assert result.difference == pytest.approx(0.3)
        assert (result.items, result.seeds, result.trials) == (3, (10, 11), 1)
        parts = result.components
        assert (parts.item, parts.seed, parts.residual) == pytest.approx(
            (0, 0.04 / 3, 0.02), abs=1e-12
        )
        assert (parts.interaction, parts.trial) == (None, None)
        assert result.se == pytest.approx(math.sqrt(0.06 / 6))
        assert result.seed_means == pytest.approx((0.2, 0.4))
        assert result.between_seed_sd == pytest.approx(math.sqrt(0.02))
        assert result.noise_sd == pytest.approx(math.sqrt(0.02 / 3))
        assert result.within_seed_se == pytest.approx(math.sqrt((0.01 + 0.03) / 2 / 3))

    def test_mean_squares_and_degrees_of_freedom_by_hand(self) -> None:
        squares = anova(np.array(self.HAND) * 10)
        assert [float(x) for x in (squares.item, squares.seed, squares.residual)] == pytest.approx(
            [2, 6, 2]
        )
        assert satterthwaite(5.0, 6.0, 2.0, 10, 4) == pytest.approx(
            (5 + 15 - 2) ** 2 / (25 / 9 + 225 / 3 + 4 / 27)
        )
        assert SEED_FOLD == 2.5

    def test_negative_seed_component_stands_as_zero_and_leaves_the_item_error(self) -> None:
        rows = [
            [0.5, 0.4, 0.6],
            [0.1, 0.2, 0.0],
            [0.3, 0.3, 0.3],
            [0.9, 0.9, 0.9],
        ]  # seed means all alike
        result = two_way_mean(cells(rows))
        item_means = np.mean(rows, axis=1)
        assert result.components.seed == 0.0
        assert "seed" in result.components.truncated
        assert result.se == pytest.approx(item_means.std(ddof=1) / 2)
        assert "their component stands as 0" in result.note

    def test_negative_item_component_leaves_no_error_below_the_residual(self) -> None:
        squares = anova(np.array([[0.5, -0.5, 0.2], [-0.5, 0.5, 0.2], [0.0, 0.0, 0.2]]))
        assert squares.item < squares.residual
        assert squares.variance >= squares.residual / 9

    def test_one_seed_is_the_one_sample_t_test_of_item_means(self) -> None:
        cube = random_cube(1, seeds=1)
        result, expected = two_way_mean(frame(cube)), stats.ttest_1samp(cube.mean(axis=(1, 2)), 0)
        bounds = expected.confidence_interval(0.95)
        assert (result.p, result.df) == (pytest.approx(expected.pvalue), 39)
        assert (result.interval.low, result.interval.high) == pytest.approx(
            (bounds.low, bounds.high)
        )
        assert result.interval.method == "item-t"
        assert not result.inferential
        assert COVERS["one seed"] in result.note
        assert result.between_seed_sd is None

    def test_identical_seeds_are_the_item_test_too(self) -> None:
        one = random_cube(2, seeds=1)
        many, single = two_way_mean(frame(np.repeat(one, 6, axis=1))), two_way_mean(frame(one))
        assert (many.se, many.df) == pytest.approx((single.se, single.df))

    def test_seeds_alone_are_the_one_sample_t_test_of_seed_means(self) -> None:
        means = np.array([0.1, 0.3, 0.2, 0.35, 0.0])
        result, expected = two_way_mean(cells([means.tolist()] * 9)), stats.ttest_1samp(means, 0)
        assert (result.df, result.p) == (pytest.approx(4), pytest.approx(expected.pvalue))

    def test_trial_and_interaction_components(self) -> None:
        parts = two_way_mean(frame(random_cube(3))).components
        assert parts.trial == pytest.approx(0.01, rel=0.2)
        assert parts.stream < 0.002
        assert parts.residual == pytest.approx(parts.interaction + parts.trial / 3)
        noisy = (
            np.array([[0.5, -0.5], [-0.5, 0.5]]) + np.linspace(0, 0.4, 4)[:, None, None]
        )  # trials differ, no cell mean does
        assert two_way_mean(frame(noisy)).components.truncated == ("stream", "interaction")

    def test_trials_that_all_seeds_share_by_hand(self) -> None:
        crossing, alike = [[0, 1], [1, 0]], [[0, 1], [0, 1]]  # seeds x trials
        assert within_items(np.array([crossing], dtype=float)) == pytest.approx((1, -0.5))
        assert within_items(np.array([alike], dtype=float)) == pytest.approx((0, 0.5))
        assert within_items(np.array([crossing, alike], dtype=float)) == pytest.approx((0.5, 0))

    def test_what_all_seeds_share_of_a_trial_is_item_variance(self) -> None:
        cube = np.repeat(0.2 * np.random.default_rng(8).standard_normal((400, 1, 4)), 5, axis=1)
        few, many = (two_way_mean(frame(np.clip(cube[:, :k], -1, 1))) for k in (2, 5))
        assert few.se == pytest.approx(many.se)
        assert (
            many.components.stream,
            many.components.trial,
            many.components.interaction,
        ) == pytest.approx((0.04, 0, 0), abs=0.004)
        assert many.components.item == pytest.approx(0.04 / 4, rel=0.2)

    def test_components_are_unbiased(self) -> None:
        rng = np.random.default_rng(4)
        studies = (
            0.3 * rng.standard_normal((4000, 12, 1))
            + 0.2 * rng.standard_normal((4000, 1, 5))
            + 0.4 * rng.standard_normal((4000, 12, 5))
        )
        squares = anova(studies)
        found = [
            squares.residual.mean(),
            (squares.item - squares.residual).mean() / 5,
            (squares.seed - squares.residual).mean() / 12,
        ]
        assert found == pytest.approx([0.16, 0.09, 0.04], rel=0.04)
        assert squares.variance.mean() == pytest.approx(studies.mean(axis=(1, 2)).var(), rel=0.06)

    def test_shared_stream_noise_is_item_variance_and_more_seeds_do_not_average_it(self) -> None:
        rng = np.random.default_rng(5)
        noise = rng.choice(
            [-0.5, 0.5], size=(400, 1, 1)
        )  # only the baseline varies: every seed sees the same difference
        few, many = (two_way_mean(frame(np.repeat(noise, k, axis=1))) for k in (2, 10))
        assert few.se == pytest.approx(many.se)
        assert (few.components.item, few.components.residual) == pytest.approx(
            (noise.var(ddof=1), 0.0)
        )

    @pytest.mark.parametrize(("seed_sd", "seeds"), [(0.0, 5), (0.05, 5), (0.05, 10)])
    def test_interval_covers(self, seed_sd: float, seeds: int) -> None:
        rng = np.random.default_rng(6)
        shape = (4000, 60, seeds)
        studies = (
            0.3 * rng.standard_normal((4000, 60, 1))
            + seed_sd * rng.standard_normal((4000, 1, seeds))
            + 0.2 * rng.standard_normal(shape)
        )
        squares = anova(studies)
        half = stats.t.ppf(0.975, squares.df) * np.sqrt(squares.variance)
        assert 0.94 <= np.mean(np.abs(studies.mean(axis=(1, 2))) <= half) <= 0.97

    def test_refusals(self) -> None:
        with pytest.raises(StatisticsError, match="no row for 'i0000' seed 10 trial 1"):
            two_way_mean(frame(random_cube(7)).drop(index=1))
        with pytest.raises(StatisticsError, match="confidence is 95"):
            two_way_mean(cells([[0.1], [0.2]]), confidence=95)


class TestTwoWayProperties:
    @unhurried
    @given(st.integers(0, 10_000), st.integers(2, 6), st.integers(2, 5), st.integers(1, 3))
    def test_swapping_the_policies_mirrors(
        self, seed: int, items: int, seeds: int, trials: int
    ) -> None:
        cube = random_cube(seed, items, seeds, trials)
        there, back = two_way_mean(frame(cube)), two_way_mean(frame(-cube))
        assert (there.interval.low, there.interval.high) == pytest.approx(
            (-back.interval.high, -back.interval.low)
        )
        assert there.p == pytest.approx(back.p)

    @unhurried
    @given(st.integers(0, 10_000), st.integers(2, 30), st.integers(2, 8))
    def test_degrees_of_freedom_and_error_are_bounded(
        self, seed: int, items: int, seeds: int
    ) -> None:
        result = two_way_mean(frame(random_cube(seed, items, seeds, 1)))
        assert min(items, seeds) - 1 <= result.df <= items - 1
        assert result.se**2 >= result.components.residual / (items * seeds) - 1e-12
        assert (result.p < 0.05) == (not result.interval.low <= 0 <= result.interval.high)
        variance = (
            result.components.item / items
            + result.components.seed / seeds
            + result.components.residual / (items * seeds)
        )
        assert result.se == pytest.approx(math.sqrt(variance))

    @unhurried
    @given(st.integers(0, 10_000))
    def test_labels_and_order_do_not_matter(self, seed: int) -> None:
        cube = random_cube(seed, 8, 3, 2)
        rng = np.random.default_rng(seed)
        shuffled = cube[rng.permutation(8)][:, rng.permutation(3)][:, :, rng.permutation(2)]
        first, second = two_way_mean(frame(cube)), two_way_mean(frame(shuffled))
        assert (first.se, first.df, first.p) == pytest.approx((second.se, second.df, second.p))


class TestEdges:
    def test_no_item_differs(self) -> None:
        result = two_way_mean(cells([[0.0] * 5] * 8))
        assert (result.interval, result.se, result.df, result.p) == (None, None, None, 1.0)
        assert not result.inferential
        assert "All 8 items differ alike" in result.note

    @pytest.mark.parametrize("seeds", [1, 5])
    def test_all_wins_have_no_t_statement(self, seeds: int) -> None:
        result = two_way_mean(cells([[1.0] * seeds] * 8))
        assert (result.difference, result.interval, result.p) == (1.0, None, None)
        assert "that is no certainty" in result.note

    @pytest.mark.parametrize("seeds", [1, 5])
    def test_one_item(self, seeds: int) -> None:
        result = two_way_mean(cells([np.linspace(0, 0.4, seeds).tolist()]))
        assert (
            result.interval,
            result.p,
            result.components,
            result.within_seed_se,
            result.noise_sd,
        ) == (None,) * 5
        assert "One item only" in result.note

    def test_few_seeds_are_descriptive(self) -> None:
        verdicts = {k: two_way_mean(frame(random_cube(8, seeds=k))) for k in (1, 2, 4, 5)}
        assert {k: result.inferential for k, result in verdicts.items()} == {
            1: False,
            2: False,
            4: False,
            5: True,
        }
        assert [COVERS["few seeds"] in result.note for result in verdicts.values()] == [
            False,
            True,
            True,
            False,
        ]

    def test_record_is_plain_data(self) -> None:
        assert json.loads(json.dumps(asdict(two_way_mean(frame(random_cube(9))))))["seeds"] == [
            10,
            11,
            12,
            13,
        ]


class TestCrossedBootstrap:
    def test_repeats_from_its_seed_and_says_what_it_is(self) -> None:
        data = frame(random_cube(10))
        first, again, other = (
            crossed_bootstrap(data, seed=seed, resamples=500) for seed in (1, 1, 2)
        )
        assert first == again
        assert (first.low, first.high) != (other.low, other.high)
        assert (first.method, first.seed, first.resamples) == (
            "crossed-percentile-bootstrap",
            1,
            500,
        )
        assert first.note == COVERS["crossed"]

    def test_variance_is_that_of_resampling_both(self) -> None:
        means = random_cube(11, items=30, seeds=3).mean(axis=2)
        drawn = _crossed_means(means, np.random.default_rng(0), 40_000)
        squares, (n, k) = anova(means), means.shape
        item, seed = (
            float(squares.item) * (n - 1) / n / k,
            float(squares.seed) * (k - 1) / k / n,
        )  # population variances of the margins
        residual = float(squares.residual) * (n - 1) * (k - 1) / (n * k)
        assert drawn.mean() == pytest.approx(means.mean(), abs=0.002)
        assert drawn.var() == pytest.approx(item / n + seed / k + residual / (n * k), rel=0.03)

    def test_one_seed_is_the_item_bootstrap(self) -> None:
        values = np.random.default_rng(12).integers(-4, 5, size=(64, 1, 1)) / 4
        found, exact = (
            crossed_bootstrap(frame(values), resamples=40_000),
            item_bootstrap(values.ravel()),
        )
        assert (found.low, found.high) == pytest.approx((exact.low, exact.high), abs=2.5 / 256)
        assert COVERS["one seed"] in found.note

    def test_chunks_cover_every_resample(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(inference, "CHUNK_CELLS", 400)
        drawn = _crossed_means(random_cube(13).mean(axis=2), np.random.default_rng(0), 1_003)
        assert drawn.shape == (1_003,)
        assert len(np.unique(drawn)) > 900

    def test_is_too_narrow_with_three_seeds(self) -> None:
        rng = np.random.default_rng(14)
        hits = 0
        for _ in range(300):
            cube = (
                0.2 * rng.standard_normal((40, 1, 1)) + 0.15 * rng.standard_normal((1, 3, 1))
            ).clip(-1, 1)
            interval = crossed_bootstrap(frame(cube), resamples=300)
            hits += interval.low <= 0 <= interval.high
        assert hits / 300 < 0.9

    def test_refuses_no_resamples(self) -> None:
        with pytest.raises(StatisticsError, match="resamples is 0"):
            crossed_bootstrap(cells([[0.1], [0.2]]), resamples=0)


class TestHolm:
    def test_known_answer(self) -> None:
        assert holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}) == pytest.approx(
            {"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02}
        )

    def test_order_is_kept_and_nothing_is_fine(self) -> None:
        assert list(holm({"z": 0.5, "a": 0.1})) == ["z", "a"]
        assert holm({}) == {}

    @unhurried
    @given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.001, 0.5))
    def test_rejects_what_the_step_down_procedure_rejects(
        self, values: list[float], alpha: float
    ) -> None:
        adjusted = holm({str(index): p for index, p in enumerate(values)})
        rejected: set[int] = set()
        for rank, index in enumerate(sorted(range(len(values)), key=lambda i: values[i])):
            if (len(values) - rank) * values[index] > alpha:
                break
            rejected.add(index)
        assert {int(name) for name, p in adjusted.items() if p <= alpha} == rejected
        assert all(p <= adjusted[str(index)] <= 1 for index, p in enumerate(values))

    @pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
    def test_refuses_what_is_no_probability(self, p: float) -> None:
        with pytest.raises(StatisticsError, match="p values must lie in"):
            holm({"pilot": p})


def test_claims_are_those_of_the_recorded_simulations() -> None:
    """Of both ends of what a shared random stream can do: outcomes independent, and tied as closely as can be."""
    rows = []
    for name in ("coverage", "coverage-shared"):
        found = json.loads(
            (ROOT / "benchmarks" / "statistics" / f"{name}.json").read_text(encoding="utf-8")
        )["rows"]
        grid = {
            (row["seeds"], row["seed_sd"], row["trials"]) for row in found if row["items"] == 250
        }
        assert grid >= {
            (k, sd, trials) for k in (3, 5, 10) for sd in (0.0, 0.05, 0.1) for trials in (1, 4)
        }
        rows += found
    claimed = [row["t"] for row in rows if row["seeds"] >= INFERENTIAL_SEEDS]
    assert [round(100 * covered, 1) for covered in claimed if not 0.93 <= covered <= 0.97] == [92.9]
    for seeds, text in ((3, "92-97% with 3 seeds"), (2, "88-97% with 2")):
        assert text in COVERS["few seeds"]
        covered = [100 * row["t"] for row in rows if row["seeds"] == seeds and row["items"] == 250]
        assert f"{math.floor(min(covered))}-{round(max(covered))}%" == text.split()[0]
    for seeds, text in ((3, "74-94% with 3 seeds"), (5, "83-95% with 5")):
        assert text in COVERS["crossed"]
        covered = [
            100 * row["bootstrap"]
            for row in rows
            if row["seeds"] == seeds and row["seed_sd"] > 0 and row["items"] == 250
        ]
        assert f"{round(min(covered))}-{round(max(covered))}%" == text.split()[0]
    skewed = max(row["t_above"] for row in rows if row["seeds"] >= INFERENTIAL_SEEDS)
    assert f"in up to {100 * skewed:.0f}% of simulated" in SKEWED


@pytest.mark.parametrize("module", ["scores", "variance", "two_way", "power", "noninferiority"])
def test_import_leaves_torch_out(module: str) -> None:
    code = f"import sys, agentrl.statistics.{module}; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "scripts")}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"

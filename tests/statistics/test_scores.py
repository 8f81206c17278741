"""Score tables: what is refused by name, seeds beside one baseline, and pass^k."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.statistics.scores import StatisticsError, difference_cube, pass_hat_k, seed_differences

pytestmark = pytest.mark.filterwarnings("error")
unhurried = settings(deadline=None)


def table(scores: list[list[float]]) -> pd.DataFrame:
    rows = [
        (f"a{item}", trial, score)
        for item, row in enumerate(scores)
        for trial, score in enumerate(row)
    ]
    return pd.DataFrame(rows, columns=["item", "trial", "score"])


BASELINE = table([[0, 1], [1, 1], [0, 0]])
BETTER, EQUAL = table([[1, 1], [1, 1], [0, 1]]), table([[0, 1], [1, 1], [0, 0]])


class TestSeedDifferences:
    def test_every_trial_is_taken_against_the_same_trial_of_the_baseline(self) -> None:
        found = seed_differences(BASELINE, {7: BETTER, 3: EQUAL})
        assert found.columns.tolist() == ["item", "seed", "trial", "difference"]
        cube, seeds = difference_cube(found.sample(frac=1, random_state=0))
        assert seeds == [3, 7]
        assert cube.tolist() == [[[0, 0], [1, 0]], [[0, 0], [0, 0]], [[0, 0], [0, 1]]]

    def test_order_of_rows_does_not_matter(self) -> None:
        shuffled = seed_differences(
            BASELINE[::-1], {3: EQUAL.sample(frac=1, random_state=2), 7: BETTER[::-1]}
        )
        pd.testing.assert_frame_equal(shuffled, seed_differences(BASELINE, {7: BETTER, 3: EQUAL}))

    @pytest.mark.parametrize(
        ("candidates", "fragment"),
        [
            ({}, "no candidate seed"),
            ({1: BETTER, 2: BETTER.drop(index=3)}, "candidate seed 2: no row for 'a1' trial 1"),
            ({1: BETTER[BETTER["item"] != "a2"]}, "candidate seed 1: lacks the items 'a2'"),
            (
                {1: pd.concat([BETTER, BETTER.tail(2).assign(item="new")])},
                "baseline: lacks the items 'new'",
            ),
            ({1: BETTER[BETTER["trial"] == 0]}, "candidate seed 1: lacks the trials 1"),
            ({1: pd.concat([BETTER, BETTER.head(1)])}, "more than one row for 'a0' trial 0"),
        ],
    )
    def test_refusals_name_the_seed(
        self, candidates: dict[int, pd.DataFrame], fragment: str
    ) -> None:
        with pytest.raises(StatisticsError) as caught:
            seed_differences(BASELINE, candidates)
        assert fragment in str(caught.value)


FULL = seed_differences(BASELINE, {7: BETTER, 3: EQUAL})


@pytest.mark.parametrize(
    ("broken", "fragment"),
    [
        (FULL.drop(index=4), "no row for 'a2' seed 3 trial 0; rerun these, nothing is imputed"),
        (
            FULL[~((FULL["seed"] == 3) & (FULL["item"] == "a1"))],
            "no row for 'a1' seed 3 trial 0, 'a1' seed 3 trial 1",
        ),
        (pd.concat([FULL, FULL.tail(1)]), "more than one row for 'a2' seed 7 trial 1"),
        (FULL.drop(columns="seed"), "no column seed"),
        (FULL.assign(seed="3"), "seed must be a whole number"),
        (
            FULL.assign(difference=FULL["difference"] * 3),
            "difference is no number in [-1, 1] for 'a0' trial 0: 3.0",
        ),
        (FULL.assign(difference=np.nan), "no number in [-1, 1]"),
        (FULL.head(0), "no rows"),
    ],
)
def test_incomplete_differences_are_refused(broken: pd.DataFrame, fragment: str) -> None:
    with pytest.raises(StatisticsError) as caught:
        difference_cube(broken)
    assert fragment in str(caught.value)


class TestPassHatK:
    def test_known_values(self) -> None:
        found = pass_hat_k(table([[1, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0]]))
        assert found == pytest.approx({1: 2 / 4, 2: (3 / 6 + 1) / 4, 3: (1 / 4 + 1) / 4, 4: 1 / 4})

    @unhurried
    @given(st.lists(st.lists(st.integers(0, 1), min_size=4, max_size=4), min_size=1, max_size=6))
    def test_is_the_share_of_k_subsets_that_succeed(self, scores: list[list[int]]) -> None:
        found = pass_hat_k(table(scores))
        for k, value in found.items():
            subsets = [
                math.prod(chosen) for row in scores for chosen in itertools.combinations(row, k)
            ]
            assert value == pytest.approx(np.mean(subsets))
        assert list(found.values()) == sorted(found.values(), reverse=True)

    def test_is_unbiased(self) -> None:
        rng, rates = np.random.default_rng(0), np.array([0.2, 0.7, 0.9])
        outcomes = (rng.random((20_000, 3, 5)) < rates[:, None]).sum(axis=2)
        estimate = np.mean(
            [[math.comb(c, 3) / math.comb(5, 3) for c in study] for study in outcomes.tolist()]
        )
        assert estimate == pytest.approx(np.mean(rates**3), abs=0.005)
        assert pass_hat_k(table([[1] * c + [0] * (5 - c) for c in (1, 3, 5)]))[3] == pytest.approx(
            (0 + 1 / 10 + 1) / 3
        )

    def test_many_trials_do_not_overflow(self) -> None:
        assert pass_hat_k(table([[1] * 299 + [0]]))[150] == pytest.approx(0.5)

    def test_partial_scores_are_refused(self) -> None:
        with pytest.raises(StatisticsError, match=r"pass\^k: a score lies between 0 and 1"):
            pass_hat_k(table([[0.5, 1]]))

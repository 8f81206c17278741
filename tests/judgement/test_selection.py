"""Choice on dev: the best arm by a fixed rule, never a placebo, and test is not looked at."""

import json

import pandas as pd
import pytest

from agentrl.judgement.selection import SelectionError, choose_arm

Scores = dict[tuple[str, str], pd.DataFrame]


def table(right: int, items: int = 8) -> pd.DataFrame:
    return pd.DataFrame(
        [(f"dev-{n}", 0, int(n < right)) for n in range(items)], columns=["item", "trial", "score"]
    )


def dev(**successes: list[int]) -> Scores:
    """Baseline 1 of 8; per arm the successes of every seed."""
    scores = {("baseline", "agent-dev"): table(1)}
    return scores | {
        (f"{arm}/seed-{i}", "agent-dev"): table(n)
        for arm, found in successes.items()
        for i, n in enumerate(found)
    }


def test_the_highest_mean_over_seeds_is_chosen_and_everything_compared_is_recorded() -> None:
    found = choose_arm(dev(a=[8, 0], b=[5, 4], c=[3, 3]), [])
    assert found == {
        "measure": "agent-dev",
        "baseline": 1 / 8,
        "arms": {
            "a": {"seed_means": [1.0, 0.0], "mean": 0.5},
            "b": {"seed_means": [5 / 8, 4 / 8], "mean": 4.5 / 8},
            "c": {"seed_means": [3 / 8, 3 / 8], "mean": 3 / 8},
        },
        "placebos": [],
        "compared": 3,
        "chosen": "b",
    }
    assert json.loads(json.dumps(found)) == found


def test_of_equal_arms_the_first_by_name_is_chosen() -> None:
    assert choose_arm(dev(b=[4], a=[4]), [])["chosen"] == "a"


def test_a_placebo_is_recorded_and_never_chosen() -> None:
    found = choose_arm(dev(luck=[8], pilot=[2]), ["luck"])
    assert (found["chosen"], found["compared"], found["placebos"]) == ("pilot", 1, ["luck"])
    assert found["arms"]["luck"]["mean"] == 1


def test_test_scores_do_not_enter() -> None:
    scores = dev(a=[2], b=[3])
    seen = scores | {("a/seed-0", "agent-test"): table(8), ("b/seed-0", "agent-test"): table(0)}
    assert choose_arm(seen, []) == choose_arm(scores, [])


def test_nothing_to_choose_from_is_refused() -> None:
    with pytest.raises(
        SelectionError,
        match=r"no arm to choose from on agent-dev: found \['luck'\], placebos \['luck'\]",
    ):
        choose_arm(dev(luck=[8]), ["luck"])

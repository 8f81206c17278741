"""Verdict: every part of the rule can be missing alone and is then named; numbers follow from the scores."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

from agentrl.judgement.settings import Statistics
from agentrl.judgement.verdict import gained, judge, judged_on
from agentrl.statistics.two_way import holm

SETTINGS = Statistics(confidence=0.95, alpha=0.05, seed=42, margin=0.05, seeds_for_verdict=5)
ITEMS, KEPT = 60, 250
AGENT, RETENTION = "agent-test", "retention"
FIVE = (1, 2, 3, 4, 5)


def table(
    right: Sequence[bool] | np.ndarray, name: str = "item-{:03d}", trials: int = 1
) -> pd.DataFrame:
    """Every trial of an item has the same score."""
    rows = [
        (name.format(n), trial, int(value))
        for n, value in enumerate(right, 1)
        for trial in range(trials)
    ]
    return pd.DataFrame(rows, columns=["item", "trial", "score"])


def first(successes: int, items: int = ITEMS) -> np.ndarray:
    return np.arange(items) < successes


def study(
    seeds: Sequence[int] = FIVE,
    gain: int = 30,
    placebo: int | None = 0,
    lost: int = 0,
    **further: int,
) -> dict[str, Any]:
    """Baseline 12 of 60 and 200 of 250; every seed of an arm gains `gain` items, one more or less by seed.

    Args:
        seeds: of every arm.
        gain: of the arm `pilot` on the agent's items.
        placebo: gain of the arm `placebo`; None leaves it out.
        lost: items of retention that `pilot` loses.
        further: gains of further arms.
    """
    scores = {
        ("baseline", AGENT): table(first(12)),
        ("baseline", RETENTION): table(first(200, KEPT)),
    }
    gains = {"pilot": gain, **({} if placebo is None else {"placebo": placebo}), **further}
    candidates = {arm: [f"{arm}/seed-{seed}" for seed in seeds] for arm in gains}
    for arm, names in candidates.items():
        for index, name in enumerate(names):
            moved = gains[arm] + (index % 2 if gains[arm] else 0)
            scores[name, AGENT] = table(first(12 + moved))
            scores[name, RETENTION] = table(first(200 - (lost if arm == "pilot" else 0), KEPT))
    return judge(scores, ["placebo"], SETTINGS)


def missing(**changes: Any) -> list[str]:
    return study(**changes)["rule"]["pilot"]["missing"]


def test_the_rule_holds() -> None:
    found = study()
    assert found["rule"] == {"pilot": {"improved": True, "missing": []}}
    arm = found["arms"]["pilot"][AGENT]
    assert arm["difference"] == pytest.approx((30 + 2 / 5) / ITEMS)
    assert arm["two_way"]["seed_means"] == pytest.approx(
        [30 / 60, 31 / 60, 30 / 60, 31 / 60, 30 / 60]
    )
    assert arm["two_way"]["inferential"] is True
    assert arm["holm_p"] == arm["two_way"]["p"] < 0.05
    assert arm["item_p"] is None


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"seeds": (1, 2, 3)}, ["insufficient seeds: 3 of 5"]),
        ({"seeds": (1,)}, ["insufficient seeds: 1 of 5", "no p value over seeds: one seed"]),
        ({"gain": 0}, ["no gain: +0.0 points"]),
        ({"gain": -6}, ["no gain: -9.3 points"]),
        ({"placebo": None}, ["no placebo was run"]),
        ({"placebo": 20}, ["placebo placebo gained +34.0 points"]),
        ({"lost": 12}, ["retention bound not held: -8.2 points, needs above -5.0"]),
    ],
)
def test_every_missing_part_is_named_alone(changes: dict[str, Any], parts: list[str]) -> None:
    assert missing(**changes) == parts


def test_a_gain_within_chance_is_named_with_its_adjusted_p() -> None:
    (part,) = missing(gain=1)
    assert part.startswith("gain within chance: adjusted p 0.")
    assert part.endswith(", needs below 0.05")


def test_all_parts_can_be_missing_at_once() -> None:
    assert len(missing(seeds=(1,), gain=0, placebo=20, lost=12)) == 4


def test_holm_runs_over_arms_that_are_no_placebo() -> None:
    found = study(gain=3, other=5, third=30)
    raw = {arm: found["arms"][arm][AGENT]["two_way"]["p"] for arm in ("pilot", "other", "third")}
    assert {arm: found["arms"][arm][AGENT]["holm_p"] for arm in raw} == holm(raw)
    assert found["arms"]["placebo"][AGENT]["holm_p"] is None
    assert set(found["rule"]) == set(raw)


def test_one_seed_is_judged_over_items_only_and_says_so() -> None:
    arm = study(seeds=(7,), gain=8)["arms"]["pilot"][AGENT]
    assert (arm["item_p"], arm["holm_p"]) == (2 * 0.5**8, None)
    assert arm["two_way"]["interval"]["method"] == "item-t"
    assert arm["two_way"]["note"].startswith(
        "One training seed: covers the choice of items with their trials only."
    )
    assert gained(arm, 0.05)


def test_a_placebo_of_one_seed_that_gained_over_items_is_named() -> None:
    assert missing(seeds=(1,), placebo=6)[-1] == "placebo placebo gained +10.0 points"


def test_a_gain_without_any_variation_counts_as_the_placebo_s_gain_but_not_as_the_arm_s() -> None:
    scores = {
        ("baseline", AGENT): table([False] * 4),
        ("baseline", RETENTION): table(first(200, KEPT)),
    }
    names = {arm: [f"{arm}/seed-{seed}" for seed in FIVE] for arm in ("pilot", "placebo")}
    for name in (name for found in names.values() for name in found):
        scores |= {(name, AGENT): table([True] * 4), (name, RETENTION): table(first(200, KEPT))}
    found = judge(scores, ["placebo"], SETTINGS)
    assert found["rule"]["pilot"]["missing"] == [
        "no p value over seeds: nothing varies",
        "placebo placebo gained +100.0 points",
    ]


def test_retention_stands_with_and_without_contradicted_items() -> None:
    right = first(40, 64)
    worse = right.copy()
    worse[[0, 53]] = False  # item 54 is contradicted, and wrong before as well
    scores = {
        ("baseline", RETENTION): table(right, "mgsm-de-{:03d}"),
        ("pilot/seed-1", RETENTION): table(worse, "mgsm-de-{:03d}"),
    }
    scores |= {(name, AGENT): table(first(4)) for name in ("baseline", "pilot/seed-1")}
    found = judge(scores, [], SETTINGS)["arms"]["pilot"][RETENTION]
    assert found["difference"] == pytest.approx(-1 / 64)
    assert found["zero_drop_gates"]["1"]["passed"] is False
    assert found["without_contradicted"]["left_out"] == 1
    assert found["without_contradicted"]["difference"] == pytest.approx(-1 / 63)
    assert found["non_inferiority"]["method"] == "tango-score"
    assert study()["arms"]["pilot"][RETENTION]["without_contradicted"] is None


def test_pass_hat_k_of_every_policy_up_to_the_trials() -> None:
    rows = [("a", 0, 1), ("a", 1, 0), ("b", 0, 1), ("b", 1, 1)]
    agent = pd.DataFrame(rows, columns=["item", "trial", "score"])
    scores = {(name, AGENT): agent for name in ("baseline", "pilot/seed-1")}
    found = judge(scores, [], SETTINGS)
    assert found["pass_hat_k"] == {
        name: {AGENT: {"1": 0.75, "2": 0.5}} for name in ("baseline", "pilot/seed-1")
    }
    assert "retention was not evaluated" in found["rule"]["pilot"]["missing"]


def test_several_trials_of_one_seed_are_tested_by_sign_flips() -> None:
    scores = {
        ("baseline", AGENT): table(first(4), trials=2),
        ("pilot/seed-1", AGENT): table(first(10), trials=2),
    }
    found = judge(scores, [], SETTINGS)["arms"]["pilot"][AGENT]
    assert (found["trials"], found["item_p"]) == (2, pytest.approx(2 / 2**6))


def test_arms_that_a_choice_passed_over_are_not_judged_and_the_placebo_is_watched_on_dev() -> None:
    dev = "agent-dev"
    scores = {("baseline", m): table(first(12)) for m in (dev, AGENT)} | {
        ("baseline", RETENTION): table(first(200, KEPT))
    }
    for arm, gain in {"pilot": 30, "other": 20, "placebo": 0}.items():
        for index, seed in enumerate(FIVE):
            name = f"{arm}/seed-{seed}"
            scores |= {
                (name, dev): table(first(12 + gain + index % 2)),
                (name, RETENTION): table(first(200, KEPT)),
            }
            if arm == "pilot":
                scores[name, AGENT] = table(first(12 + gain + index % 2))
    found = judge(scores, ["placebo"], SETTINGS)
    assert (found["judged_on"], found["placebos"]) == (AGENT, {"placebo": dev})
    assert found["rule"] == {"pilot": {"improved": True, "missing": []}}
    assert sorted(found["arms"]["other"]) == [dev, RETENTION]
    pilot = found["arms"]["pilot"][AGENT]
    assert pilot["holm_p"] == pilot["two_way"]["p"], "one arm is judged, so nothing is corrected"
    assert found["arms"]["pilot"][dev]["holm_p"] > found["arms"]["pilot"][dev]["two_way"]["p"], (
        "on dev two arms are compared"
    )


def test_test_is_judged_where_it_was_evaluated() -> None:
    assert judged_on(["agent-dev", "agent-test", "retention"]) == "agent-test"
    assert judged_on(["agent-dev", "retention"]) == "agent-dev"


def test_the_verdict_is_plain_data() -> None:
    found = json.loads(json.dumps(study(), allow_nan=False))
    assert found["judged_on"] == AGENT

"""Comparison: counts match the records, and two evaluations that differ in anything but the policy are refused by field."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.evidence.files import ManifestError, read_json, write_json
from agentrl.evidence.stage import hash_files
from agentrl.judgement.comparison import (
    ComparisonError,
    by_arm,
    compare,
    compare_study,
    composition,
    load,
    load_study,
)
from agentrl.judgement.settings import Statistics
from agentrl.rollout import trajectory
from agentrl.rollout.trajectory import Key, Segment, Trajectory
from agentrl.statistics.paired import StatisticsError
from agentrl.tasks.environment import Outcome

SETTINGS = Statistics(confidence=0.95, alpha=0.05, seed=42, margin=0.05, seeds_for_verdict=5)
Scores = Sequence[tuple[str, int, bool]]
"""Item, trial, success."""


def episode(policy: str, item: str, trial: int, strict: bool) -> Trajectory:
    """An episode whose parts short of strict success all succeed, so that only strict success can be what is counted."""
    outcome = Outcome(True, True, strict, 413, True, strict, 0, "answer")
    return Trajectory(
        Key(policy, 0, "dev", item, trial, 42),
        [Segment("prompt", [1])],
        [],
        outcome,
        "transformers",
    )


def write(root: Path, policy: str, measure: str, scores: Scores, **changes: Any) -> Path:
    """One evaluated policy."""
    folder = root / policy / measure
    folder.mkdir(parents=True, exist_ok=True)
    if measure == "retention":
        name = "answers.jsonl"
        rows = [
            {"item": item, "correct": right, "flexible_correct": not right}
            for item, _, right in scores
        ]
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        name = "episodes.jsonl"
        with open(folder / name, "w") as stream:
            trajectory.append(stream, [episode(policy, *score) for score in scores])
    manifest = {
        "version": 1, "stage": "evaluate", "policy": policy, "engine": "transformers", "config": {"decoding": {"temperature": 0.6}},
        "inputs": {"policy": policy, "freeze": "f" * 64, "tasks": "a" * 64}, "outputs": hash_files(folder, [name]),
    }  # fmt: skip
    write_json(folder / "manifest.json", manifest | changes)
    return folder


def scores(successes: int, items: int) -> Scores:
    return [(f"dev-{n:04d}", 0, n < successes) for n in range(items)]


def test_pilot_agent_counts(tmp_path: Path) -> None:
    """4/32 -> 5/32: +3.125 points, [0, +9.375], McNemar p = 1."""
    before, after = (
        load(write(tmp_path, p, "agent-dev", scores(n, 32)))
        for p, n in (("baseline", 4), ("pilot/seed-42", 5))
    )
    found = compare(before, after, SETTINGS)
    assert (found["items"], found["trials"], found["wins"], found["losses"], found["ties"]) == (
        32,
        1,
        1,
        0,
        31,
    )
    assert (found["baseline"], found["candidate"], found["difference"]) == (4 / 32, 5 / 32, 0.03125)
    assert (found["interval"]["low"], found["interval"]["high"]) == pytest.approx((0, 0.09375))
    assert found["mcnemar_p"] == 1
    assert "zero_drop_gate" not in found


def test_pilot_retention_counts(tmp_path: Path) -> None:
    """30/64 -> 29/64 with one win and two losses: exactly [-7.8125, +3.125], and the zero-drop gate fails."""
    right = {"baseline": {*range(30)}, "pilot/seed-42": {*range(28), 40}}
    before, after = (
        load(
            write(
                tmp_path,
                policy,
                "retention",
                [(f"mgsm-de-{n:03d}", 0, n in found) for n in range(64)],
            )
        )
        for policy, found in right.items()
    )
    found = compare(before, after, SETTINGS)
    assert (found["wins"], found["losses"], found["ties"], found["difference"]) == (
        1,
        2,
        61,
        -1 / 64,
    )
    assert (found["interval"]["low"], found["interval"]["high"]) == pytest.approx(
        (-0.078125, 0.03125)
    )
    assert found["zero_drop_gate"]["passed"] is False
    assert found["zero_drop_gate"]["false_alarm_rate"] == pytest.approx(0.38, abs=0.005)


def test_records_become_scores(tmp_path: Path) -> None:
    """Strict success for an agent, the protocol score for retention; nothing else of the record."""
    agent = load(
        write(
            tmp_path,
            "baseline",
            "agent-test",
            [("a", 0, True), ("a", 1, False), ("b", 0, False), ("b", 1, False)],
        )
    )
    assert (agent.policy, agent.measure) == ("baseline", "agent-test")
    assert agent.scores.to_dict("split")["data"] == [
        ["a", 0, 1],
        ["a", 1, 0],
        ["b", 0, 0],
        ["b", 1, 0],
    ]
    retention = load(write(tmp_path, "baseline", "retention", [("x", 0, True), ("y", 0, False)]))
    assert retention.scores.to_dict("split")["data"] == [["x", 0, 1], ["y", 0, 0]]


def test_trials_are_averaged_per_item_and_tested_by_sign_flips(tmp_path: Path) -> None:
    trials = [
        [("a", 0, True), ("a", 1, False), ("b", 0, False), ("b", 1, False)],
        [("b", 1, True), ("b", 0, True), ("a", 1, True), ("a", 0, False)],
    ]
    before, after = (
        load(write(tmp_path, p, "agent-dev", rows))
        for p, rows in zip(("baseline", "pilot/seed-1"), trials, strict=True)
    )
    found = compare(before, after, SETTINGS)
    assert (found["items"], found["trials"], found["wins"], found["losses"], found["ties"]) == (
        2,
        2,
        1,
        0,
        1,
    )
    assert (found["baseline"], found["candidate"], found["difference"], found["mcnemar_p"]) == (
        0.25,
        0.75,
        0.5,
        None,
    )
    assert (found["sign_flip"]["p"], found["sign_flip"]["method"]) == (1.0, "exact-sign-flip")
    assert "Conditional on the training seeds" in found["sign_flip"]["note"]


def test_result_is_plain_data(tmp_path: Path) -> None:
    before, after = (
        load(write(tmp_path, p, "retention", scores(1, 4))) for p in ("baseline", "pilot/seed-1")
    )
    found = compare(before, after, SETTINGS)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def parts(*rows: tuple[int, int]) -> pd.DataFrame:
    """Workflow and answer of one episode per item."""
    return pd.DataFrame(
        [(f"item-{n}", 0, *row) for n, row in enumerate(rows)],
        columns=["item", "trial", "workflow", "answer"],
    )


def test_a_change_consists_of_workflows_and_answers() -> None:
    """Every way to turn, each another number of times, and ways that turn nothing; the other table in another order."""
    won, lost = (1, 1), [(0, 1), (1, 0), (0, 0)]  # short of the workflow, of the answer, of both
    times = [short for n, short in enumerate(lost, 1) for _ in range(n)]
    before = parts(*times, *[won] * 13, (0, 0), (0, 1))
    after = parts(*[won] * len(times), *times, *times, won, (0, 1), (1, 0))
    assert composition(before, after.iloc[::-1]) == {
        "gained": {"workflow": 1, "answer": 2, "both": 3}, "lost": {"workflow": 2, "answer": 4, "both": 6},
    }  # fmt: skip


@given(st.lists(st.tuples(*[st.integers(0, 1)] * 4), min_size=1, max_size=12))
def test_gained_minus_lost_is_the_change_of_strict_success(rows: list[tuple[int, ...]]) -> None:
    found = composition(parts(*[row[:2] for row in rows]), parts(*[row[2:] for row in rows]))  # type: ignore[arg-type]
    assert sum(found["gained"].values()) == sum(not all(row[:2]) and all(row[2:]) for row in rows)
    assert sum(found["lost"].values()) == sum(all(row[:2]) and not all(row[2:]) for row in rows)


def test_a_comparison_says_what_its_change_consists_of(tmp_path: Path) -> None:
    """Recorded episodes here fail by their workflow only (`episode`)."""
    rows = {
        "baseline": [("a", 0, True), ("b", 0, False)],
        "pilot/seed-1": [("a", 0, False), ("b", 0, True)],
    }
    before, after = (
        load(write(tmp_path, policy, "agent-dev", found)) for policy, found in rows.items()
    )
    found = compare(before, after, SETTINGS)
    assert found["composition"] == {
        "gained": {"workflow": 1, "answer": 0, "both": 0},
        "lost": {"workflow": 1, "answer": 0, "both": 0},
    }
    assert (found["wins"], found["losses"]) == (1, 1)
    answers = (load(write(tmp_path, policy, "retention", found)) for policy, found in rows.items())
    assert "composition" not in compare(*answers, SETTINGS)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"stage": "evaluate_retention"}, "stage"),
        ({"engine": "vllm"}, "engine"),
        ({"config": {"decoding": {"temperature": 0.7}}}, "config"),
        ({"inputs": {"policy": "p", "freeze": "0" * 64, "tasks": "a" * 64}}, "inputs.freeze"),
        ({"inputs": {"policy": "p", "freeze": "f" * 64, "tasks": "0" * 64}}, "inputs.tasks"),
        ({"inputs": {"policy": "p", "freeze": "f" * 64}}, "inputs.tasks"),
    ],
)
def test_other_conditions_are_refused_by_field_and_values(
    tmp_path: Path, changes: dict[str, Any], field: str
) -> None:
    before = load(write(tmp_path, "baseline", "agent-dev", scores(1, 4)))
    after = load(write(tmp_path, "pilot/seed-1", "agent-dev", scores(1, 4), **changes))
    with pytest.raises(ComparisonError) as caught:
        compare(before, after, SETTINGS)
    message = str(caught.value)
    assert message.startswith(
        f"pilot/seed-1/agent-dev: {field} differs from the baseline's (baseline "
    )
    assert message.endswith("rerun both evaluations under one freeze")


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda rows: rows[:-1], "lacks the items 'dev-0003'"),
        (lambda rows: [*rows, rows[0]], "more than one row for 'dev-0000' trial 0"),
        (lambda rows: [*rows, ("dev-0000", 1, True)], "no row for 'dev-0001' trial 1"),
        (lambda rows: [], "no rows"),
    ],
)
def test_missing_and_doubled_episodes_are_refused(
    tmp_path: Path, side: int, spoil: Callable[[list], list], message: str
) -> None:
    rows = [list(scores(2, 4)), list(scores(2, 4))]
    rows[side] = spoil(rows[side])
    before, after = (
        load(write(tmp_path, p, "agent-dev", found))
        for p, found in zip(("baseline", "pilot/seed-1"), rows, strict=True)
    )
    with pytest.raises(StatisticsError, match=message):
        compare(before, after, SETTINGS)


def test_records_that_are_not_the_recorded_ones_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, "baseline", "agent-dev", scores(1, 4))
    path = folder / "episodes.jsonl"
    path.write_text(path.read_text().replace('"strict":false', '"strict":true', 1))
    with pytest.raises(
        ManifestError, match=f"{path}: changed since {folder / 'manifest.json'} recorded it"
    ):
        load(folder)


def test_a_study_compares_every_candidate_on_every_measure(tmp_path: Path) -> None:
    names = {"pilot": ["pilot/seed-1", "pilot/seed-2"], "placebo": ["placebo/seed-1"]}
    for measure in ("agent-dev", "retention"):
        for successes, policy in enumerate(["baseline", *names["pilot"], *names["placebo"]]):
            write(tmp_path, policy, measure, scores(successes, 8))
    found = compare_study(
        load_study(
            sorted(tmp_path.glob("*/**/agent-dev")) + sorted(tmp_path.glob("*/**/retention"))
        ),
        SETTINGS,
    )
    assert {
        arm: {name: sorted(measures) for name, measures in pairs.items()}
        for arm, pairs in found.items()
    } == {
        arm: {name: ["agent-dev", "retention"] for name in candidates}
        for arm, candidates in names.items()
    }
    assert [pair["agent-dev"]["wins"] for pairs in found.values() for pair in pairs.values()] == [
        1,
        2,
        3,
    ]


def test_one_candidate_of_another_freeze_stops_the_study(tmp_path: Path) -> None:
    for policy in ("baseline", "pilot/seed-1", "placebo/seed-1"):
        folder = write(tmp_path, policy, "agent-dev", scores(1, 4))
    manifest = read_json(folder / "manifest.json")
    write_json(
        folder / "manifest.json", manifest | {"inputs": manifest["inputs"] | {"freeze": "0" * 64}}
    )
    evaluations = load_study(tmp_path.glob("*/**/agent-dev"))
    assert len(evaluations) == 3
    with pytest.raises(ComparisonError, match=r"placebo/seed-1/agent-dev: inputs\.freeze differs"):
        compare_study(evaluations, SETTINGS)


def test_candidates_stand_by_arm_and_in_order_of_their_seeds() -> None:
    evaluated = [
        (name, "agent-dev") for name in ("pilot/seed-10", "baseline", "a/seed-3", "pilot/seed-9")
    ]
    assert by_arm(evaluated) == {"a": ["a/seed-3"], "pilot": ["pilot/seed-9", "pilot/seed-10"]}


def test_a_policy_is_compared_on_what_it_was_evaluated_on(tmp_path: Path) -> None:
    both = ("agent-dev", "agent-test")
    for policy, measures in {"baseline": both, "a/seed-1": both, "b/seed-1": both[:1]}.items():
        for measure in measures:
            write(tmp_path, policy, measure, scores(1, 4))
    found = compare_study(load_study(tmp_path.glob("*/**/agent-*")), SETTINGS)
    assert {name: sorted(measures) for arm in found.values() for name, measures in arm.items()} == {
        "a/seed-1": ["agent-dev", "agent-test"], "b/seed-1": ["agent-dev"],
    }  # fmt: skip

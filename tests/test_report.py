"""Report: sentences claim no more than their comparison shows, and nothing raw enters the summary."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from agentrl import statistics
from agentrl.config import Statistics
from agentrl.manifest import write_json, write_text
from agentrl.report import findings, points, probability, render, summarize
from agentrl.tasks import Task, write_tasks

ALPHA = 0.05
SETTINGS = Statistics(confidence=0.95, alpha=ALPHA, seed=42)
NO_PLACEBO = "No arm with random reward was run, so a gain cannot be told from mere training: no verdict."
Pairs = dict[str, dict[str, Any]]


def pair(wins: int, losses: int, items: int, before: int, trials: int = 1) -> dict[str, Any]:
    """A comparison as `compare` writes it, from counts."""
    difference = (wins - losses) / items
    differences = [1.0] * wins + [-1.0] * losses + [0.0] * (items - wins - losses)
    return {
        "items": items, "trials": trials, "baseline": before / items, "candidate": before / items + difference, "difference": difference,
        "wins": wins, "losses": losses, "ties": items - wins - losses,
        "interval": asdict(statistics.item_bootstrap(differences)),
        "mcnemar_p": statistics.mcnemar_exact(wins, losses) if trials == 1 else None,
    }  # fmt: skip


def kept(wins: int, losses: int, items: int = 64, before: int = 30) -> dict[str, Any]:
    """A retention comparison with its gate."""
    found = pair(wins, losses, items, before)
    alarm = statistics.zero_drop_false_alarm(items, (wins + losses) / items)
    return found | {"zero_drop_gate": {"passed": wins >= losses, "difference": found["difference"], "false_alarm_rate": alarm, "note": ""}}


def candidate(wins: int, losses: int, *, retention: dict[str, Any] | None = None, trials: int = 1) -> dict[str, Any]:
    """One candidate on 32 agent items from 4 successes, and its retention."""
    return {"agent-test": pair(wins, losses, 32, 4, trials), "retention": kept(0, 0) if retention is None else retention}


def told(pairs: Pairs, placebos: tuple[str, ...] = ("placebo/seed-1",)) -> list[str]:
    return findings(pairs, placebos, "agent-test", ALPHA)


def test_gain_with_a_quiet_placebo() -> None:
    assert told({"pilot/seed-1": candidate(8, 0), "placebo/seed-1": candidate(1, 1)}) == [
        "Placebo placebo/seed-1 shows no gain beyond chance, as it must (+0.0 points, 1 wins, 1 losses of 32, McNemar p = 1).",
        (
            "pilot/seed-1: agent success rose beyond chance of the items, for this one training run "
            "(+25.0 points, 8 wins, 0 losses of 32, McNemar p = 0.00781)."
        ),
        (
            "pilot/seed-1: retention held under the zero-drop gate (30 -> 30 of 64, +0.0 points; "
            "an equally accurate model fails this gate 0% of the time)."
        ),
        (
            "placebo/seed-1: retention held under the zero-drop gate (30 -> 30 of 64, +0.0 points; "
            "an equally accurate model fails this gate 0% of the time)."
        ),
    ]


def test_a_placebo_that_gained_forbids_every_verdict() -> None:
    found = told({"pilot/seed-1": candidate(9, 0), "other/seed-1": candidate(0, 0), "placebo/seed-1": candidate(6, 0)})
    assert found[0].startswith("Placebo placebo/seed-1 gained although its reward was random: no verdict on any arm (+18.8 points, 6 wins")
    assert "pilot/seed-1: agent success rose beyond chance of the items, but the placebo forbids a verdict (+28.1 points" in found[1]
    assert not any("for this one training run" in sentence for sentence in found)


def test_one_seed_of_the_placebo_is_enough_to_forbid() -> None:
    found = told(
        {"pilot/seed-1": candidate(9, 0), "placebo/seed-1": candidate(0, 0), "placebo/seed-2": candidate(7, 0)},
        ("placebo/seed-1", "placebo/seed-2"),
    )
    assert ["as it must" in found[0], "no verdict on any arm" in found[1], "the placebo forbids" in found[2]] == [True] * 3


def test_without_a_placebo_there_is_no_verdict() -> None:
    found = told({"pilot/seed-1": candidate(9, 0)}, ())
    assert found[0] == NO_PLACEBO
    assert found[1].startswith("pilot/seed-1: agent success rose beyond chance of the items, but without a placebo there is no verdict (")


@pytest.mark.parametrize(
    ("wins", "losses", "verdict"),
    [
        (5, 0, "did not change by more than these items can tell from chance"),
        (6, 0, "rose beyond chance of the items, for this one training run"),
        (0, 6, "fell beyond chance of the items"),
        (0, 5, "did not change by more than these items can tell from chance"),
        (0, 0, "did not change by more than these items can tell from chance"),
    ],
)
def test_verdict_turns_where_the_test_does(wins: int, losses: int, verdict: str) -> None:
    """32 items, one trial: 6 wins to 0 losses at least."""
    found = told({"pilot/seed-1": candidate(wins, losses), "placebo/seed-1": candidate(0, 0)})
    assert found[1].startswith(f"pilot/seed-1: agent success {verdict} (")


def test_a_placebo_that_fell_is_no_gain() -> None:
    assert "shows no gain beyond chance, as it must (-18.8 points" in told({"placebo/seed-1": candidate(0, 6)})[0]


def test_several_trials_have_no_test_and_claim_nothing() -> None:
    """Neither that the arm gained nor that the placebo did not."""
    found = told({"pilot/seed-1": candidate(20, 0, trials=4), "placebo/seed-1": candidate(20, 0, trials=4)})
    for sentence in found[:2]:
        assert "has no test yet for several trials per item; see the interval (+62.5 points, 20 wins, 0 losses of 32)." in sentence
    assert not any(word in " ".join(found[:2]) for word in ("rose", "gain", "must", "McNemar"))


@pytest.mark.parametrize(("gain", "placebos"), [(9, ("placebo/seed-1",)), (0, ("placebo/seed-1",)), (9, ())])
def test_a_drop_of_retention_is_always_reported(gain: int, placebos: tuple[str, ...]) -> None:
    pairs = {"pilot/seed-1": candidate(gain, 0, retention=kept(0, 1)), "placebo/seed-1": candidate(0, 0, retention=kept(2, 5))}
    found = told(pairs, placebos)
    assert "pilot/seed-1: retention REGRESSED under the zero-drop gate (30 -> 29 of 64, -1.6 points; " in found[-2]
    assert "placebo/seed-1: retention REGRESSED under the zero-drop gate (30 -> 27 of 64, -4.7 points; " in found[-1]


def test_the_pilot_s_own_result() -> None:
    """4/32 -> 5/32 on agent test, 30/64 -> 29/64 on MGSM, no placebo: nothing to claim, and retention regressed."""
    assert told({"pilot/seed-42": candidate(1, 0, retention=kept(1, 2))}, ()) == [
        NO_PLACEBO,
        (
            "pilot/seed-42: agent success did not change by more than these items can tell from chance "
            "(+3.1 points, 1 wins, 0 losses of 32, McNemar p = 1)."
        ),
        (
            "pilot/seed-42: retention REGRESSED under the zero-drop gate (30 -> 29 of 64, -1.6 points; "
            "an equally accurate model fails this gate 38% of the time)."
        ),
    ]


def test_an_unknown_false_alarm_rate_is_left_out() -> None:
    gate = kept(0, 1)["zero_drop_gate"] | {"false_alarm_rate": None}
    found = told({"pilot/seed-1": candidate(0, 0, retention=kept(0, 1) | {"zero_drop_gate": gate})}, ())
    assert found[-1].endswith("(30 -> 29 of 64, -1.6 points).")


@pytest.mark.parametrize(("value", "text"), [(0.03125, "+3.1"), (-1 / 64, "-1.6"), (0.0, "+0.0"), (1.0, "+100.0"), (0.28125, "+28.1")])
def test_points(value: float, text: str) -> None:
    assert points(value) == text


@pytest.mark.parametrize(("value", "text"), [(1.0, "1"), (0.03125, "0.0312"), (0.0001, "0.0001"), (0.00009, "< 0.0001"), (0.5, "0.5")])
def test_probability(value: float, text: str) -> None:
    assert probability(value) == text


AGENT = {
    "episodes": 32, "strict_success": 4, "valid_workflow": 6, "correct_answer": 5, "lookup": 30, "calculation": 7, "tool_calls": 61,
    "tool_errors": 3, "malformed_finals": 2, "turn_cap": 1, "token_cap": 8, "assistant_tokens": 9000, "external_tokens": 2100,
}  # fmt: skip
MATHS = {"items": 64, "correct": 30, "flexible_correct": 34, "malformed": 5, "token_cap": 3, "assistant_tokens": 20_000}
TRAINED = {
    "steps": 16, "episodes": 64, "unique_tasks": 16, "groups": 16, "mixed_groups": 9, "mean_reward": 0.3125, "strict_success": 11,
}  # fmt: skip
QUESTION = "Bernd hat 17 Enten. Jede legt täglich 23 Eier."
MEASURES = ("agent-dev", "agent-test", "retention")


@pytest.fixture
def finished(tmp_path: Path, tasks: list[Task]) -> Path:
    """A hand-made finished study: the pilot's counts, a quiet placebo, and everything raw beside its manifests."""
    study = tmp_path / "pilot"
    pairs: dict[str, Pairs] = {
        "pilot": {"pilot/seed-42": candidate(1, 0, retention=kept(1, 2)) | {"agent-dev": pair(2, 1, 32, 3)}},
        "placebo": {"placebo/seed-42": candidate(1, 1) | {"agent-dev": pair(0, 0, 32, 3)}},
    }
    write_json(study / "statistics" / "comparison.json", pairs)
    write_tasks(study / "tasks/dev/tasks.jsonl", tasks)
    write_text(study / "retention/items.jsonl", json.dumps({"id": "mgsm-de-001", "question": QUESTION, "answer": 391}) + "\n")
    gains: Mapping[str, int] = {"baseline": 0, "pilot/seed-42": 1, "placebo/seed-42": 0}
    for name, gain in gains.items():
        for measure in MEASURES:
            counts = MATHS | {"correct": 30 - gain} if measure == "retention" else AGENT | {"strict_success": 4 + gain}
            raw = {"retention": {"prompt": QUESTION}, "task": asdict(tasks[0])}
            write_json(study / "policies" / name / measure / "manifest.json", {"policy": name, "counts": counts, "config": raw})
            write_text(study / "policies" / name / measure / "episodes.jsonl", json.dumps([asdict(task) for task in tasks]) + "\n")
    for name, reward in (("pilot/seed-42", "shaped"), ("placebo/seed-42", "random")):
        config = {"arm": {"reward": reward}, "tasks": [asdict(task) for task in tasks]}
        write_json(study / "arms" / name / "train" / "manifest.json", TRAINED | {"policy": name, "config": config})
        audit = {"tensors": 310, "changed": 196, "identical": 114, "targets": 196, "tied_head": True, "largest_logit_difference": 0.2}
        write_json(study / "arms" / name / "merged" / "manifest.json", {"audit": audit, "config": config})
    return study


@pytest.fixture
def summary(finished: Path) -> dict[str, Any]:
    return summarize(finished, ["pilot/seed-42", "placebo/seed-42"], MEASURES, SETTINGS)


def test_summary_collects_every_policy_and_measure(summary: dict[str, Any]) -> None:
    assert (summary["study"], summary["judged_on"]) == ("pilot", "agent-test")
    assert list(summary["policies"]) == ["baseline", "pilot/seed-42", "placebo/seed-42"]
    assert summary["policies"]["pilot/seed-42"]["agent-test"]["strict_success"] == 5
    assert summary["policies"]["baseline"]["retention"] == MATHS
    assert summary["training"]["placebo/seed-42"]["reward"] == "random"
    assert {fact: summary["training"]["pilot/seed-42"][fact] for fact in TRAINED} == TRAINED
    assert summary["comparisons"]["pilot/seed-42"]["agent-test"]["wins"] == 1
    assert summary["findings"] == findings(summary["comparisons"], ["placebo/seed-42"], "agent-test", ALPHA)
    assert any("training seeds" in limit for limit in summary["limits"])
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_nothing_raw_enters_the_summary(summary: dict[str, Any], tasks: list[Task]) -> None:
    text = json.dumps(summary, ensure_ascii=False) + render(summary)
    for task in tasks:
        for raw in (task.record_id, task.question, task.id, task.template, json.dumps(task.facts)):
            assert raw not in text
    for raw in (QUESTION, "Enten", "mgsm-de-", "menge", "einzelpreis", "record_id", "question", "prompt_ids", "observation"):
        assert raw not in text


def test_summary_is_the_same_for_the_same_study(finished: Path, summary: dict[str, Any]) -> None:
    again = summarize(finished, ["pilot/seed-42", "placebo/seed-42"], MEASURES, SETTINGS)
    assert again == summary
    assert render(again) == render(summary)


def cells(text: str, start: str) -> list[list[str]]:
    """Rows of the table below a heading."""
    body = text.split(start, 1)[1].split("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines() if line.startswith("|")]


def test_markdown_shows_the_findings_and_whole_tables(summary: dict[str, Any]) -> None:
    text = render(summary)
    assert text.startswith("# Study pilot: ")
    for sentence in (*summary["findings"], *summary["limits"]):
        assert f"- {sentence}\n" in text
    for heading in ("## Policies", "## Agent measures", "## Retention", "## Training"):
        table = cells(text, heading)
        assert {len(row) for row in table} == {len(table[0])}, heading
    policies = cells(text, "## Policies")
    assert policies[2] == ["start", "4/32", "4/32", "", "", "", "30/64", ""]
    assert policies[3] == ["pilot/seed-42", "5/32", "5/32", "+3.1 [+0.0, +9.4]", "1-0", "1", "29/64", "FAILED"]
    assert policies[4][-1] == "passed"
    assert cells(text, "## Training")[2] == ["pilot/seed-42", "shaped", "16", "64", "16", "9/16", "0.312", "11/64", "196/310"]
    assert len(cells(text, "## Agent measures")) == 2 + 3 * 2
    assert statistics.COVERS["items"] in text


def test_a_study_without_placebo_says_so(finished: Path) -> None:
    found = summarize(finished, ["pilot/seed-42"], MEASURES, SETTINGS)
    assert found["findings"][0] == NO_PLACEBO
    assert "placebo/seed-42" not in render(found)


def test_several_trials_are_rendered_without_a_p_value(summary: dict[str, Any]) -> None:
    name = "pilot/seed-42"
    pairs = summary["comparisons"] | {name: summary["comparisons"][name] | {"agent-test": pair(1, 0, 32, 4, trials=3)}}
    assert cells(render(summary | {"comparisons": pairs}), "## Policies")[3][5] == "n/a"

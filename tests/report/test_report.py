"""Report: sentences claim no more than their comparison shows, and nothing raw enters the summary."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pilot_rows
import pytest
from raw_studies import PILOT_RAW

from agentrl.evidence.files import read_json, write_json, write_text
from agentrl.judgement.comparison import Evaluation, compare
from agentrl.judgement.settings import Statistics
from agentrl.judgement.verdict import judge
from agentrl.report.summary import findings, points, probability, render, summarize
from agentrl.report.tables import pilot_tables
from agentrl.statistics.paired import COVERS
from agentrl.study.config import validate_study
from agentrl.study.sections import sections
from agentrl.tasks.families import Task, read_tasks, write_tasks

ALPHA = 0.05
SETTINGS = Statistics(confidence=0.95, alpha=ALPHA, seed=42, margin=0.05, seeds_for_verdict=5)
NO_PLACEBO = (
    "No arm with random reward was run, so a gain cannot be told from mere training: no verdict."
)
QUIET = "Placebo placebo shows no gain beyond chance, as it must (+0.0 points over 32 items and 1 seed, p over items = 1)."
Pairs = dict[str, dict[str, Any]]
Counts = dict[str, tuple[tuple[int, int], tuple[int, int]]]
"""Candidate -> wins and losses on the agent's items, wins and losses on retention."""


def scores(
    before: int, wins: int, losses: int, items: int, trials: int = 1, name: str = "item-{:03d}"
) -> pd.DataFrame:
    """The candidate's scores beside a baseline that has the first `before` items right: it loses the first, wins the next behind."""
    right = {*range(losses, before), *range(before, before + wins)}
    rows = [
        (name.format(n + 1), trial, int(n in right))
        for n in range(items)
        for trial in range(trials)
    ]
    return pd.DataFrame(rows, columns=["item", "trial", "score"])


def evaluated(
    counts: Counts, trials: int = 1, items: int = 32, before: int = 4, kept: int = 64
) -> tuple[dict[str, Any], Pairs]:
    """Verdict and comparisons as `compare.py` writes them, from counts: `before` of `items`, 30 of `kept`."""

    def tables(agent: tuple[int, int], retention: tuple[int, int]) -> dict[str, pd.DataFrame]:
        return {
            "agent-test": scores(before, *agent, items, trials),
            "retention": scores(30, *retention, kept, name="mgsm-de-{:03d}"),
        }

    found = {name: tables(*both) for name, both in {"baseline": ((0, 0), (0, 0)), **counts}.items()}
    arms: dict[str, list[str]] = {}
    for name in counts:
        arms.setdefault(name.split("/")[0], []).append(name)
    manifest = {"stage": "", "config": {}, "engine": "", "inputs": {}}
    records = {
        (p, m): Evaluation(p, m, manifest, table, parts(m, table))
        for p, measures in found.items()
        for m, table in measures.items()
    }
    flat = {key: record.scores for key, record in records.items()}
    verdict = judge(flat, ["placebo"], SETTINGS)
    pairs = {
        n: {
            m: compare(records["baseline", m], records[n, m], SETTINGS)
            for m in ("agent-test", "retention")
        }
        for n in counts
    }
    return verdict, {
        name: found | {"agent-dev": found["agent-test"]} for name, found in pairs.items()
    }


def parts(measure: str, table: pd.DataFrame) -> pd.DataFrame | None:
    """An agent that fails by its answer only, so that a change consists of answers."""
    return (
        None
        if measure == "retention"
        else table.assign(workflow=1, answer=table["score"]).drop(columns="score")
    )


def told(counts: Counts, **shape: int) -> list[str]:
    verdict, pairs = evaluated(counts, **shape)
    return findings(verdict, pairs, SETTINGS)


def one(
    agent: tuple[int, int],
    retention: tuple[int, int] = (0, 0),
    placebo: tuple[int, int] | None = (0, 0),
) -> Counts:
    quiet = {} if placebo is None else {"placebo/seed-1": (placebo, (0, 0))}
    return {"pilot/seed-1": (agent, retention), **quiet}


def test_the_pilot_s_own_result() -> None:
    """4/32 -> 5/32 on agent test, 30/64 -> 29/64 on MGSM, no placebo: nothing to claim, and retention regressed."""
    assert told({"pilot/seed-42": ((1, 0), (1, 2))}) == [
        NO_PLACEBO,
        (
            "pilot: agent success did not change by more than these items can tell from chance (+3.1 points over 32 items and 1 seed, "
            "p over items = 1). Not called improved: insufficient seeds: 1 of 5; no p value over seeds: one seed; no placebo was run; "
            "retention bound not held: -9.4 points, needs above -5.0."
        ),
        (
            "pilot: retention REGRESSED under the zero-drop gate (seed-42: 30 -> 29 of 64, -1.6 points, "
            "an equally accurate model fails this gate 38% of the time)."
        ),
        (
            "pilot: a retention loss of 5.0 points is NOT ruled out (lower bound -9.4 points, 64 items; an equally good model needs 195 "
            "to pass with 80% power); without 1 of them whose German contradicts the gold answer: -1.6 points, lower bound -9.5, "
            "NOT ruled out, zero-drop gate failed by 1 of 1."
        ),
    ]


def test_a_gain_of_one_run_is_named_for_this_run_and_not_called_improved() -> None:
    found = told(one((8, 0)))
    assert found[0] == QUIET
    assert found[1].startswith(
        "pilot: agent success rose beyond chance of the items, for this one training run "
        "(+25.0 points over 32 items and 1 seed, p over items = 0.00781). Not called improved: insufficient seeds: 1 of 5; "
    )


def test_a_placebo_that_gained_forbids_every_verdict() -> None:
    found = told(one((9, 0), placebo=(6, 0)))
    assert found[0].startswith(
        "Placebo placebo gained although its reward was random: no verdict on any arm (+18.8 points"
    )
    assert "placebo placebo gained +18.8 points" in found[1]


def test_without_a_placebo_there_is_no_verdict() -> None:
    found = told(one((9, 0), placebo=None))
    assert found[0] == NO_PLACEBO
    assert "no placebo was run" in found[1]


@pytest.mark.parametrize(
    ("wins", "losses", "change"),
    [
        (5, 0, "did not change by more than these items can tell from chance"),
        (6, 0, "rose beyond chance of the items, for this one training run"),
        (0, 6, "fell beyond chance of the items, for this one training run"),
        (0, 5, "did not change by more than these items can tell from chance"),
        (0, 0, "did not change by more than these items can tell from chance"),
    ],
)
def test_the_sentence_turns_where_the_test_does(wins: int, losses: int, change: str) -> None:
    """32 items, one trial: 6 wins to 0 losses at least."""
    assert told(one((wins, losses)), before=8)[1].startswith(f"pilot: agent success {change} (")


def test_five_seeds_and_a_quiet_placebo_are_called_improved() -> None:
    counts: Counts = {f"pilot/seed-{seed}": ((14 + seed % 2, 0), (8, 0)) for seed in range(1, 6)}
    counts |= {f"placebo/seed-{seed}": ((seed % 2, 1), (0, 0)) for seed in range(1, 6)}
    found = told(counts, kept=250)
    assert found[0].startswith(
        "Placebo placebo shows no gain beyond chance, as it must (-1.2 points over 32 items and 5 seeds, p = "
    )
    assert found[1].startswith(
        "pilot: agent success improved by the rule set beforehand (+45.6 points over 32 items and 5 seeds, p "
    )
    assert ", over arms " in found[1]
    assert found[2] == "pilot: retention held under the zero-drop gate with 5 of 5 seeds."


def test_four_seeds_are_not() -> None:
    counts: Counts = {
        f"{arm}/seed-{seed}": ((gain, 0), (0, 0))
        for seed in range(1, 5)
        for arm, gain in (("pilot", 14), ("placebo", 0))
    }
    found = told(counts, kept=250)[1]
    assert (
        "rose beyond chance of the items and seeds (+43.8 points over 32 items and 4 seeds" in found
    )
    assert found.endswith("Not called improved: insufficient seeds: 4 of 5.")


@pytest.mark.parametrize("agent", [(9, 0), (0, 0)])
def test_a_drop_of_retention_is_always_reported(agent: tuple[int, int]) -> None:
    found = told(
        {
            "pilot/seed-1": (agent, (0, 1)),
            "pilot/seed-2": (agent, (1, 0)),
            "placebo/seed-1": ((0, 0), (2, 5)),
        }
    )
    assert (
        "pilot: retention REGRESSED under the zero-drop gate with 1 of 2 seeds (seed-1: 30 -> 29 of 64, -1.6 points, "
        in found[-4]
    )
    assert (
        "placebo: retention REGRESSED under the zero-drop gate (seed-1: 30 -> 27 of 64, -4.7 points, "
        in found[-2]
    )


def test_an_unknown_false_alarm_rate_is_left_out() -> None:
    verdict, pairs = evaluated(one((0, 0), (0, 1), placebo=None))
    pairs["pilot/seed-1"]["retention"]["zero_drop_gate"]["false_alarm_rate"] = None
    assert findings(verdict, pairs, SETTINGS)[-2].endswith("(seed-1: 30 -> 29 of 64, -1.6 points).")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.03125, "+3.1"), (-1 / 64, "-1.6"), (0.0, "+0.0"), (1.0, "+100.0"), (0.28125, "+28.1")],
)
def test_points(value: float, text: str) -> None:
    assert points(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1"), (0.03125, "0.0312"), (0.0001, "0.0001"), (0.00009, "< 0.0001"), (0.5, "0.5")],
)
def test_probability(value: float, text: str) -> None:
    assert probability(value) == text


AGENT = {
    "episodes": 32, "strict_success": 4, "valid_workflow": 6, "correct_answer": 5, "lookup": 30, "calculation": 7, "tool_calls": 61,
    "tool_errors": 3, "malformed_finals": 23, "malformed_uncapped": 7, "turn_cap": 13, "token_cap": 2, "observation_cap": 1,
    "assistant_tokens": 9000, "external_tokens": 2100, "infrastructure_errors": 0,
}  # fmt: skip
MATHS = {
    "items": 64, "correct": 30, "flexible_correct": 34, "malformed_finals": 8, "malformed_uncapped": 5, "token_cap": 3,
    "assistant_tokens": 20_000, "infrastructure_errors": 0,
}  # fmt: skip
TRAINED = {
    "steps": 16, "episodes": 64, "unique_tasks": 16, "groups": 16, "mixed_groups": 9, "mean_reward": 0.3125, "strict_success": 11,
}  # fmt: skip
GATES = {"steps_with_gradient": 15, "adapter_tensors": 392, "adapter_tensors_changed": 392}
AGENT_REPLAY = {"episodes": 32, "tool calls": 61, "sampled tokens": 9000, "external tokens": 2100}
QUESTION = "Bernd hat 17 Enten. Jede legt täglich 23 Eier."
MEASURES = ("agent-dev", "agent-test", "retention")


@pytest.fixture
def finished(tmp_path: Path, tasks: list[Task]) -> Path:
    """A hand-made finished study: the pilot's counts, a quiet placebo, and everything raw beside its manifests."""
    study = tmp_path / "pilot"
    verdict, pairs = evaluated(
        {"pilot/seed-42": ((1, 0), (1, 2)), "placebo/seed-42": ((1, 1), (0, 0))}
    )
    write_json(
        study / "statistics" / "comparison.json",
        {name.split("/")[0]: {name: found} for name, found in pairs.items()},
    )
    write_json(study / "statistics" / "verdict.json", verdict)
    consumed = [
        f"{name}/{m}" for name in ("baseline", "pilot/seed-42", "placebo/seed-42") for m in MEASURES
    ]
    write_json(
        study / "statistics" / "manifest.json",
        {"inputs": dict.fromkeys(["section", *consumed], "0" * 64)},
    )
    counts = AGENT | {"episodes": 16, "strict_success": 2}
    groups = {
        "groups": 4,
        "group_size": 4,
        "counts": counts,
        "mixed_groups": {"shaped": 3, "random": 4, "binary": 1},
    }
    write_json(study / "plan" / "preflight.json", groups)
    write_json(study / "config" / "plan.json", sections(validate_study(PILOT_RAW))["plan"])
    write_json(
        study / "plan" / "power.json",
        {"sentences": ["It sees little.", "It takes more.", "The gate errs."], "power": 0.1},
    )
    for split in ("dev", "test"):
        frozen = [
            replace(
                task,
                id=f"{split}-{task.id[-4:]}",
                split=split,
                template=task.template.replace("dev", split),
            )
            for task in tasks
        ]
        write_tasks(study / "tasks" / split / "tasks.jsonl", frozen)
    stages = {
        f"policies/{name}/{m}": AGENT_REPLAY
        for name in ("baseline", "pilot/seed-42", "placebo/seed-42")
        for m in MEASURES[:2]
    }
    stages |= {
        f"policies/{name}/retention": {"answers": 64, "sampled tokens": 20_000}
        for name in ("baseline", "pilot/seed-42")
    }
    stages |= {
        "arms/pilot/seed-42/train": {
            "episodes": 64,
            "tool calls": 120,
            "sampled tokens": 17_000,
            "external tokens": 4000,
        }
    }
    write_json(study / "verify" / "verify.json", {"passed": True, "stages": stages})
    write_text(
        study / "retention/items.jsonl",
        json.dumps({"id": "mgsm-de-001", "question": QUESTION, "answer": 391}) + "\n",
    )
    gains: Mapping[str, int] = {"baseline": 0, "pilot/seed-42": 1, "placebo/seed-42": 0}
    for name, gain in gains.items():
        for measure in MEASURES:
            counts = (
                MATHS | {"correct": 30 - gain}
                if measure == "retention"
                else AGENT | {"strict_success": 4 + gain}
            )
            raw = {"retention": {"prompt": QUESTION}, "task": asdict(tasks[0])}
            write_json(
                study / "policies" / name / measure / "manifest.json",
                {"policy": name, "counts": counts, "config": raw},
            )
            write_text(
                study / "policies" / name / measure / "episodes.jsonl",
                json.dumps([asdict(task) for task in tasks]) + "\n",
            )
    for name, reward in (("pilot/seed-42", "shaped"), ("placebo/seed-42", "random")):
        shape = {"steps": 16, "batch_size": 4}
        config = {
            "arm": {"reward": reward, "warmup": None},
            "training": shape,
            "tasks": [asdict(task) for task in tasks],
        }
        write_json(
            study / "arms" / name / "train" / "manifest.json",
            TRAINED | {"policy": name, "config": config, "gates": GATES},
        )
        audit = {"tensors": 310, "changed": 196, "identical": 114, "targets": 196, "tied_head": True, "largest_logit_difference": 0.2,
                 "tolerance": 0.5, "update_kept": 0.171 if name.startswith("pilot") else 0.95, "weights_moved": 0.07}  # fmt: skip
        write_json(
            study / "arms" / name / "merged" / "manifest.json", {"audit": audit, "config": config}
        )
    return study


@pytest.fixture
def summary(finished: Path) -> dict[str, Any]:
    return summarize(finished, SETTINGS)


def test_summary_collects_every_policy_and_measure(summary: dict[str, Any]) -> None:
    assert (summary["study"], summary["judged_on"]) == ("pilot", "agent-test")
    assert list(summary["policies"]) == ["baseline", "pilot/seed-42", "placebo/seed-42"]
    assert summary["policies"]["pilot/seed-42"]["agent-test"]["strict_success"] == 5
    assert summary["policies"]["baseline"]["retention"] == MATHS
    assert summary["training"]["placebo/seed-42"]["reward"] == "random"
    assert {fact: summary["training"]["pilot/seed-42"][fact] for fact in TRAINED} == TRAINED
    assert summary["comparisons"]["pilot/seed-42"]["agent-test"]["wins"] == 1
    assert summary["findings"][:-1] == findings(
        summary["verdict"], summary["comparisons"], SETTINGS
    )
    assert summary["findings"][-1].startswith(
        "pilot: the merged checkpoint carries only 17% of the trained update, "
    )
    assert summary["plan"][-1] == (
        "Before training, 4 groups of 4 on training tasks: 2 of 16 episodes succeeded strictly; "
        "groups whose reward varied: binary 1, random 4, shaped 3."
    )
    assert summary["next"] == [
        "By the spread that pilot showed: to find 10.0 points with 80% power (this design: 9%) it takes 78 items.",
    ]
    assert any("training seeds" in limit for limit in summary["limits"])
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


@pytest.mark.parametrize(
    ("level", "begin"),
    [
        ("lookup", "The first action is scaffolded: "),
        ("expression", "Both actions are scaffolded: "),
        ("none", "No action is scaffolded"),
    ],
)
def test_the_limits_name_the_frozen_scaffold(finished: Path, level: str, begin: str) -> None:
    """Of the tasks that the verdict rests on, whatever the configuration says by now."""
    file = finished / "tasks/test/tasks.jsonl"
    write_tasks(file, [replace(task, scaffold=level) for task in read_tasks(file)])
    (found,) = [limit for limit in summarize(finished, SETTINGS)["limits"] if "scaffold" in limit]
    assert found.startswith(begin)
    assert found.endswith(f"(tasks.scaffold: {level}).")


def test_nothing_raw_enters_the_summary(summary: dict[str, Any], tasks: list[Task]) -> None:
    text = json.dumps(summary, ensure_ascii=False) + render(summary)
    for task in tasks:
        for raw in (task.record_id, task.question, task.id, task.template, json.dumps(task.facts)):
            assert raw not in text
    for raw in (
        QUESTION,
        "Enten",
        "mgsm-de-",
        "menge",
        "einzelpreis",
        "record_id",
        "question",
        "prompt_ids",
        '"observation"',
    ):
        assert raw not in text


def test_summary_is_the_same_for_the_same_study(finished: Path, summary: dict[str, Any]) -> None:
    again = summarize(finished, SETTINGS)
    assert again == summary
    assert render(again) == render(summary)


def cells(text: str, start: str) -> list[list[str]]:
    """Rows of the table below a heading."""
    body = text.split(start, 1)[1].split("\n## ")[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in body.splitlines()
        if line.startswith("|")
    ]


def test_markdown_shows_the_findings_and_whole_tables(summary: dict[str, Any]) -> None:
    text = render(summary)
    assert text.startswith("# Study pilot: ")
    for sentence in (*summary["plan"], *summary["findings"], *summary["limits"]):
        assert f"- {sentence}\n" in text
    for heading in ("## Verdict", "## Policies", *(f"## {title}" for title in pilot_rows.SUMMARY)):
        table = cells(text, heading)
        assert {len(row) for row in table} == {len(table[0])}, heading
    verdict = cells(text, "## Verdict")
    assert verdict[2] == [
        "pilot", "1", "agent-test", "+3.1", "[-3.2, +9.5] (descriptive)", "31.0", "0.325", "n/a", "n/a / 3.1", "[+0.0, +9.4]",
        "-9.4 / -5.0", "not shown",
    ]  # fmt: skip
    assert verdict[3][-1] == "placebo"
    policies = cells(text, "## Policies")
    assert policies[2] == ["start", "4/32", "4/32", "", "", "", "30/64", ""]
    assert policies[3] == [
        "pilot/seed-42",
        "5/32",
        "5/32",
        "+3.1 [+0.0, +9.4]",
        "1-0",
        "1",
        "29/64",
        "FAILED",
    ]
    assert policies[4][-1] == "passed"
    assert COVERS["items"] in text


def test_every_interval_says_what_it_does_not_cover(summary: dict[str, Any]) -> None:
    text = render(summary)
    for note in (
        "- Interval: One training seed: covers",
        "- Bootstrap: Descriptive: items",
        "- Retention bound: Covers only the choice of",
    ):
        assert note in text


def test_several_trials_show_pass_hat_k_and_the_sign_flip_p(summary: dict[str, Any]) -> None:
    assert "pass^" not in render(summary)
    verdict, pairs = evaluated(
        {"pilot/seed-42": ((6, 0), (0, 0)), "placebo/seed-42": ((0, 0), (0, 0))}, trials=3
    )
    text = render(summary | {"verdict": verdict, "comparisons": pairs})
    table = cells(text.split("pass^k, the chance", 1)[1], "succeed:")
    assert table[0] == ["policy", "pass^1", "pass^2", "pass^3"]
    assert table[2] == ["start", "0.125", "0.125", "0.125"]
    assert cells(text, "## Policies")[3][5] == "0.0312"


def test_every_table_of_the_pilot_has_its_rows_by_name(summary: dict[str, Any]) -> None:
    """`tests/pilot_rows.py` is kept by hand: a row that is lost, renamed or new is a change there."""
    text = render(summary)
    assert {
        title: pilot_rows.names(text, title) for title in pilot_rows.SUMMARY
    } == pilot_rows.SUMMARY
    headings = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    first, *_, where, limits = (
        at for at, title in enumerate(headings) if title not in pilot_rows.SUMMARY
    )
    assert [title for title in headings if title in pilot_rows.SUMMARY] == list(pilot_rows.SUMMARY)
    assert headings[: first + 2] == ["Verdict", "Policies"]
    assert headings[where:] == ["Where it ran", "What this does not show"]
    assert limits == where + 1


def test_the_tables_show_the_counts_of_each_policy(summary: dict[str, Any]) -> None:
    text = render(summary)
    agent = pilot_rows.rows(text, "Agent evaluation, test")
    assert agent["measure"] == ["start", "pilot/seed-42", "placebo/seed-42"]
    assert agent["strict success"] == ["4", "5", "4"]
    caps = ("malformed finals", "malformed uncapped", "turn cap", "token cap", "observation cap")
    assert [agent[row][0] for row in caps] == ["23", "7", "13", "2", "1"]
    assert [agent[row][1] for row in ("external tokens", "infrastructure errors", "replayed calls", "checked tokens")] == [
        "2100", "0", "61", "11100",
    ]  # fmt: skip
    change = pilot_rows.rows(text, "Paired change against start, test")
    assert change["measure"] == ["pilot/seed-42", "placebo/seed-42"]
    assert [change[row][0] for row in ("wins", "losses", "ties", "change, points", "interval, points", "exact p")] == [
        "1", "0", "31", "+3.1", "[+0.0, +9.4]", "1",
    ]  # fmt: skip
    assert [change[f"{side} by {part}"] for side in ("gained", "lost") for part in ("workflow", "answer", "both")] == [
        ["0", "0"], ["1", "1"], ["0", "0"], ["0", "0"], ["0", "1"], ["0", "0"],
    ]  # fmt: skip
    kept = pilot_rows.rows(text, "Retention (no tools)")
    assert [kept[row] for row in ("correct", "wins", "losses", "change, points", "interval, points", "zero-drop gate")] == [
        ["30", "29", "30"], ["", "1", "0"], ["", "2", "0"], ["", "-1.6", "+0.0"], ["", "[-7.8, +3.1]", "[+0.0, +0.0]"],
        ["", "FAILED", "passed"],
    ]  # fmt: skip
    assert kept["checked tokens"] == ["20000", "20000", "0"]
    trained = pilot_rows.rows(text, "Training")
    rows = (
        "reward",
        "groups with reward variation",
        "mean reward",
        "steps with nonzero gradient",
        "adapter tensors changed",
    )
    assert [trained[row][0] for row in (*rows, "infrastructure errors", "replayed calls", "checked tokens")] == [
        "shaped", "9", "0.312", "15", "392", "0", "120", "21000",
    ]  # fmt: skip
    assert pilot_rows.rows(text, "Merge")["update kept"] == ["0.171", "0.95"]


def test_the_tables_say_how_their_rows_overlap(summary: dict[str, Any]) -> None:
    text = render(summary)
    for title in ("Preflight on training tasks", "Agent evaluation, dev", "Agent evaluation, test"):
        assert (
            "the sum of malformed uncapped, turn cap, token cap and observation cap"
            in text.split(f"## {title}", 1)[1].split("\n## ")[0]
        )
    assert (
        "the sum of malformed uncapped and token cap"
        in text.split("## Retention (no tools)", 1)[1].split("\n## ")[0]
    )


def test_the_pilot_is_not_release_eligible_for_its_retention(summary: dict[str, Any]) -> None:
    assert summary["release"]["pilot/seed-42"] == {
        "eligible": False,
        "blocked_by": ["zero-drop retention gate failed (1 won, 2 lost)"],
    }
    table = pilot_rows.rows(render(summary), "Release")
    assert table["release eligible"] == ["no", "no"]
    assert table["blocked by"][1] == "control: its reward is random"


def test_missing_training_episodes_are_infrastructure_errors(finished: Path) -> None:
    file = finished / "arms/pilot/seed-42/train/manifest.json"
    write_json(file, read_json(file) | {"episodes": 61})
    found = summarize(finished, SETTINGS)
    assert found["training"]["pilot/seed-42"]["infrastructure_errors"] == 3
    assert (
        "training health: 3 episodes are missing" in found["release"]["pilot/seed-42"]["blocked_by"]
    )


def test_a_policy_that_never_saw_a_split_has_no_column_there(finished: Path) -> None:
    """As where dev chooses the arm: the placebo and the others are not evaluated on test."""
    file = finished / "statistics/manifest.json"
    inputs = read_json(file)["inputs"]
    write_json(
        file,
        {
            "inputs": {
                role: digest
                for role, digest in inputs.items()
                if role != "placebo/seed-42/agent-test"
            }
        },
    )
    compared = finished / "statistics/comparison.json"
    content = read_json(compared)
    del content["placebo"]["placebo/seed-42"]["agent-test"]
    write_json(compared, content)
    found = summarize(finished, SETTINGS)
    text = "\n".join(table.markdown() for table in pilot_tables(found))
    assert pilot_rows.rows(text, "Agent evaluation, test")["measure"] == ["start", "pilot/seed-42"]
    assert pilot_rows.rows(text, "Paired change against start, test")["measure"] == [
        "pilot/seed-42"
    ]
    assert pilot_rows.rows(text, "Agent evaluation, dev")["measure"] == [
        "start",
        "pilot/seed-42",
        "placebo/seed-42",
    ]

"""Runs: where and how long, from the provenance of every stage the statistics rest on; commit and checkout are told."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pilot_rows
import pytest

from agentrl.evidence.files import read_json, write_json
from agentrl.report.runs import collect, notes, render

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PACKAGES = {
    "torch": "2.9.0",
    "transformers": "5.1.0",
    "trl": "1.16.2",
    "peft": "0.20.0",
    "pandas": "3.0.0",
}
LIGHT = {
    "commit": COMMIT, "dirty": False, "python": "3.12.3", "gpu": "none", "packages": PACKAGES, "seconds": 1.5, "peak_memory_mb": 90,
    "host": {"processor": "AMD EPYC", "cpus": 2}, "container": {"digest": "none", "source": "no sign of a container"},
    "ended": "2026-03-01T10:00:00+00:00", "code": {"train.py": "0" * 64}, "command": "x.py",
}  # fmt: skip
GPU = LIGHT | {
    "gpu": "NVIDIA H200", "driver": "575.57", "cuda": "12.9", "gpu_peak_memory_mb": 19_500, "packages": PACKAGES | {"vllm": "0.26.0"},
    "seconds": 161.25,
}  # fmt: skip
POLICIES = ("baseline", "pilot/seed-42")
MEASURES = ("agent-dev", "agent-test", "retention")


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Provenances of a study whose model stages ran on a GPU, and a leftover that its statistics do not know."""
    evaluated = [f"{policy}/{measure}" for policy in POLICIES for measure in MEASURES]
    records: dict[str, dict[str, Any]] = {
        f"policies/{role}": GPU | {"generation_seconds": 1234.5} for role in evaluated
    }
    records |= {
        "arms/pilot/seed-42/train": GPU | {"training_seconds": 37.9, "resumed_from_step": 0},
        "policies/old/seed-1/retention": GPU,
    }
    records |= dict.fromkeys(("start", "tasks/test", "statistics"), LIGHT)
    for name, record in records.items():
        write_json(tmp_path / name / "provenance.json", record)
        write_json(tmp_path / name / "manifest.json", {})
    write_json(
        tmp_path / "statistics/manifest.json",
        {"inputs": dict.fromkeys(["section", *evaluated], "0" * 64)},
    )
    return tmp_path


@pytest.fixture
def put(study: Path) -> Callable[..., None]:
    """Other facts in the provenance of one stage."""
    return lambda stage, record: write_json(study / stage / "provenance.json", record)


def test_stages_of_the_statistics_are_told_and_no_others(study: Path) -> None:
    found = collect(study)
    assert set(found) == {f"policies/{p}/{m}" for p in POLICIES for m in MEASURES} | {
        "arms/pilot/seed-42/train", "start", "tasks/test", "statistics",
    }  # fmt: skip
    assert "code" not in found["start"], "digests of code are long; they stay in the provenance"


def test_the_page_has_the_pilot_s_rows_by_name(study: Path) -> None:
    text = render(collect(study))
    assert {title: pilot_rows.names(text, title) for title in pilot_rows.RUNS} == pilot_rows.RUNS


def test_the_page_follows_from_its_data(study: Path) -> None:
    """As verification renders it again: from what JSON kept, order included."""
    found = collect(study)
    write_json(study / "runs.json", found)
    assert render(read_json(study / "runs.json")) == render(found)


def test_seconds_stand_by_policy_as_recorded(study: Path) -> None:
    found = pilot_rows.rows(render(collect(study)), "Seconds")
    assert found["measure"] == ["start", "pilot/seed-42"]
    assert found["training seconds"] == ["", "37.9"]
    assert found["generation seconds, agent-test"] == ["1234.5", "1234.5"]


def test_each_environment_has_a_column(study: Path) -> None:
    text = render(collect(study))
    found = pilot_rows.rows(text, "Environment")
    assert found["measure"] == ["A", "B"]
    assert found["GPU"] == ["NVIDIA H200", "none"]
    assert found["driver"] == ["575.57", ""]
    assert found["vllm"] == ["0.26.0", ""]
    assert found["torch"] == ["2.9.0", "2.9.0"]
    assert found["commit"] == [COMMIT, COMMIT]
    assert found["checkout"] == ["clean", "clean"]
    assert found["stages"] == ["7", "3"]
    stages = pilot_rows.rows(text, "Stages")
    assert stages["stage"] == ["environment", "seconds", "peak memory, MB", "peak GPU memory, MB"]
    assert stages["arms/pilot/seed-42/train"] == ["A", "161.25", "90", "19500"]
    assert stages["statistics"] == ["B", "1.5", "90", ""]
    assert "- " not in text.split("## Seconds")[0].split("\n", 2)[2], (
        "one clean commit: nothing to note"
    )


@pytest.mark.parametrize(
    ("changes", "note", "checkout"),
    [
        (
            {"commit": None},
            "NOTE: 1 of 10 stages (start) ran from no checkout: no commit says which code they ran.",
            "none: ran from no checkout",
        ),
        (
            {"dirty": True},
            "NOTE: 1 of 10 stages (start) ran from a changed checkout: no commit says which code they ran.",
            "CHANGED: the code is not this commit's",
        ),
    ],
)
def test_a_missing_commit_or_changed_checkout_is_noted(
    study: Path, put: Callable[..., None], changes: dict[str, Any], note: str, checkout: str
) -> None:
    put("start", LIGHT | changes)
    found = collect(study)
    assert notes(found) == [note]
    text = render(found)
    assert f"\n- {note}\n" in text
    assert checkout in pilot_rows.rows(text, "Environment")["checkout"]


def test_several_commits_are_noted(study: Path, put: Callable[..., None]) -> None:
    put("statistics", LIGHT | {"commit": "f" * 40})
    assert notes(collect(study)) == ["NOTE: stages ran from 2 commits: 0123456789ab, ffffffffffff."]


def test_a_resumed_training_says_what_its_seconds_are(
    study: Path, put: Callable[..., None]
) -> None:
    put("arms/pilot/seed-42/train", GPU | {"training_seconds": 9.0, "resumed_from_step": 8})
    assert notes(collect(study)) == [
        "Resumed, so that its seconds are those of the last process only: arms/pilot/seed-42/train (step 8)."
    ]


def test_a_baseline_that_was_taken_over_has_the_seconds_of_the_study_that_sampled_it(
    study: Path, put: Callable[..., None]
) -> None:
    earlier = GPU | {"generation_seconds": 77.0, "seconds": 99.0}
    put(
        "policies/baseline/retention",
        LIGHT | {"adopted": {"study": "earlier", "manifest": "0" * 64, "provenance": earlier}},
    )
    put(
        "policies/baseline/agent-dev",
        LIGHT | {"adopted": {"study": "earlier", "manifest": "0" * 64, "provenance": None}},
    )
    found = collect(study)
    seconds = pilot_rows.rows(render(found), "Seconds")
    assert seconds["generation seconds, retention"] == ["77.0", "1234.5"]
    assert seconds["generation seconds, agent-dev"] == ["", "1234.5"]
    assert "policies/baseline/retention: taken over from study earlier, which sampled it." in notes(
        found
    )
    assert found["policies/baseline/retention"]["seconds"] == 1.5


def test_a_stage_without_a_provenance_is_named(study: Path) -> None:
    (study / "start/provenance.json").unlink()
    found = collect(study)
    assert found["start"] == {}
    assert notes(found) == ["start: no provenance."]
    assert "start" not in pilot_rows.rows(render(found), "Stages")

"""The ledger of looks: once per job, under a lock, and a warning where a choice may have followed a look."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.evidence.ledger import LedgerError, looks, record, sentences

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def look(
    ledger: Path,
    policy: str = "pilot/seed-1",
    study: str = "demo",
    split: str = "s1",
    model: str = "m1",
    manifest: str = "e1",
) -> bool:
    return record(ledger, study, policy, split=split, model=model, manifest=manifest)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "results" / "ledger.jsonl"


def test_a_look_is_recorded_once(ledger: Path) -> None:
    assert look(ledger)
    assert not look(ledger), "the same job again is the same look"
    (found,) = looks(ledger, "s1")
    assert (found["study"], found["policy"], found["arm"], found["split"]) == (
        "demo",
        "pilot/seed-1",
        "pilot",
        "s1",
    )
    assert set(found) == {
        "study",
        "policy",
        "arm",
        "split",
        "model",
        "evaluation",
        "commit",
        "time",
    }


@pytest.mark.parametrize(
    "change", [{"policy": "pilot/seed-2"}, {"study": "other"}, {"model": "m2"}, {"manifest": "e2"}]
)
def test_anything_else_is_another_look(ledger: Path, change: dict[str, str]) -> None:
    look(ledger)
    assert look(ledger, **change)
    assert len(looks(ledger, "s1")) == 2


def test_looks_are_counted_per_split(ledger: Path) -> None:
    look(ledger)
    look(ledger, split="s2")
    assert len(looks(ledger, "s1")) == len(looks(ledger, "s2")) == 1
    assert looks(ledger, "s3") == []


def test_no_ledger_means_no_look(ledger: Path) -> None:
    assert looks(ledger, "s1") == []


def test_writers_at_once_lose_nothing(ledger: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from agentrl.evidence.ledger import record\n"
        "for i in range(40): record(Path(sys.argv[1]), 'demo', f'arm/seed-{i}', split='s', model=sys.argv[2], manifest='e')"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(ledger), name], cwd=SCRIPTS)
        for name in ("a", "b", "a")
    ]
    assert [process.wait() for process in running] == [0, 0, 0]
    lines = [json.loads(line) for line in ledger.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 80, "two models, forty policies; the third writer repeated the first"


def test_a_damaged_line_is_named(ledger: Path) -> None:
    look(ledger)
    ledger.write_text(ledger.read_text(encoding="utf-8") + "{]\n", encoding="utf-8")
    with pytest.raises(LedgerError, match=r"ledger\.jsonl, line 2"):
        looks(ledger, "s1")
    with pytest.raises(LedgerError, match=r"line 2"):
        look(ledger, model="m9")


def warned(ledger: Path) -> bool:
    return any(text.startswith("WARNING") for text in sentences(looks(ledger, "s1"), "demo"))


def test_a_first_evaluation_of_every_arm_warns_of_nothing(ledger: Path) -> None:
    for policy in ("baseline", "pilot/seed-1", "pilot/seed-2", "placebo/seed-1"):
        look(ledger, policy)
    assert not warned(ledger)
    assert "4 times, 3 of them for candidates" in sentences(looks(ledger, "s1"), "demo")[0]


def test_a_retrained_arm_warns(ledger: Path) -> None:
    look(ledger)
    look(ledger, model="m2")
    assert warned(ledger)
    assert any("1 earlier versions" in text for text in sentences(looks(ledger, "s1"), "demo"))


def test_candidates_of_another_study_warn_but_its_baseline_does_not(ledger: Path) -> None:
    look(ledger)
    look(ledger, "baseline", study="earlier")
    assert not warned(ledger)
    look(ledger, study="earlier")
    assert warned(ledger)
    assert any("earlier" in text for text in sentences(looks(ledger, "s1"), "demo"))

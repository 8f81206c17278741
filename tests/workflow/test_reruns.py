"""Reruns: every change to a finished study plans exactly the jobs it invalidates, says why, and stages made again leave the rest valid.

Each plan is a real dry run of Snakemake (`rerun_plans.py`); what it must be stands in `rerun_expected.py`, kept by hand.
"""

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import rerun_changes
import rerun_configs
from micro_study import snakemake
from raw_studies import DEMO_RAW
from rerun_bases import Bases
from rerun_edits import STUDY, append, meant, write
from rerun_expected import COMMANDS, LATE, UNDECIDED, first_jobs, reads, wave
from rerun_plans import CONFIGS, Plan, Planner, planners
from rerun_studies import CHOSEN, DEMO, MICRO, MICRO_RAW, Change

from agentrl.evidence.hashing import sha256

pytestmark = pytest.mark.heavy
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def plans() -> Iterator[Planner]:
    with planners(1) as (running,):
        yield running


@pytest.fixture(scope="module")
def bases(micro: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bases]:
    with planners() as running:
        yield Bases(micro, tmp_path_factory.mktemp("reruns"), running)


@pytest.fixture(scope="module")
def imported() -> dict[str, list[str]]:
    return rerun_changes.imports()


@pytest.fixture
def own(micro: Path, tmp_path: Path) -> Path:
    """A private copy of the finished study, Snakemake's metadata included."""
    return Path(shutil.copytree(micro, tmp_path / "own", symlinks=True))


def wrong(bases: Bases, changes: Iterable[Change]) -> dict[str, dict[str, list[str]]]:
    """Change -> jobs that were not planned although they must be, and jobs planned for nothing."""
    found = {}
    for change, plan in bases.plans(changes):
        planned = plan.jobs.keys()
        if planned != change.expected:
            found[change.name] = {
                "missing": sorted(change.expected - planned),
                "for nothing": sorted(planned - change.expected),
            }
    return found


def test_files_time_stamps_and_folders(bases: Bases) -> None:
    assert wrong(bases, rerun_changes.files()) == {}


def test_seeds_arms_splits_and_baselines(bases: Bases) -> None:
    assert wrong(bases, rerun_configs.designs()) == {}


def test_the_choice_on_dev(bases: Bases) -> None:
    assert wrong(bases, rerun_configs.chosen()) == {}


def test_values_that_change_places_or_only_their_spelling(bases: Bases) -> None:
    assert wrong(bases, rerun_configs.combinations()) == {}


def test_every_key(bases: Bases) -> None:
    assert wrong(bases, rerun_configs.keys(MICRO_RAW, MICRO)) == {}


def test_every_key_of_the_demo_policy(bases: Bases) -> None:
    assert wrong(bases, rerun_configs.keys(DEMO_RAW, DEMO)) == {}


def test_every_source_file(bases: Bases, imported: dict[str, list[str]]) -> None:
    assert wrong(bases, rerun_changes.sources(imported)) == {}


def test_every_rule(bases: Bases) -> None:
    assert wrong(bases, rerun_changes.rules()) == {}


def test_changes_behind_gates(bases: Bases, imported: dict[str, list[str]]) -> None:
    assert wrong(bases, rerun_changes.behind_gates(imported)) == {}


def test_the_choice_on_dev_waits_for_every_gate(bases: Bases) -> None:
    """Else statistics that lie behind a gate still running would be overlooked after the choice (`rules/select.smk`)."""
    text = bases.plan(Change("", set(), {"evaluation": {"select": "dev"}})).text
    inputs = re.search(r"^checkpoint select:\n +input: (.*)$", text, re.MULTILINE)
    assert inputs, text
    gates = (
        "plan/power.json",
        "preflight/admitted/pilot.json",
        "preflight/admitted/placebo.json",
        "preflight/gpu/report.json",
    )
    assert {f"{STUDY}/{gate}" for gate in gates} <= set(inputs[1].split(", "))


def test_no_key_rule_or_late_file_is_forgotten() -> None:
    with pytest.raises(KeyError, match=r"new_section\.key: no line in KEYS"):
        first_jobs("new_section.key")
    texts = [path.read_text("utf-8") for path in (ROOT / "rules").glob("*.smk")]
    found = {
        name
        for text in texts
        for name in re.findall(r"^ *(?:rule|checkpoint) (\w+):", text, re.MULTILINE)
    }
    assert found - {"adopt_agent", "adopt_retention", "import_retention"} == COMMANDS.keys()
    assert all(
        (ROOT / "scripts" / file).is_file()
        for module, files in LATE.items()
        for file in (module, *files)
    )


# What a plan says


def reason(bases: Bases, change: Change, job: str) -> str:
    return bases.plan(change).jobs[job]


def test_a_plan_shows_the_value_before_and_after(bases: Bases) -> None:
    said = reason(bases, Change("", set(), {"reward": {"lookup": 0.2}}), "section reward")
    assert re.search(r'before: .*"lookup":0.15.* now: .*"lookup":0.2', said)


def test_a_plan_names_the_source_file_that_changed_and_no_other(bases: Bases) -> None:
    change = Change(
        "", set(), edit=lambda folder: meant(folder / "scripts/agentrl/training/grpo.py")
    )
    assert re.findall(r"[\w/]+\.py", reason(bases, change, "code_train")) == [
        "agentrl/training/grpo.py",
        "agentrl/training/grpo.py",
    ]
    assert (
        reason(bases, change, "train pilot 3")
        == f"Input files updated by another job: {STUDY}/code/train.txt"
    )


def test_a_plan_names_the_file_of_the_start_checkpoint_that_changed(bases: Bases) -> None:
    change = Change(
        "", set(), edit=lambda folder: append(folder / "tests/data/start/config.json", "\n")
    )
    assert set(re.findall(r"[\w/]+\.(?:json|safetensors)", reason(bases, change, "start"))) == {
        "config.json"
    }


def test_a_plan_that_failed_is_no_empty_plan(micro: Path, plans: Planner) -> None:
    with pytest.raises(ValueError, match="exit code 1"):
        _ = plans.plan(micro, "--config", "study=x y").jobs
    with pytest.raises(ValueError, match="neither jobs nor"):
        _ = Plan(0, "").jobs


# What runs


def test_a_config_edited_while_a_job_waits_does_not_reach_it_and_the_next_plan_notices(
    own: Path, plans: Planner
) -> None:
    """The job has started but read nothing yet, as on a node that parses config.yaml long after the plan was made."""
    waits = "from pathlib import Path as P\nimport time\nP('waits').touch()\nwhile not P('go').exists(): time.sleep(0.05)\n"
    script, config = own / "scripts/generate_tasks.py", own / "tests/micro.yaml"
    script.write_text(
        script.read_text(encoding="utf-8").replace(
            "import argparse\n", f"import argparse\n{waits}", 1
        ),
        encoding="utf-8",
    )
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "--cores",
        "1",
        "--configfile",
        *CONFIGS,
        "--",
        f"{STUDY}/tasks/dev/manifest.json",
    ]
    running = subprocess.Popen(
        command, cwd=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    while not (own / "waits").exists():
        assert running.poll() is None, running.communicate()[0]
        time.sleep(0.05)
    old = config.read_text(encoding="utf-8")
    write(config, old.replace("  seed: 7\n", "  seed: 8\n"))
    (own / "go").touch()
    said = running.communicate(timeout=120)[0]
    assert running.returncode == 0, said
    assert (
        json.loads((own / STUDY / "tasks/dev/manifest.json").read_text("utf-8"))["config"]["seed"]
        == MICRO_RAW["tasks"]["seed"]
        == 7
    )
    planned = plans.plan(own).jobs
    assert planned.keys() >= wave(first_jobs("tasks.seed"), MICRO)
    assert re.search(r'before: .*"seed":7.* now: .*"seed":8', planned["section tasks-dev"])
    write(config, old)
    assert "tasks dev" not in plans.plan(own).jobs


def test_stages_made_again_leave_the_same_manifests_and_nothing_to_do(
    own: Path, plans: Planner
) -> None:
    stages = (
        "tasks/dev", "retention", "start", "preflight", "plan", "arms/pilot/seed-3/train", "arms/pilot/seed-3/merged",
        "policies/baseline/agent-dev", "policies/pilot/seed-3/retention", "statistics",
    )  # fmt: skip
    files = [f"{STUDY}/{stage}/manifest.json" for stage in stages]
    before = {
        path: (sha256(path), path.stat().st_mtime_ns) for path in (own / name for name in files)
    }
    done = snakemake(own, "--force", "--quiet", "all", "--", *files)
    assert done.returncode == 0, done.stdout[-3000:]
    assert {path: sha256(path) for path in before} == {
        path: digest for path, (digest, _) in before.items()
    }
    assert all(path.stat().st_mtime_ns > written for path, (_, written) in before.items()), (
        "a stage did not run again"
    )
    assert plans.plan(own).jobs == {}


def test_a_file_altered_inside_a_checkpoint_is_refused_by_the_stage_that_reads_it(
    own: Path,
) -> None:
    arms = own / STUDY / "arms"
    altered = [
        arms / "pilot/seed-3/train/adapter/adapter_model.safetensors",
        arms / "placebo/seed-3/merged/model/model.safetensors",
    ]
    for path in altered:
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    targets = [
        f"{STUDY}/arms/pilot/seed-3/merged/manifest.json",
        f"{STUDY}/policies/placebo/seed-3/retention/manifest.json",
    ]
    done = snakemake(own, "--force", "--keep-going", "--", *targets)
    assert done.returncode == 1
    logs = [
        own / STUDY / "arms/pilot/seed-3/merged/log.txt",
        own / STUDY / "policies/placebo/seed-3/retention/log.txt",
    ]
    for path, log in zip(altered, logs, strict=True):
        said = log.read_text(encoding="utf-8")
        assert re.search(
            rf"^error: .*{re.escape(path.relative_to(own / STUDY).as_posix())}: changed since",
            said,
            re.MULTILINE,
        ), said


def test_the_expected_jobs_are_those_of_a_fresh_study(bases: Bases) -> None:
    """Guards the tables: a job that they do not know would be missing from every expectation."""
    for name, design in (
        ("micro", MICRO),
        ("demo", DEMO),
        ("chosen", replace(CHOSEN, chosen=UNDECIDED)),
    ):
        fresh = Change(name, set(), {"study": "fresh"}, base=name)
        assert bases.plan(fresh).jobs.keys() == reads(design).keys()

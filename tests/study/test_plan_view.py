"""A dry run reads as its stages: one line each with its reason, configuration and code only where they say what changed."""

import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import micro_study
import pytest
from snakemake_interface_logger_plugins.common import LogEvent

from agentrl.study.plan_view import PlanView, shorter, table

NEW = "Missing output files: results/x/arms/pilot/seed-3/train/manifest.json"


def seen(event: LogEvent | None, dryrun: bool = True, **fields: object) -> str | None:
    """What is printed of one record; None where it is left out."""
    record = logging.LogRecord("snakemake", logging.INFO, "", 0, "as it was", None, None)
    record.__dict__ |= {"event": event, **fields}
    return (
        record.getMessage()
        if PlanView("results/x", SimpleNamespace(dryrun=dryrun)).filter(record)
        else None
    )


def job(rule: str, reason: str = NEW, **wildcards: str) -> str | None:
    return seen(LogEvent.JOB_INFO, rule_name=rule, wildcards=wildcards, reason=reason)


def test_a_stage_is_one_line() -> None:
    assert job("train", arm="pilot", seed="3") == "train pilot 3: not made yet"
    follows = "Input files updated by another job: results/x/start/manifest.json"
    assert (
        job("train", follows, arm="pilot", seed="3")
        == "train pilot 3: follows from start/manifest.json"
    )


@pytest.mark.parametrize("rule", ["section", "code_train", "all"])
def test_small_jobs_are_left_out_unless_they_say_what_changed(rule: str) -> None:
    assert job(rule) is None
    changed = "Params have changed since last execution: Union of exclusive params before and now across all output: before: 1 now: 2"
    assert job(rule, changed) == (None if rule == "all" else f"{rule}: before: 1 now: 2")


def test_what_really_runs_is_printed_as_it_was() -> None:
    assert (
        seen(LogEvent.JOB_INFO, dryrun=False, rule_name="section", wildcards={}, reason=NEW)
        == "as it was"
    )
    assert seen(None) == "as it was"


def test_reasons_that_are_not_known_stay() -> None:
    assert shorter("Forced execution") == "Forced execution"
    assert shorter(f"{NEW}; Code has changed since last execution") == "not made yet"


def test_the_table_counts_every_job() -> None:
    assert table(
        {"train": 2, "merge": 2, "code_train": 1, "section": 7, "all": 1, "total": 13}
    ).splitlines() == [
        "    2  train",
        "    2  merge",
        "    4  stages in all, and 8 small jobs that write down configuration and code",
    ]


def plan(folder: Path, *arguments: str, whole: bool) -> str:
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "-n",
        "--cores",
        "1",
        "--configfile",
        "config.yaml",
        "tests/micro.yaml",
        *arguments,
    ]
    environment = {**os.environ, "PIPELINE_PLAN": "all" if whole else ""}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=True,
    )
    return done.stdout


def test_the_plan_of_a_study_shows_each_of_its_stages_once(tmp_path: Path) -> None:
    folder = micro_study.copy_project(tmp_path / "project")
    whole, short = plan(folder, whole=True), plan(folder, whole=False)
    stages = re.findall(r"^(?:local)?rule (?!code_|section:|all:)(\w+):$", whole, re.MULTILINE)
    assert sorted(
        re.findall(
            r"^(\w+)(?: [\w/-]+)*: not made yet$|^(\w+)(?: [\w/-]+)*: follows", short, re.MULTILINE
        )
    ) == sorted((stage, "") for stage in stages)
    assert len(stages) > 20
    assert len(short.splitlines()) < len(whole.splitlines()) / 5


def test_a_changed_setting_shows_its_values_before_and_now(micro: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(micro, tmp_path / "own", symlinks=True))
    text = plan(own, "--config", "statistics={margin: 0.1}", whole=False)
    (line,) = [
        line for line in text.splitlines() if line.startswith("section statistics: before: ")
    ]
    assert re.search(r'before: .*"margin":0\.05.* now: .*"margin":0\.1', line)
    assert "Nothing to be done" in plan(own, whole=False)

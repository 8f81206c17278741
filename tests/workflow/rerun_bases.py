"""Finished studies to change: the micro study, the same after a choice on dev, and a faked one with a warm-up; one plan per change."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import yaml
from benchmarks.planning import run as planning
from micro_study import snakemake
from rerun_plans import CONFIGS, Plan, Planner
from rerun_studies import WARMUP, Change

from agentrl.evidence.files import write_json

DEMO_CONFIGS = ("config.yaml", "profiles/demo/study.yaml")
OWN = "own.yaml"
"""What a study here configures beside the shipped files."""


class Bases:
    """Plans changes to finished studies, which stay as they are; two at a time."""

    def __init__(self, micro: Path, scratch: Path, planners: Sequence[Planner]) -> None:
        self.scratch = scratch
        self.free: SimpleQueue[Planner] = SimpleQueue()
        for planner in planners:
            self.free.put(planner)
        self.workers = len(planners)
        self.folders = {
            "micro": micro,
            "demo": demo(scratch / "demo"),
            "chosen": chosen(micro, scratch / "chosen"),
        }
        self.configs = {"micro": CONFIGS, "demo": (*DEMO_CONFIGS, OWN), "chosen": (*CONFIGS, OWN)}

    def plans(self, changes: Iterable[Change]) -> Iterator[tuple[Change, Plan]]:
        """Each change with its plan, in order."""
        listed = list(changes)
        with ThreadPoolExecutor(self.workers) as pool:
            yield from zip(listed, pool.map(self.plan, listed), strict=True)

    def plan(self, change: Change) -> Plan:
        """Make one change, plan, and throw it away."""
        planner = self.free.get()
        try:
            with self._changed(change) as (folder, configs):
                return planner.plan(folder, configs=configs, environment=change.environment)
        finally:
            self.free.put(planner)

    @contextmanager
    def _changed(self, change: Change) -> Iterator[tuple[Path, tuple[str, ...]]]:
        own = Path(tempfile.mkdtemp(prefix="own", dir=self.scratch))
        folder, configs = self.folders[change.base], self.configs[change.base]
        if change.edit is not None:
            folder = link_tree(folder, own / "project")
            other = change.edit(folder)
            folder = other if isinstance(other, Path) and other.is_dir() else folder
        if change.config is not None:
            (own / "change.yaml").write_text(
                yaml.safe_dump(dict(change.config), allow_unicode=True), encoding="utf-8"
            )
            configs = (*configs, str(own / "change.yaml"))
        yield folder, configs
        shutil.rmtree(own)


def link_tree(source: Path, target: Path) -> Path:
    """A copy whose files are the same files, so that it costs nothing; who changes one replaces it."""
    return Path(
        shutil.copytree(
            source,
            target,
            symlinks=True,
            copy_function=os.link,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    )


def demo(folder: Path) -> Path:
    """The demo study with faked stages and a warm-up, finished."""
    planning.fake_project(folder)
    write_json(folder / OWN, {"arms": {"pilot": {"warmup": WARMUP}}})
    planning.snakemake(
        folder, "--quiet", "all", "--resources", "gpu=2", configs=(*DEMO_CONFIGS, OWN)
    )
    return folder


def chosen(micro: Path, folder: Path) -> Path:
    """The micro study, finished once more after dev was told to choose the arm. Raises AssertionError if that evaluates or trains anew."""
    shutil.copytree(micro, folder, symlinks=True)
    write_json(folder / OWN, {"evaluation": {"select": "dev"}})
    done = snakemake(folder, OWN, "--show-failed-logs")
    assert done.returncode == 0, done.stdout[-3000:]
    ran = set(re.findall(r"^(?:local)?(?:rule|checkpoint) (\w+):$", done.stdout, re.MULTILINE))
    assert ran == {
        "code_select_arm",
        "section",
        "select",
        "plan",
        "statistics",
        "verify",
        "summary",
        "all",
    }, ran
    return folder

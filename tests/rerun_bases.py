"""Finished studies to change: the micro study, and a faked one that makes its own start policy; one plan per change."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from rerun_changes import Change
from rerun_plans import CONFIGS, Plan, Planner

import benchmark_planning

DEMO_CONFIGS = ("config.yaml", "profiles/demo/study.yaml")


class Bases:
    """Plans changes to finished studies, which stay as they are."""

    def __init__(self, micro: Path, scratch: Path, planner: Planner) -> None:
        self.scratch, self.planner = scratch, planner
        self.folders = {"micro": micro, "demo": demo(scratch / "demo")}
        self.configs = {"micro": CONFIGS, "demo": DEMO_CONFIGS}

    def plan(self, change: Change) -> Plan:
        """Make one change, plan, and throw it away."""
        with self._changed(change) as (folder, configs):
            return self.planner.plan(folder, configs=configs)

    @contextmanager
    def _changed(self, change: Change) -> Iterator[tuple[Path, tuple[str, ...]]]:
        own = self.scratch / "own"
        folder, configs = self.folders[change.base], self.configs[change.base]
        if change.edit is not None:
            folder = link_tree(folder, own / "project")
            other = change.edit(folder)
            folder = other if isinstance(other, Path) and other.is_dir() else folder
        if change.config is not None:
            own.mkdir(exist_ok=True)
            (own / "change.yaml").write_text(yaml.safe_dump(dict(change.config), allow_unicode=True), encoding="utf-8")
            configs = (*configs, str(own / "change.yaml"))
        yield folder, configs
        shutil.rmtree(own, ignore_errors=True)


def link_tree(source: Path, target: Path) -> Path:
    """A copy whose files are the same files, so that it costs nothing; who changes one replaces it."""
    return Path(shutil.copytree(source, target, symlinks=True, copy_function=os.link, ignore=shutil.ignore_patterns("__pycache__")))


def demo(folder: Path) -> Path:
    """The demo study with faked stages, finished."""
    benchmark_planning.fake_project(folder)
    benchmark_planning.snakemake(folder, "--quiet", "all", "--resources", "gpu=2", configs=DEMO_CONFIGS)
    return folder

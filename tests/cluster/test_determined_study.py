"""The real DAG as Determined commands, and the plugin as an installed package."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import micro_study
import pytest
from determined_master import Double
from determined_project import PLUGIN, Project


@pytest.mark.heavy
@pytest.mark.timeout(1800)  # two studies of a minute each, on a busy machine
def test_a_whole_study_runs_as_commands_with_the_same_summary(micro: Path, tmp_path: Path) -> None:
    folder = micro_study.copy_project(tmp_path / "study")
    with Double(tmp_path / "node") as double:
        project = Project(folder, double)
        code, output = project.run(
            "--configfile", "config.yaml", "tests/micro.yaml", "--show-failed-logs", seconds=800
        )
    assert code == 0, output[-6000:]
    rules = {
        re.fullmatch(r"snakemake (\w+) \w+", command.config["description"])[1]
        for command in double.started
    }
    assert rules == {
        "gpu_preflight",
        "preflight",
        "train",
        "merge",
        "evaluate_agent",
        "evaluate_retention",
    }
    assert {command.slots for command in double.started} == {1}
    assert not project.records()
    for name in ("summary.json", "summary.md"):
        assert (folder / "results/micro/summary" / name).read_bytes() == (
            micro / "results/micro/summary" / name
        ).read_bytes()


def test_an_editable_installation_is_a_path_that_snakemake_can_list(tmp_path: Path) -> None:
    folder = shutil.copytree(
        PLUGIN, tmp_path / "plugin", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__")
    )
    build = "import setuptools.build_meta as build; print(build.build_editable('.'))"
    subprocess.run(
        [sys.executable, "-c", build],
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        paths = {
            name: wheel.read(name).decode().strip()
            for name in wheel.namelist()
            if not name.count("/")
        }
    assert list(paths.values()) == [str(folder / "src")], paths

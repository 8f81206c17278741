"""The micro study: a copy of the project in which the real DAG runs, small."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import forked_python

ROOT = Path(__file__).resolve().parents[1]
COPIED = (
    "Snakefile",
    "rules",
    "scripts",
    "config.yaml",
    "profiles",
    "gpu",
    "envs",
    "tests/micro.yaml",
    "tests/data",
)


def snakemake(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the workflow of one copy; output and errors together."""
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "--cores",
        "2",
        "--configfile",
        "config.yaml",
        "tests/micro.yaml",
        *arguments,
    ]
    environment = {"PIPELINE_GPU_PYTHON": forked_python.interpreter(), **os.environ}
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=800,
        check=False,
    )


def copy_project(target: Path) -> Path:
    for name in COPIED:
        source, destination = ROOT / name, target / name
        destination.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            destination.symlink_to(source.readlink())
        elif source.is_dir():
            shutil.copytree(source, destination, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, destination)
    return target

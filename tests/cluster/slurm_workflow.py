"""A workflow of sleeping jobs under our own profile: what a fault test starts, looks at and kills."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from slurm_cluster import answer

ROOT = Path(__file__).resolve().parents[2]
RESULTS = "results/tiny"
HEAD = f"""\
import sys
from pathlib import Path
from snakemake.exceptions import WorkflowError
sys.path.insert(0, "scripts")
R = "{RESULTS}"
include: "rules/cluster.smk"

onstart:
    refuse_second_writers()

rule all:
    localrule: True
    input: [f"{{R}}/{{name}}" for name in NAMES]

rule begin:
    localrule: True
    output: f"{{R}}/begin"
    shell: "touch {{output}}"
"""
RULE = """
rule {name}:
    input: {input}
    output: f"{{R}}/{name}"
    resources: gpu=1, tries=lambda wildcards, attempt: attempt, {resources}
    shell: {shell!r}
"""
SECONDS = 240
"""Bound of every wait; the slowest fault, a time limit of a minute, takes half of it on a busy machine."""


class Workflow:
    """One folder with a Snakefile, our profile and a snakemake that may run in it."""

    def __init__(self, folder: Path, **rules: str | tuple[str, str]) -> None:
        self.folder, self.process = folder, None
        for name in ("scripts/agentrl", "rules/cluster.smk", "profiles/gpu"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
            copy(ROOT / name, folder / name)
        (folder / "gpu").symlink_to("profiles/gpu")
        text = f"NAMES = {list(rules)}\n{HEAD}"
        for name, given in rules.items():
            shell, resources, needs = (given, "", "begin") if isinstance(given, str) else given
            text += RULE.format(
                name=name, shell=shell, resources=resources, input=f"rules.{needs}.output"
            )
        (folder / "Snakefile").write_text(text, encoding="utf-8")
        settings(folder)

    def start(self, *arguments: str) -> None:
        """Start snakemake in a process group of its own, as a shell would."""
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                command(*arguments), cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run snakemake to its end."""
        return run(self.folder, *arguments)

    def wait(self) -> int:
        """Exit status of the snakemake that was started."""
        return self.process.wait(SECONDS)

    def signal(self, number: signal.Signals, *, group: bool) -> None:
        """Send a signal to snakemake alone, or to its process group as the keyboard does."""
        (os.killpg if group else os.kill)(self.process.pid, number)

    @property
    def log(self) -> str:
        """What the started snakemake has said."""
        return (self.folder / "log").read_text(encoding="utf-8")

    def made(self, name: str) -> str:
        """Content of an output; empty where it is not there."""
        path = self.folder / RESULTS / name
        return path.read_text(encoding="utf-8").strip() if path.exists() else ""

    def queue(self) -> dict[str, str]:
        """Rule -> Slurm's number, of this folder's jobs in the queue."""
        lines = [line.split("|") for line in answer("squeue", "-h", "-o", "%i|%k|%Z").splitlines()]
        return {
            comment.removeprefix("rule_"): number
            for number, comment, folder in lines
            if folder == str(self.folder)
        }

    def children(self) -> list[str]:
        """Names of the programs that snakemake itself has started and that still run."""
        numbers = " ".join(
            path.read_text(encoding="ascii")
            for path in Path(f"/proc/{self.process.pid}/task").glob("*/children")
        ).split()
        return [
            path.read_text(encoding="ascii").strip()
            for number in numbers
            if (path := Path(f"/proc/{number}/comm")).exists()
        ]

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition; fails with the log."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.log[-3000:]
            time.sleep(0.2)

    def seconds_until(self, words: str) -> float:
        """Seconds from the first time stamp of the log to the one before some words."""
        stamps = re.compile(r"^\[(\w{3} \w{3} +\d+ [\d:]+ \d{4})\]$", re.MULTILINE)
        told = self.log
        times = [
            datetime.strptime(found[1], "%a %b %d %H:%M:%S %Y")  # noqa: DTZ007
            for found in stamps.finditer(told[: told.rindex(words)])
        ]
        return (times[-1] - times[0]).total_seconds()


def settings(folder: Path, **changes: object) -> None:
    """Edit the variables at the top of a copied profile, as a user would: a small node, quick polling, and what a test names."""
    path = folder / "profiles/gpu/config.yaml"
    text = path.read_text(encoding="utf-8")
    for name, value in {"memory_mb": 600, "minutes": 1, "poll_seconds": 2, **changes}.items():
        text, edited = re.subn(rf"(?m)^  {name}: \S+", f"  {name}: {value}", text)
        assert edited == 1, name
    path.write_text(text, encoding="utf-8")


def command(*arguments: str) -> list[str]:
    """The literal command of the README, under this interpreter."""
    return [sys.executable, "-m", "snakemake", "--profile", "gpu", *arguments]


def run(
    folder: Path, *arguments: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run snakemake with the profile; output and errors together."""
    env = {**os.environ, **(environment or {})}
    return subprocess.run(
        command(*arguments),
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=800,
        check=False,
        env=env,
    )

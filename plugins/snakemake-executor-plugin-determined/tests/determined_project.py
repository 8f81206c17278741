"""A tiny project and the Snakemake that runs it through the double of a Determined master."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from determined_commands import Command
from determined_master import IMAGE, TOKEN, Double

PLUGIN = Path(__file__).resolve().parents[1]
WAITING = "for i in $(seq 600); do test -e go && break; sleep 0.1; done"

SNAKEFILE = """
rule all:
    input: "done.txt"

rule work:
    output: "done.txt"
    params: word={word!r}
    resources: gpu={gpu}
    shell: "echo {{params.word}} >> runs.txt; {shell}; echo {{params.word}} > {{output}}"
"""


def until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


@dataclass
class Project:
    """A working directory with one rule, and how Snakemake is started in it."""

    folder: Path
    double: Double
    options: dict[str, object] = field(default_factory=dict)
    token: str = TOKEN

    def write(self, shell: str = "true", *, gpu: int = 1, word: str = "one") -> None:
        """The rule appends `word` to runs.txt, runs `shell`, then makes done.txt."""
        text = SNAKEFILE.format(
            shell=shell.replace("{", "{{").replace("}", "}}"), gpu=gpu, word=word
        )
        (self.folder / "Snakefile").write_text(text, encoding="utf-8")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """With a profile, as users give the settings."""
        options = {
            "master": self.double.address, "image": IMAGE, "bind-mounts": [str(self.folder)], "poll-seconds": 0.2, "grace-seconds": 1.5,
            "patience-seconds": 60,
        } | self.options  # fmt: skip
        given = {f"determined-{name}": value for name, value in options.items() if value}
        profile = {"executor": "determined", "jobs": 2, "latency-wait": 5} | given
        (self.folder / "profile").mkdir(exist_ok=True)
        (self.folder / "profile/config.yaml").write_text(json.dumps(profile), encoding="utf-8")
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("DET_")
        }
        return subprocess.Popen(
            [sys.executable, "-m", "snakemake", "--profile", "profile", *arguments], cwd=self.folder, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment | {"DET_USER_TOKEN": self.token, "PYTHONPATH": str(PLUGIN / "src"), "NO_PROXY": "127.0.0.1"},
        )  # fmt: skip

    def run(self, *arguments: str, seconds: float = 240) -> tuple[int, str]:
        return self.end(self.start(*arguments), seconds)

    def end(self, process: subprocess.Popen[str], seconds: float = 240) -> tuple[int, str]:
        output, _ = process.communicate(timeout=seconds)
        return process.returncode, output

    def resume(self) -> tuple[int, str]:
        """As a user does after a crash."""
        unlocked, output = self.run("--unlock")
        assert unlocked == 0, output
        return self.run("--rerun-incomplete")

    def kill(self, process: subprocess.Popen[str]) -> str:
        process.send_signal(signal.SIGKILL)
        return process.communicate(timeout=30)[0]

    def until_it_works(self, commands: int = 1) -> Command:
        """Wait until the job's shell command has begun in the so-manieth command."""
        until(lambda: len(self.runs()) >= commands)
        return self.double.started[-1]

    def until_watched(self, command: Command) -> None:
        """Wait until a Snakemake that was just started asks for this command."""
        asked = len(self.double.requests)
        until(
            lambda: any(
                path == f"/tasks/{command.id}" for _, path, _ in self.double.requests[asked:]
            )
        )

    def go(self) -> None:
        """Let WAITING end."""
        (self.folder / "go").touch()

    def runs(self) -> list[str]:
        path = self.folder / "runs.txt"
        return path.read_text(encoding="utf-8").split() if path.exists() else []

    def records(self) -> list[str]:
        return sorted(path.name for path in (self.folder / ".snakemake/determined").glob("*.json"))

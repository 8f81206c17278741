"""Many plans of `snakemake -n` in little time: one process imports Snakemake once and forks for every plan.

A plan of its own process costs 1.2 CPU seconds, three quarters of them imports; a forked one costs 0.4. The fork happens in a process with
one thread that has imported neither torch nor anything of the project, so every plan reads the rules and the library of its own folder.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

CONFIGS = ("config.yaml", "tests/micro.yaml")
_RULE = re.compile(r"^(?:local)?(?:rule|checkpoint) (\w+):$")
_NOTHING = "Nothing to be done"


@dataclass(frozen=True)
class Plan:
    """What one dry run said."""

    code: int
    text: str

    @property
    def jobs(self) -> dict[str, str]:
        """Job (rule and values of its wildcards, e.g. `train pilot 3`) -> why it would run. Raises ValueError if there is no plan."""
        if self.code:
            raise ValueError(f"no plan, exit code {self.code}:\n{self.text[-3000:]}")
        found = dict(_jobs(self.text))
        if not found and _NOTHING not in self.text:
            raise ValueError(f"neither jobs nor '{_NOTHING}':\n{self.text[-3000:]}")
        return {job: reason for job, reason in found.items() if job != "all"}


def _jobs(text: str) -> Iterator[tuple[str, str]]:
    rule, reason, wildcards = "", "", ""
    for line in [*text.splitlines(), "rule end:"]:
        if started := _RULE.match(line):
            if rule:
                yield (
                    " ".join(
                        [rule, *(part.split("=", 1)[1] for part in wildcards.split(", ") if part)]
                    ),
                    reason,
                )
            rule, reason, wildcards = started[1], "", ""
        elif line.startswith("    reason: "):
            reason = line.removeprefix("    reason: ").strip()
        elif line.startswith("    wildcards: "):
            wildcards = line.removeprefix("    wildcards: ")


class Planner:
    """The forking process; use as a context. Not safe for threads: one plan at a time."""

    def __enter__(self) -> "Planner":
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)

    def plan(
        self,
        folder: Path,
        *arguments: str,
        configs: tuple[str, ...] = CONFIGS,
        environment: Mapping[str, str] | None = None,
    ) -> Plan:
        """Dry-run the workflow of one folder, with variables of the environment on top."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        words = ["-n", "--cores", "2", "--configfile", *configs, *arguments]
        self.process.stdin.write(
            json.dumps([str(folder), words, {"PIPELINE_PLAN": "all", **(environment or {})}]) + "\n"
        )
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the planning process ended with {self.process.wait()}")
        return Plan(*json.loads(answer))


@contextmanager
def planners(number: int = 2) -> Iterator[list[Planner]]:
    """Planners for as long as the context lasts."""
    with ExitStack() as stack:
        yield [stack.enter_context(Planner()) for _ in range(number)]


def _serve() -> None:
    """Answer each line of stdin with exit code and output of its dry run."""
    from snakemake import cli

    for line in sys.stdin:
        folder, words, environment = json.loads(line)
        with tempfile.TemporaryFile() as said:
            child = os.fork()
            if child == 0:
                os.environ.update(environment)
                _dry_run(cli, folder, words, said.fileno())
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            said.seek(0)
            print(json.dumps([code, said.read().decode("utf-8", "replace")]), flush=True)


def _dry_run(cli: object, folder: str, words: list[str], said: int) -> None:
    """In the child: never returns, so that no state of the parent is cleaned up twice."""
    code = 70
    try:
        os.dup2(said, 1)
        os.dup2(said, 2)
        os.chdir(folder)
        cli.main(words)  # type: ignore[attr-defined]
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException as error:  # noqa: BLE001 - the parent gets it as the plan's text
        print(repr(error), file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve()

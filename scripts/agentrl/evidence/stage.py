"""What stands beside every output: manifest (deterministic), provenance (where, when) and status; atomic writes, locks.

`manifest.json` is the next rule's input: hashes of what a stage consumed and made, its configuration, and the facts a reader
needs. The same work twice gives the same bytes. `provenance.json` is never an input. `status.json` survives a failure.
"""

import fcntl
import json
import logging
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from agentrl.evidence.errors import StudyError
from agentrl.evidence.files import VERSION, write_json, write_text
from agentrl.evidence.hashing import hash_files, sha256
from agentrl.evidence.provenance import environment
from agentrl.evidence.sources import code_digest

_log = logging.getLogger(__name__)


@contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder; waits for a writer that still runs, e.g. after `kill -9` of snakemake.

    Waiting rather than refusing: the clean-up of a refused job could delete the running one's outputs.
    """
    path = Path(folder) / ".lock"
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _log.info("%s: another process is writing here; waiting for it to end", folder)
                fcntl.flock(stream, fcntl.LOCK_EX)
            if _still_there(
                path, stream
            ):  # a run that has published its results removes its folder, lock file included
                yield
                return


def _still_there(path: Path, stream: IO[str]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(stream.fileno()))
    except FileNotFoundError:
        return False


class Stage:
    """One running stage: its folder, its clock, and the records it leaves."""

    def __init__(self, folder: Path, command: str) -> None:
        self.folder, self.command = folder, command
        self.began, self.clock = _now(), time.monotonic()
        self.measured: dict[str, Any] = {}
        """Measurements for the provenance, e.g. tokens per second; never part of the manifest."""

    def manifest(
        self,
        inputs: Mapping[str, str | Path],
        outputs: list[str],
        config: Mapping[str, Any],
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Write `manifest.json` and `provenance.json` of a stage that has succeeded.

        Args:
            inputs: role -> file that was consumed, recorded by role and sha256 (not by path: a moved study stays the same study).
            outputs: files in the stage's folder, recorded by name and sha256.
            config: the configuration sections the stage ran with.
            facts: counts and results that follow from the outputs.
        """
        write_json(self.folder / "provenance.json", self._provenance())
        content = {
            "version": VERSION,
            "stage": self.command.removesuffix(".py"),
            "inputs": {role: sha256(path) for role, path in sorted(inputs.items())},
            "outputs": hash_files(self.folder, outputs),
            "config": config,
            **(facts or {}),
        }
        write_json(self.folder / "manifest.json", content)

    def take_over(self, manifest: Path) -> None:
        """Another run's manifest as it is, for outputs that are its outputs; the provenance is this stage's own."""
        write_json(self.folder / "provenance.json", self._provenance())
        write_text(self.folder / "manifest.json", manifest.read_text(encoding="utf-8"))

    def status(self, state: str, error: str | None = None) -> None:
        """Write `status.json`: started, failed with the error, or done."""
        record = {
            "state": state,
            "command": self.command,
            "started": self.began,
            "seconds": round(time.monotonic() - self.clock, 2),
        }
        write_json(self.folder / "status.json", record | ({"error": error} if error else {}))

    def _provenance(self) -> dict[str, Any]:
        return {
            **environment(),
            "command": self.command,
            "code": json.loads(code_digest(self.command)),
            "started": self.began,
            "ended": _now(),
            "seconds": round(time.monotonic() - self.clock, 2),
            "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            **self.measured,
        }


@contextmanager
def open_stage(folder: str | Path, command: str) -> Iterator[Stage]:
    """Run a stage under status records. Any error is recorded in `status.json` and raised on."""
    running = Stage(Path(folder), command)
    running.folder.mkdir(parents=True, exist_ok=True)
    running.status("started")
    try:
        yield running
    except BaseException as error:
        running.status("failed", "".join(traceback.format_exception_only(error)).strip())
        raise
    running.status("done")


def run_command(main: Callable[[], None]) -> None:
    """Run a command: progress on stdout; bad input ends in one line on stderr and exit code 1; a bug keeps its traceback."""
    handler = logging.StreamHandler(sys.stdout)
    logging.getLogger("agentrl").addHandler(handler)
    logging.getLogger("agentrl").setLevel(logging.INFO)
    try:
        main()
    except StudyError as error:
        sys.exit(f"error: {error}")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

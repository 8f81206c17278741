"""The executor's own record of commands, so that a restarted Snakemake finds those that still run.

Snakemake's own record of external job ids is overwritten as soon as the inner Snakemake starts. Layout under `.snakemake/determined`:

    KEY.json         ticket, command id, fingerprint of the job; written before submission, without the id
    KEY.lock         locked by the Snakemake that watches the job
    TICKET/run.sh    what the command runs
    TICKET/alive     touched by the command while it runs
    TICKET/claimed   made by the command that runs the job; a second one of the same ticket finds it and leaves
    TICKET/exit      its exit code, written last
    KEY.log          end of the log of the job's last failed command

KEY is what a job makes, the fingerprint what it is made from: by them a restarted Snakemake knows which job is which.
A ticket belongs to one submission: a late writer of an earlier one cannot leave its exit code with a later one.
"""

import fcntl
import hashlib
import json
import os
import shutil
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface


@dataclass
class Entry:
    """One submitted (or about to be submitted) job."""

    key: str
    ticket: str
    fingerprint: str
    root: Path
    command: str | None = None
    """Its id; None until the master's answer has arrived."""
    killed: bool = False
    """A kill was asked for and not yet confirmed."""
    lock: IO[str] | None = None

    @property
    def folder(self) -> Path:
        """Where the command leaves its signs."""
        return self.root / self.ticket

    @property
    def script(self) -> Path:
        """What the command runs."""
        return self.folder / "run.sh"

    def exit_code(self) -> int | None:
        """The job's exit code once it has ended by itself; None before, and for ever if it was killed."""
        try:
            return int((self.folder / "exit").read_text(encoding="ascii"))
        except FileNotFoundError:
            return None

    def ended_after(self, moment: Path) -> bool:
        """Whether the exit code was written after `moment`, a file on the same file system: clocks of nodes differ."""
        return (self.folder / "exit").stat().st_mtime_ns > moment.stat().st_mtime_ns

    def beat(self) -> int | None:
        """Time stamp of the last sign of life; only its change means anything, clocks of nodes differ. None: never started."""
        try:
            return (self.folder / "alive").stat().st_mtime_ns
        except FileNotFoundError:
            return None

    def beats_within(self, seconds: float) -> bool:
        """Whether a sign of life comes within so many seconds; at once False if there never was one."""
        first, deadline = self.beat(), time.monotonic() + seconds
        while first is not None and time.monotonic() < deadline:
            time.sleep(min(1.0, seconds / 10))
            if self.beat() != first:
                return True
        return False


class Registry:
    """All entries of one working directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self.started = root / f"started-{os.getpid()}"
        self.started.touch()

    def close(self) -> None:
        """Remove this process's own mark."""
        self.started.unlink(missing_ok=True)

    def earlier(self, key: str) -> Entry | None:
        """The entry that an earlier run or attempt left for a job, now locked by this process; None without one."""
        lock = self._lock(key)
        try:
            stored = json.loads((self.root / f"{key}.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            lock.close()
            return None
        return Entry(
            key,
            stored["ticket"],
            stored["fingerprint"],
            self.root,
            stored["command"],
            stored["killed"],
            lock,
        )

    def new(self, key: str, fingerprint: str) -> Entry:
        """An entry with a fresh ticket and an empty folder, not yet saved."""
        entry = Entry(key, uuid.uuid4().hex, fingerprint, self.root, lock=self._lock(key))
        entry.folder.mkdir()
        return entry

    def save(self, entry: Entry) -> None:
        """Write an entry, whole or not at all."""
        stored = {
            name: getattr(entry, name) for name in ("ticket", "fingerprint", "command", "killed")
        }
        path = self.root / f"{entry.key}.json"
        path.with_suffix(".new").write_text(json.dumps(stored), encoding="utf-8")
        os.replace(path.with_suffix(".new"), path)

    def remove(self, entry: Entry) -> None:
        """Forget an entry whose command has ended."""
        (self.root / f"{entry.key}.json").unlink(missing_ok=True)
        shutil.rmtree(entry.folder, ignore_errors=True)
        if entry.lock:
            entry.lock.close()
            entry.lock = None

    def log_path(self, entry: Entry) -> Path:
        """Where the log of the job's last failed command is kept."""
        return self.root / f"{entry.key}.log"

    def _lock(self, key: str) -> IO[str]:
        """An exclusive lock that ends with this process, however it ends.

        Raises:
            WorkflowError: Another Snakemake watches the job.
        """
        lock = (self.root / f"{key}.lock").open("a", encoding="ascii")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise WorkflowError(
                "Another Snakemake runs here and watches this job's Determined command; wait for it or stop it."
            ) from None
        return lock


def key_of(job: JobExecutorInterface) -> str:
    """The same for two jobs exactly if they make the same outputs (without outputs: the same rules with the same wildcards)."""
    made = sorted(str(path) for single in singles(job) for path in single.output)
    return digest(made or sorted(single.uuid() for single in singles(job)))[:16]


def fingerprint_of(job: JobExecutorInterface) -> str:
    """Of rules, parameters, shell commands and input files.

    A command started for another fingerprint must not be taken over: Snakemake would record the new parameters for the old outputs, and
    never make them anew.
    """
    return digest(
        [
            [single.rule.name, parameters(single), single.shellcmd, inputs(single)]
            for single in singles(job)
        ]
    )


def parameters(single: Any) -> list[str]:
    """Values with their names, as text."""
    return [*map(repr, single.params), *map(str, single.params.keys())]


def inputs(single: Any) -> list[list[Any]]:
    """Path, time stamp and size of each input that counts for reruns (not `ancient`)."""
    counted = [path for path in single.input if not getattr(path, "is_ancient", False)]
    return [[str(path), *stamp(Path(path))] for path in counted]


def stamp(path: Path) -> list[int]:
    """Modification time in nanoseconds, and size; empty for a file that is not there."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return []
    return [found.st_mtime_ns, found.st_size]


def singles(job: JobExecutorInterface) -> list[Any]:
    """The jobs of a group, or the one job."""
    return sorted(job.jobs, key=lambda single: single.uuid()) if job.is_group() else [job]


def digest(value: Any) -> str:
    """sha256 of canonical JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()

"""What Slurm knows: its partitions, its accounting, whether its nodes can see a folder, and which jobs of a study still run.

After `kill -9` of snakemake its jobs stay in the queue, and a new snakemake would submit the same rules beside them: two writers on one
output. So a run first asks for jobs that an earlier one left, and refuses by name. A run that was interrupted cancels what the executor
plugin missed: the plugin forgets its jobs for the moment in which it asks for their status.
"""

import re
import shlex
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from agentrl.evidence.errors import StudyError

SECONDS = 60
"""How long one question may take; a controller that was restarted answers within that."""
_SUBMITTED = re.compile(r"submitted with SLURM jobid (\d+) \(log: (.+)\)\.")
_FAILED = re.compile(r"SLURM-job '(\d+)' failed")
NODE_LOCAL = ("tmpfs", "ramfs", "overlay", "aufs", "squashfs")
"""File systems that no other machine mounts."""
PRIVATE = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))  # noqa: S108 (recognised, not used)


class SlurmError(StudyError, RuntimeError):
    """What Slurm says forbids a run; the message says what to do."""


class NoAnswerError(SlurmError):
    """Slurm cannot be asked. Planning may go on without; a run may not."""


@dataclass(frozen=True)
class Job:
    """A job in the queue."""

    id: str
    state: str
    """Slurm's word: PENDING, RUNNING, COMPLETING ..."""
    rule: str
    """Rule and wildcards, as the executor plugin writes them into the job's comment."""


def ask(*command: str) -> str:
    """Standard output of one of Slurm's clients. Raises `NoAnswerError` where it fails or does not answer."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    except FileNotFoundError:
        raise NoAnswerError(
            f"{command[0]} is not on PATH; load Slurm's clients (module load slurm), or run on the login node"
        ) from None
    except subprocess.TimeoutExpired:
        raise NoAnswerError(
            f"`{shlex.join(command)}` gave no answer in {SECONDS} s; is Slurm's controller up (scontrol ping)?"
        ) from None
    except subprocess.CalledProcessError as error:
        raise NoAnswerError(
            f"`{shlex.join(command)}` failed: {error.stderr.strip()}; is Slurm's controller up (scontrol ping)?"
        ) from None
    return done.stdout


def status_command() -> str:
    """How finished jobs are found: `sacct` where Slurm keeps accounts, else `squeue`; without accounts sacct never answers."""
    lines = ask("scontrol", "show", "config").splitlines()
    kinds = [
        line.partition("=")[2].strip() for line in lines if line.startswith("AccountingStorageType")
    ]
    return "squeue" if kinds in ([], ["accounting_storage/none"], ["(null)"]) else "sacct"


def remember_min_job_age() -> None:
    """Let the executor plugin ask once for a constant of the cluster, now, while the controller answers.

    Version 2.8.0 asks before each look at its jobs. With the controller away it takes no answer for zero, turns from squeue to sacct, and
    where Slurm keeps no accounts it asks sacct for ever, also once the controller is back.
    """
    import snakemake_executor_plugin_slurm as plugin  # not before: only a run on Slurm has it

    age = plugin.get_min_job_age()
    plugin.get_min_job_age = lambda: age


def check_partition(name: str) -> None:
    """Refuse a partition that Slurm does not have. Raises `SlurmError` naming those it has."""
    known = sorted(set(ask("sinfo", "--noheader", "--format=%R").split()))
    if name not in known:
        raise SlurmError(
            f"partition {name!r}: Slurm has no such partition, only {', '.join(known)}; change `partition` in profiles/gpu/config.yaml"
        )


def check_visible(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> None:
    """Refuse a working directory that only this machine has, unless it is the cluster's only node.

    Other file systems may or may not be shared: that shows only on a node, where the first GPU job then fails without a word (`blind`).
    """
    nodes = set(ask("sinfo", "--noheader", "--Node", "--format=%N").split())
    if nodes == {socket.gethostname().split(".")[0]}:
        return
    kind = filesystem(folder, mounts)
    if kind in NODE_LOCAL or any(folder.is_relative_to(path) for path in PRIVATE):
        raise SlurmError(
            f"{folder}: this machine's own folder ({kind}), which Slurm's nodes ({', '.join(sorted(nodes)[:3])} ...) do not see; "
            "move the checkout to a shared file system (home or project folder) and start there"
        )


def filesystem(folder: Path, mounts: Path) -> str:
    """Type of the file system that a folder lies on, from a table like /proc/mounts; `unknown` where the table has none."""
    found = [line.split()[1:3] for line in mounts.read_text(encoding="utf-8").splitlines()]
    above = [
        (len(point), kind)
        for point, kind in found
        if folder.is_relative_to(point.replace("\\040", " "))
    ]
    return max(above)[1] if above else "unknown"


def jobs_of(results: str, folder: Path) -> list[Job]:
    """Jobs of one study that are in the queue: submitted from `folder`, with inputs below `results`.

    Another study of the same checkout may run at the same time, so the submitted script is searched for the study's own paths.
    """
    found = []
    for line in ask("squeue", "--me", "--noheader", "--format=%i|%T|%k|%Z").splitlines():
        number, state, comment, submitted_from = line.split("|", 3)
        if (
            comment.startswith("rule_")
            and Path(submitted_from).resolve() == folder.resolve()
            and f"{results}/" in script(number)
        ):
            found.append(
                Job(number, state, comment.removeprefix("rule_").replace("_wildcards_", " "))
            )
    return found


def script(job: str) -> str:
    """The batch script of a job; empty where the job has just ended."""
    try:
        return ask("scontrol", "write", "batch_script", job, "-")
    except NoAnswerError:
        return ""


def blind(log: Path, folder: Path) -> str | None:
    """What to say about failed jobs that left no log: their nodes most likely do not see the working directory. None where all left one.

    Args:
        log: snakemake's log of the run, which names each job's own.
        folder: the working directory.
    """
    told = log.read_text(encoding="utf-8", errors="replace")
    logs = dict(_SUBMITTED.findall(told))
    silent = [
        number
        for number in _FAILED.findall(told)
        if number in logs and not Path(logs[number]).exists()
    ]
    if not silent:
        return None
    return (
        f"Slurm jobs {', '.join(silent)} failed without writing a line: their nodes most likely do not see {folder} "
        f"(srun ls {folder} would tell); move the checkout to a file system that nodes and this machine share"
    )


def refuse_orphans(results: str, folder: Path) -> None:
    """Refuse to start beside jobs that an earlier snakemake left. Raises `SlurmError` naming them."""
    if left := jobs_of(results, folder):
        named = ", ".join(f"{job.id} ({job.rule}, {job.state})" for job in left)
        numbers = [job.id for job in left]
        raise SlurmError(
            f"Slurm still has jobs of {results} from an earlier snakemake: {named}. A second writer beside them would spoil their outputs. "
            f"Wait until they end (squeue --jobs={','.join(numbers)}), or cancel them (scancel {' '.join(numbers)}); then start again. "
            "What they finish is kept, and a training resumes from its last checkpoint"
        )


def cancel(results: str, folder: Path) -> list[Job]:
    """Cancel what a run that has ended left in the queue; the jobs that were cancelled."""
    left = jobs_of(results, folder)
    if left:
        ask("scancel", *(job.id for job in left))
    return left

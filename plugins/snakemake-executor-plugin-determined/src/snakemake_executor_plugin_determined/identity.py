"""Which job is which, across restarts of Snakemake: a key of what it makes, a fingerprint of what it is made from."""

import hashlib
import json
from pathlib import Path
from typing import Any

from snakemake_interface_executor_plugins.jobs import JobExecutorInterface


def key(job: JobExecutorInterface) -> str:
    """The same for two jobs exactly if they make the same outputs (without outputs: the same rules with the same wildcards)."""
    made = sorted(str(path) for single in singles(job) for path in single.output)
    return digest(made or sorted(single.uuid() for single in singles(job)))[:16]


def fingerprint(job: JobExecutorInterface) -> str:
    """Of rules, parameters, shell commands and input files.

    A command started for another fingerprint must not be taken over: Snakemake would record the new parameters for the old outputs, and
    never make them anew.
    """
    return digest([[single.rule.name, parameters(single), single.shellcmd, inputs(single)] for single in singles(job)])


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

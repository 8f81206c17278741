"""Submitting one job exactly once, also when the master's answer is lost."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_executor_plugin_determined import command
from snakemake_executor_plugin_determined.client import RejectedError, patiently
from snakemake_executor_plugin_determined.registry import Entry, Registry
from snakemake_executor_plugin_determined.target import Target


def slots_of(job: JobExecutorInterface) -> int:
    """GPUs of a job: its resource `gpu`; 0 for CPU work.

    Raises:
        WorkflowError: Not a whole number, or negative.
    """
    gpus = job.resources.get("gpu", 0)
    if not isinstance(gpus, int) or gpus < 0:
        raise WorkflowError(f"Resource gpu={gpus!r} of rule {job.name}: expected a whole number of Determined slots, 0 for CPU work.")
    return gpus


def submit(
    target: Target,
    registry: Registry,
    entry: Entry,
    job: JobExecutorInterface,
    *,
    line: str,
    variables: Mapping[str, str],
    grace: float,
    logger: LoggerExecutorInterface,
) -> None:
    """Start the job's command and record its id in the entry.

    The entry is saved before the request: if this process dies, or the answer is lost, the command can be found by its ticket.

    `line` is Snakemake's command line for the job, `variables` what the workflow's `envvars:` ask for, `grace` the seconds of silence
    that count as death.

    Raises:
        RejectedError: The master refuses the configuration, with its own words.
        UnreachableError: The master stayed away.
        TokenRefusedError: The token is refused.
    """
    workdir = Path.cwd()
    config = command.configuration(
        description=f"snakemake {job.name} {entry.ticket}",
        script_path=entry.script,
        workdir=workdir,
        slots=slots_of(job),
        image=target.image,
        pool=target.pool,
        mounts=target.mounts,
        variables=target.variables | dict(variables),
    )
    entry.script.write_text(command.script(line, workdir, entry.folder, grace), encoding="utf-8")
    registry.save(entry)
    entry.command = launch(target, entry, config, logger)
    registry.save(entry)
    logger.info(f"Job {job.jobid} is Determined command {entry.command} ({config['resources']['slots']} slots).")


def launch(target: Target, entry: Entry, config: dict[str, Any], logger: LoggerExecutorInterface) -> str:
    """Id of the command, started once: before a request is repeated, the master is asked whether the lost one had arrived."""
    sent = False

    def once() -> str:
        nonlocal sent
        if sent and (found := target.master.find(entry.ticket)[entry.ticket]):
            return found[0]
        sent = True
        started, warnings = target.master.launch(config, target.workspace)
        for warning in warnings:
            logger.warning(f"Determined warns of command {started}: {warning}.")
        return started

    try:
        return patiently(once, target.patience, target.poll, logger.warning)
    except RejectedError as error:
        raise RejectedError(f"The Determined master rejects the command: {error}.", error.status) from error

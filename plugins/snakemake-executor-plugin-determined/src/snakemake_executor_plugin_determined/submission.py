"""How a job gets its command: one of an earlier Snakemake is taken over, else one is submitted, exactly once; never two."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_executor_plugin_determined.command import BEATS_PER_GRACE, configuration, script
from snakemake_executor_plugin_determined.ending import end
from snakemake_executor_plugin_determined.master import RejectedError, patiently
from snakemake_executor_plugin_determined.registry import Entry, Registry, fingerprint_of, key_of
from snakemake_executor_plugin_determined.settings import Target


def take_over(
    target: Target,
    registry: Registry,
    job: JobExecutorInterface,
    grace: float,
    logger: LoggerExecutorInterface,
) -> Entry | None:
    """The entry of an earlier command that does this very job; None if the job has to be submitted.

    A command that runs for other parameters or inputs is ended first. An exit code from before this run is no reason to skip the job:
    if Snakemake still asks for it, its outputs are not what is wanted.

    Raises:
        WorkflowError: An earlier command cannot be ended, or another Snakemake watches it.
        UnreachableError, TokenRefusedError: It cannot be told whether one runs.
    """
    entry = registry.earlier(key_of(job))
    if entry is None:
        return None
    wanted = entry.fingerprint == fingerprint_of(job) and not entry.killed
    running = runs(target, entry, grace, logger)
    if wanted and (running or (entry.exit_code() == 0 and entry.ended_after(registry.started))):
        registry.save(entry)
        logger.info(
            f"Job {job.jobid} is taken over from an earlier run as Determined command {entry.command}."
        )
        return entry
    if running:
        logger.info(
            f"Determined command {entry.command} runs for other parameters or inputs of job {job.jobid}: it is ended first."
        )
        if end(target.master, registry, [entry], grace) or entry.beats_within(
            2 * grace / BEATS_PER_GRACE
        ):
            raise WorkflowError(
                f"Determined command {entry.command} of an earlier run cannot be ended; end it, or wait until it has ended."
            )
    registry.remove(entry)
    return None


def runs(target: Target, entry: Entry, grace: float, logger: LoggerExecutorInterface) -> bool:
    """Whether a command of the entry runs: the master says so, or there are signs of life although it was restarted and says otherwise."""
    if entry.exit_code() is not None:
        return False

    def find_and_ask() -> bool:
        for command in (
            [entry.command] if entry.command else target.master.find(entry.ticket)[entry.ticket]
        ):
            entry.command = command
            state = target.master.state(command)
            if state is not None and not state.ended:
                return True
        return False

    if patiently(find_and_ask, target.patience, target.poll, logger.warning):
        return True
    return entry.exit_code() is None and entry.beats_within(grace)


def slots_of(job: JobExecutorInterface) -> int:
    """GPUs of a job: its resource `gpu`; 0 for CPU work.

    Raises:
        WorkflowError: Not a whole number, or negative.
    """
    gpus = job.resources.get("gpu", 0)
    if not isinstance(gpus, int) or gpus < 0:
        raise WorkflowError(
            f"Resource gpu={gpus!r} of rule {job.name}: expected a whole number of Determined slots, 0 for CPU work."
        )
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
    config = configuration(
        description=f"snakemake {job.name} {entry.ticket}",
        script_path=entry.script,
        workdir=workdir,
        slots=slots_of(job),
        image=target.image,
        pool=target.pool,
        mounts=target.mounts,
        variables=target.variables | dict(variables),
    )
    entry.script.write_text(script(line, workdir, entry.folder, grace), encoding="utf-8")
    registry.save(entry)
    entry.command = launch(target, entry, config, logger)
    registry.save(entry)
    logger.info(
        f"Job {job.jobid} is Determined command {entry.command} ({config['resources']['slots']} slots)."
    )


def launch(
    target: Target, entry: Entry, config: dict[str, Any], logger: LoggerExecutorInterface
) -> str:
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
        raise RejectedError(
            f"The Determined master rejects the command: {error}.", error.status
        ) from error

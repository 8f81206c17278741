"""What an earlier Snakemake, killed or stopped, left of a job: a command that still runs is taken over, never doubled."""

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_executor_plugin_determined import identity
from snakemake_executor_plugin_determined.client import patiently
from snakemake_executor_plugin_determined.command import BEATS_PER_GRACE
from snakemake_executor_plugin_determined.ending import end
from snakemake_executor_plugin_determined.registry import Entry, Registry
from snakemake_executor_plugin_determined.target import Target


def take_over(target: Target, registry: Registry, job: JobExecutorInterface, grace: float, logger: LoggerExecutorInterface) -> Entry | None:
    """The entry of an earlier command that does this very job; None if the job has to be submitted.

    A command that runs for other parameters or inputs is ended first. An exit code from before this run is no reason to skip the job:
    if Snakemake still asks for it, its outputs are not what is wanted.

    Raises:
        WorkflowError: An earlier command cannot be ended, or another Snakemake watches it.
        UnreachableError, TokenRefusedError: It cannot be told whether one runs.
    """
    entry = registry.earlier(identity.key(job))
    if entry is None:
        return None
    wanted = entry.fingerprint == identity.fingerprint(job) and not entry.killed
    running = runs(target, entry, grace, logger)
    if wanted and (running or (entry.exit_code() == 0 and entry.ended_after(registry.started))):
        registry.save(entry)
        logger.info(f"Job {job.jobid} is taken over from an earlier run as Determined command {entry.command}.")
        return entry
    if running:
        logger.info(f"Determined command {entry.command} runs for other parameters or inputs of job {job.jobid}: it is ended first.")
        if end(target.master, registry, [entry], grace) or entry.beats_within(2 * grace / BEATS_PER_GRACE):
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
        for command in [entry.command] if entry.command else target.master.find(entry.ticket)[entry.ticket]:
            entry.command = command
            state = target.master.state(command)
            if state is not None and not state.ended:
                return True
        return False

    if patiently(find_and_ask, target.patience, target.poll, logger.warning):
        return True
    return entry.exit_code() is None and entry.beats_within(grace)

"""The executor: submits jobs as commands, takes over those of an earlier run, watches them, and ends them on interrupt."""

import time
from collections.abc import AsyncGenerator
from pathlib import Path

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface

from snakemake_executor_plugin_determined.ending import Pulse, end, log_of, reason, unseen
from snakemake_executor_plugin_determined.master import Outage, TokenRefusedError, UnreachableError
from snakemake_executor_plugin_determined.registry import Entry, Registry, fingerprint_of, key_of
from snakemake_executor_plugin_determined.settings import connect
from snakemake_executor_plugin_determined.submission import submit, take_over


class Executor(RemoteExecutor):
    """One command per job."""

    def __post_init__(self) -> None:
        """Check every setting against the master before the first job.

        Raises:
            WorkflowError: The first thing that is wrong, and what to do.
        """
        self.settings = self.workflow.executor_settings
        if self.settings.poll_seconds is not None:
            self.next_seconds_between_status_checks = self.settings.poll_seconds
        self.target = connect(
            self.settings, self.next_seconds_between_status_checks, self.logger.warning
        )
        self.registry = Registry(Path(".snakemake/determined").resolve())
        self.outage = Outage(self.target.patience, self.target.poll)
        self.watched: dict[str, Entry] = {}
        """By ticket, from before submission to the end: Snakemake's own list is empty while its jobs are being looked at."""
        self.stopped = False

    def get_python_executable(self) -> str:
        """The nodes' interpreter."""
        return self.settings.python or super().get_python_executable()

    def run_job(self, job: JobExecutorInterface) -> None:
        """Take over the job's running command, or submit a new one."""
        try:
            entry = take_over(
                self.target, self.registry, job, self.settings.grace_seconds, self.logger
            ) or self.submitted(job)
        except (TokenRefusedError, UnreachableError) as error:
            self.stop(error)
        except WorkflowError as error:
            self.report_job_error(SubmittedJobInfo(job), msg=f"{error} ")
        else:
            self.watched[entry.ticket] = entry
            pulse = Pulse(self.settings.grace_seconds)
            self.report_job_submission(
                SubmittedJobInfo(job, entry.command, {"entry": entry, "pulse": pulse})
            )

    def submitted(self, job: JobExecutorInterface) -> Entry:
        """A fresh entry whose command the master has accepted; errors as `submit`."""
        entry = self.registry.new(key_of(job), fingerprint_of(job))
        self.watched[entry.ticket] = entry
        line, grace = self.format_job_exec(job), self.settings.grace_seconds
        try:
            submit(
                self.target,
                self.registry,
                entry,
                job,
                line=line,
                variables=self.envvars(),
                grace=grace,
                logger=self.logger,
            )
        except (TokenRefusedError, UnreachableError):
            raise  # it may have arrived: stays on record
        except WorkflowError:
            self.forget(entry)
            raise
        return entry

    async def check_active_jobs(
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Report jobs that ended, yield the others. The exit code on the shared file system decides; the master is asked without one."""
        for info in active_jobs:
            entry, pulse = info.aux["entry"], info.aux["pulse"]
            if pulse.feel(entry.beat()):
                self.outage.sign()
            death = None
            if entry.exit_code() is None and not self.stopped and self.outage.ask_again():
                async with self.status_rate_limiter:
                    death = self.death_of(entry, pulse)
            if (
                code := entry.exit_code()
            ) is not None:  # read again: it may have come while the master answered
                self.finish(info, code)
            elif death:
                self.fail(info, death)
            else:
                yield info

    def death_of(self, entry: Entry, pulse: Pulse) -> str | None:
        """Why a command without an exit code counts as dead; None while it may live, or cannot be asked for."""
        try:
            state = self.target.master.state(entry.command) if entry.command else None
        except UnreachableError as error:
            if self.outage.began(time.monotonic()):
                self.logger.warning(f"{error} Commands keep running, and so does this run.")
            if self.outage.too_long():
                self.stop(
                    UnreachableError(
                        f"{error} No sign of it or of any command for {self.target.patience:g} seconds."
                    )
                )
            return None
        except WorkflowError as error:
            self.stop(error)
            return None
        if self.outage.over():
            self.logger.warning("The Determined master answers again.")
        if pulse.unseen(state):
            return unseen(Path.cwd())
        return pulse.death(state)

    def finish(self, info: SubmittedJobInfo, code: int) -> None:
        """Report a job whose command left its exit code."""
        if code:
            self.fail(info, reason(code, self.get_python_executable()))
            return
        self.forget(info.aux["entry"])
        self.report_job_success(info)

    def fail(self, info: SubmittedJobInfo, why: str) -> None:
        """Report a failed job, with the end of its command's log."""
        entry = info.aux["entry"]
        log = log_of(self.target.master, entry, self.settings.log_lines)
        self.registry.log_path(entry).write_text(f"{log}\n", encoding="utf-8")
        self.logger.error(
            f"Log of Determined command {entry.command} (rule {info.job.name}), its last lines:\n{log}\n"
        )
        self.forget(entry)
        self.report_job_error(
            info,
            msg=f"Determined command {entry.command} failed: {why} ",
            aux_logs=[str(self.registry.log_path(entry))],
        )

    def forget(self, entry: Entry) -> None:
        """Drop an entry whose command has ended or never began."""
        self.watched.pop(entry.ticket, None)
        self.registry.remove(entry)

    def stop(self, error: WorkflowError) -> None:
        """End this run, once, with one error. Commands keep running and stay on record: the next run takes them over."""
        if not self.stopped:
            self.stopped = True
            if self.watched:
                self.logger.error(
                    f"{len(self.watched)} Determined commands are left running; the next start takes them over."
                )
            self.workflow.scheduler.executor_error_callback(error)

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:  # noqa: ARG002 - `watched` also has what is just being submitted
        """End every command, and say which could not be ended."""
        if self.stopped:
            return
        self.stopped = True  # no more questions from the other thread
        entries = list(self.watched.values())
        left = end(self.target.master, self.registry, entries, self.settings.grace_seconds)
        for entry in entries:
            if entry not in left:
                self.forget(entry)
        for entry in left:
            self.logger.error(
                f"Determined command {entry.command or entry.ticket} may still run: det command kill {entry.command or '...'};"
                " the next run ends it before it submits the job again."
            )

    def shutdown(self) -> None:
        """Stop watching."""
        super().shutdown()
        self.registry.close()

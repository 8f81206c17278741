"""How `snakemake -n` reads: one line per stage with its reason; small jobs are named only where they say what changed.

Snakemake prints eight lines a job, and half of the jobs write down configuration or code. Nothing is planned otherwise for it: this changes
what is printed of a dry run, and `PIPELINE_PLAN=all` prints it as Snakemake would.
"""

import logging
import re
from collections import Counter
from typing import Protocol

from snakemake_interface_logger_plugins.common import LogEvent

SWITCH = "PIPELINE_PLAN"
"""Environment variable; `all` shows the plan as Snakemake prints it."""
SMALL = re.compile(r"code_\w+|section")
"""Rules that write down configuration or code."""
TARGET = "all"
_CHANGED = re.compile("before|forced", re.IGNORECASE)
_NEW = "not made yet"
_SHORTER = (
    (re.compile(r"^Missing output files: .*$"), _NEW),
    (re.compile(r"^Input files updated by another job: (.*)$"), r"follows from \1"),
    (
        re.compile(
            r"^Params have changed since last execution: Union of exclusive params before and now across all output: "
        ),
        "",
    ),
)


class Workflow(Protocol):
    """What is asked of Snakemake's workflow."""

    @property
    def dryrun(self) -> bool:
        """Whether nothing will run."""
        ...


class PlanView(logging.Filter):
    """Rewrites the records of a dry run; as a filter of Snakemake's logger it sees each of them before any handler.

    Args:
        root: the study's folder, left out of the paths that are shown.
        workflow: Snakemake's; it says whether this is a dry run, but not yet while the rules are read.
    """

    def __init__(self, root: str, workflow: Workflow) -> None:
        super().__init__()
        self.root, self.workflow = root, workflow
        self.counted = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is printed; jobs and tables are rewritten in place."""
        event = getattr(record, "event", None)
        if event is None or not self.workflow.dryrun:
            return True
        if event == LogEvent.JOB_INFO:
            return self._job(record)
        if event == LogEvent.RUN_INFO:  # comes twice, before the jobs and after them
            again, self.counted = self.counted, True
            _say(record, table(record.__dict__["stats"]))
            return not again
        return event != LogEvent.SHELLCMD

    def _job(self, record: logging.LogRecord) -> bool:
        found = record.__dict__
        reason = found["reason"].replace(f"{self.root}/", "")
        if found["rule_name"] == TARGET or (
            SMALL.fullmatch(found["rule_name"]) and not _CHANGED.search(reason)
        ):
            return False
        job = label(found["rule_name"], found["wildcards"])
        _say(record, f"{job}: {shorter(reason)}")
        return True


def label(rule: str, wildcards: dict[str, str]) -> str:
    """A job as one reads it: `train pilot 3`."""
    return " ".join([rule, *(str(value) for value in wildcards.values())])


def shorter(reason: str) -> str:
    """Snakemake's reason without the words that every job repeats."""
    parts = []
    for part in reason.split("; "):
        for pattern, words in _SHORTER:
            part = pattern.sub(words, part)  # noqa: PLW2901 - one pattern after another
        parts.append(part)
    return _NEW if _NEW in parts else "; ".join(parts)


def table(stats: dict[str, int]) -> str:
    """Jobs by rule, small ones as one line."""
    counts = Counter(stats)
    for name in ("total", TARGET):
        counts.pop(name, None)
    small = sum(counts.pop(rule) for rule in [*counts] if SMALL.fullmatch(rule))
    lines = [f"{number:5d}  {rule}" for rule, number in counts.items()]
    lines.append(
        f"{sum(counts.values()):5d}  stages in all, and {small} small jobs that write down configuration and code"
    )
    return "\n".join([*lines, ""])


def _say(record: logging.LogRecord, text: str) -> None:
    """Let a record print as plain text: its event would choose a format of Snakemake's own."""
    record.msg, record.args = text, None
    record.__dict__["event"] = None

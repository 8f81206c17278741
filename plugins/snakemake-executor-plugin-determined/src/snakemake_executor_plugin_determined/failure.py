"""What a user reads when a command failed: why, and the end of its log."""

import time
from pathlib import Path

from snakemake_interface_common.exceptions import WorkflowError

from snakemake_executor_plugin_determined.master import Master
from snakemake_executor_plugin_determined.registry import Entry

ATTEMPTS = 3
PAUSE_SECONDS = 1.0
"""Logs travel from the node to the master on their own; a look too early finds none."""

NOT_FOUND = (126, 127)


def reason(code: int, python: str) -> str:
    """In words, for a command that left its exit code."""
    hint = f" Is {python} in the image or below a bind mount (--determined-python, --determined-bind-mounts)?" if code in NOT_FOUND else ""
    return f"its job exited with {code}.{hint}"


def unseen(folder: Path) -> str:
    """In words, for a command whose node lacks the working directory."""
    return (
        f"its node does not see {folder}, or may not write there. Give the folder to commands with --determined-bind-mounts"
        f" {folder}:{folder} (the same path inside and outside), on a file system that all nodes share."
    )


def log_of(master: Master, entry: Entry, lines: int) -> str:
    """The end of a command's log, or why there is none."""
    if entry.command is None:
        return "(no log: the command's id is unknown)"
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_SECONDS)
        try:
            found = master.log_tail(entry.command, lines)
        except WorkflowError as error:
            return f"(no log: {error})"
        if found:
            return "\n".join(found)
    return "(the log is empty)"

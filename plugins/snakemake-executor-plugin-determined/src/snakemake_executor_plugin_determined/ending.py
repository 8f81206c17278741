"""How a command ends: noticed by its silence, asked for and made sure of, and put into words for the user."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from snakemake_interface_common.exceptions import WorkflowError

from snakemake_executor_plugin_determined.command import BEATS_PER_GRACE, UNSEEN
from snakemake_executor_plugin_determined.master import (
    Master,
    State,
    TokenRefusedError,
    UnreachableError,
)
from snakemake_executor_plugin_determined.registry import Entry, Registry

KILL_SECONDS = 20.0
"""How long the end of commands that were killed is waited for."""
UNFOUND_SECONDS = 3.0
"""How long a submission that was interrupted on its way may take to show up in the master's list."""
KILL_PAUSE_SECONDS = 0.3

LOG_ATTEMPTS = 3
LOG_PAUSE_SECONDS = 1.0
"""Logs travel from the node to the master on their own; a look too early finds none."""
UNRUN = (126, 127)
"""What a shell exits with if it cannot execute or find the program."""


@dataclass
class Pulse:
    """One command's last sign of life. Times are this process's own, monotonic: clocks of nodes differ."""

    grace: float
    """Seconds of silence after which a command that the master does not call running is dead."""
    beat: int | None = None
    """Time stamp of its last touch, only compared for change."""
    last_sign: float = field(default_factory=time.monotonic)

    def feel(self, beat: int | None) -> bool:
        """Take note of the newest touch; whether it is a new one."""
        changed = beat != self.beat
        if changed:
            self.beat, self.last_sign = beat, time.monotonic()
        return changed

    def unseen(self, state: State | None) -> bool:
        """Whether the command ended because its node lacks the working directory."""
        return state is not None and state.ended and state.code == UNSEEN

    def death(self, state: State | None) -> str | None:
        """Why the command counts as dead; None while it may live. A retry must never start beside a command that still writes.

        Args:
            state: From the master; None if it does not know the command, as after its restart.
        """
        if state is not None and not state.ended:
            self.last_sign = time.monotonic()
        if time.monotonic() - self.last_sign < self.grace:
            return None
        if state is None:
            return f"the master does not know it (was it restarted?), and it gave no sign of life for {self.grace:g} seconds."
        return f"it ended without an exit code: killed, out of memory, or its node lost. The master says: {state.reason or 'nothing'}."


def end(master: Master, registry: Registry, entries: Sequence[Entry], grace: float) -> list[Entry]:
    """Kill commands and return those not known to have ended after KILL_SECONDS. All stay on record, as killed."""
    for entry in entries:
        entry.killed = True
        registry.save(entry)
    start, left, asked = time.monotonic(), list(entries), set[str]()
    while left and time.monotonic() - start < KILL_SECONDS:
        try:
            listed, elapsed = (
                master.find(*(entry.ticket for entry in left)),
                time.monotonic() - start,
            )
            left = [
                entry
                for entry in left
                if not has_ended(master, entry, listed[entry.ticket], asked, grace, elapsed)
            ]
        except UnreachableError:
            pass
        except TokenRefusedError:
            break
        if left:
            time.sleep(KILL_PAUSE_SECONDS)
    return left


def has_ended(
    master: Master, entry: Entry, listed: list[str], asked: set[str], grace: float, elapsed: float
) -> bool:
    """Whether no command of the entry is left, neither the known one nor one `listed` for its ticket; asks for each one's kill once."""
    commands = {*listed, *([entry.command] if entry.command else [])}
    if not commands:
        return elapsed > UNFOUND_SECONDS
    for command in commands - asked:
        master.kill(command)
        asked.add(command)
    states = [master.state(command) for command in commands]
    if any(state is not None and not state.ended for state in states):
        return False
    return not (None in states and entry.beats_within(2 * grace / BEATS_PER_GRACE))


def reason(code: int, python: str) -> str:
    """In words, for a command that left its exit code."""
    hint = (
        f" Is {python} in the image or below a bind mount (--determined-python, --determined-bind-mounts)?"
        if code in UNRUN
        else ""
    )
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
    for attempt in range(LOG_ATTEMPTS):
        if attempt:
            time.sleep(LOG_PAUSE_SECONDS)
        try:
            found = master.log_tail(entry.command, lines)
        except WorkflowError as error:
            return f"(no log: {error})"
        if found:
            return "\n".join(found)
    return "(the log is empty)"

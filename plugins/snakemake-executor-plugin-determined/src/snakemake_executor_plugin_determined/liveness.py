"""Whether a command without an exit code still runs, and when to ask a master that is away again."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from snakemake_executor_plugin_determined.client import pauses
from snakemake_executor_plugin_determined.command import UNSEEN
from snakemake_executor_plugin_determined.master import State


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


class Outage:
    """A master that may be away: growing pauses between questions, and an end to waiting.

    Args:
        patience: Seconds without any sign, of the master or of a command, after which waiting makes no sense.
        first_pause: Seconds between the first two questions.
    """

    def __init__(self, patience: float, first_pause: float) -> None:
        self.patience, self.first_pause = patience, first_pause
        self.last_sign = time.monotonic()
        self._next_question = 0.0
        self._pauses: Iterator[float] | None = None

    def sign(self) -> None:
        """Something lives."""
        self.last_sign = time.monotonic()

    def ask_again(self) -> bool:
        """Whether the master may be asked now."""
        return time.monotonic() >= self._next_question

    def began(self, now: float) -> bool:
        """Note a question without an answer; whether it is the outage's first."""
        first = self._pauses is None
        self._pauses = self._pauses or pauses(self.first_pause)
        self._next_question = now + next(self._pauses)
        return first

    def too_long(self) -> bool:
        """Whether to give up."""
        return time.monotonic() - self.last_sign > self.patience

    def over(self) -> bool:
        """Note an answer; whether it ended an outage."""
        ended = self._pauses is not None
        self._pauses, self._next_question = None, 0.0
        self.sign()
        return ended

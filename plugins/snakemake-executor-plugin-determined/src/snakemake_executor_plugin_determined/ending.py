"""Ending commands and making sure that they ended: a kill is asked for at once and comes true later."""

import time
from collections.abc import Sequence

from snakemake_executor_plugin_determined.client import TokenRefusedError, UnreachableError
from snakemake_executor_plugin_determined.command import BEATS_PER_GRACE
from snakemake_executor_plugin_determined.master import Master
from snakemake_executor_plugin_determined.registry import Entry, Registry

SECONDS = 20.0
"""How long the end is waited for."""
UNFOUND_SECONDS = 3.0
"""How long a submission that was interrupted on its way may take to show up in the master's list."""
PAUSE_SECONDS = 0.3


def end(master: Master, registry: Registry, entries: Sequence[Entry], grace: float) -> list[Entry]:
    """Kill commands and return those not known to have ended after SECONDS. All stay on record, as killed."""
    for entry in entries:
        entry.killed = True
        registry.save(entry)
    start, left, asked = time.monotonic(), list(entries), set[str]()
    while left and time.monotonic() - start < SECONDS:
        try:
            listed, elapsed = master.find(*(entry.ticket for entry in left)), time.monotonic() - start
            left = [entry for entry in left if not has_ended(master, entry, listed[entry.ticket], asked, grace, elapsed)]
        except UnreachableError:
            pass
        except TokenRefusedError:
            break
        if left:
            time.sleep(PAUSE_SECONDS)
    return left


def has_ended(master: Master, entry: Entry, listed: list[str], asked: set[str], grace: float, elapsed: float) -> bool:
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

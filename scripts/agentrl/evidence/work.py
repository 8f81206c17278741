"""The work folder of a resumable stage: locked, keyed by what the stage consumes, never a declared output.

Snakemake deletes the declared outputs of a failed job; what a killed job had reached lives here instead. A folder made for other inputs
is refused: resuming it would mix two experiments.
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from agentrl.evidence.errors import StudyError
from agentrl.evidence.files import read_json, write_json
from agentrl.evidence.hashing import sha256
from agentrl.evidence.sources import code_digest
from agentrl.evidence.stage import locked

KEY = "key.json"


class WorkError(StudyError, ValueError):
    """The work folder belongs to another freeze."""


class WorkFolder:
    """Locked work folder of one run.

    Args:
        path: parent folder; the run works in a subfolder named by its key, so that another configuration starts afresh beside it.
        inputs: freeze and section files that decide what the run is.
        seed: training seed.
        command: whose code the run executes.
        facts: what else must not change between a run and its resumption, e.g. the engine that samples.
    """

    def __init__(
        self, path: Path, inputs: Sequence[Path], seed: int, command: str, **facts: str
    ) -> None:
        self.key = {
            **{file.name: sha256(file) for file in inputs},
            "seed": seed,
            "code": code_digest(command),
            **facts,
        }
        self.path = (
            path / hashlib.sha256(json.dumps(self.key, sort_keys=True).encode()).hexdigest()[:16]
        )
        self.resumed = 0
        """Step the run was resumed from."""
        self._stack = ExitStack()

    def __enter__(self) -> "WorkFolder":
        """Wait for the lock, then check or write the key."""
        self._stack.enter_context(locked(self.path))
        if (self.path / KEY).exists():
            found = read_json(self.path / KEY)
            if found != self.key:
                wrong = sorted(
                    name for name in {*found, *self.key} if found.get(name) != self.key.get(name)
                )
                self._stack.close()
                raise WorkError(
                    f"{self.path}: work folder of another freeze ({wrong[0]}: expected {self.key.get(wrong[0])}, found "
                    f"{found.get(wrong[0])}); move it away to start anew, or restore the configuration it belongs to"
                )
        else:
            write_json(self.path / KEY, self.key)
        return self

    def __exit__(self, *_: object) -> None:
        """Release the lock."""
        self._stack.close()

    def remove(self) -> None:
        """Delete the folder after its results were published."""
        shutil.rmtree(self.path)

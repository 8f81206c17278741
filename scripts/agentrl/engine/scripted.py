"""An engine that says what it is told: demonstrations for the demo policy, and episodes of known course in tests."""

from collections.abc import Callable, Sequence
from typing import Any

from agentrl.rollout.sampler import Request, Sample

Script = Callable[[Request], list[int]]


class ScriptedEngine:
    """Samples `script(request)`, cut to the request's budget.

    Args:
        script: returns the ids of one assistant turn, stop id included.
        stop_ids: ids that end a turn; a turn without one counts as cut by the budget.
    """

    name = "scripted"

    def __init__(self, script: Script, stop_ids: frozenset[int]) -> None:
        self.script, self.stop_ids = script, stop_ids

    def describe(self) -> dict[str, Any]:
        """Name only: there is no model behind it."""
        return {"engine": self.name}

    def generate(self, requests: Sequence[Request]) -> list[Sample]:
        """Answer every request from the script."""
        return [self._sample(request) for request in requests]

    def _sample(self, request: Request) -> Sample:
        ids = self.script(request)[: request.max_tokens]
        return Sample(ids, [0.0] * len(ids), "stop" if ids[-1] in self.stop_ids else "length")

"""Take over an earlier study's evaluation of the start policy, if all that it consumed is byte for byte what this study has.

Records and manifest are then copied as they are: the hash chain of this study holds over them like over its own, and verification replays
every episode from its ids. The freeze carries the protocol, decoding, batch shape, tokenizer and upstream code, so equal bytes mean an
equal protocol. What differs is refused by name.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.evidence.difference import first_difference
from agentrl.evidence.errors import StudyError
from agentrl.evidence.files import check_files, read_json
from agentrl.evidence.hashing import sha256

RETENTION = "retention"
ORDER = ("tasks", "items", "freeze", "policy")
"""Roles as they are compared: a changed budget is better named by the freeze than by the policy that the demo made for it."""
WHAT = {
    "tasks": "the task set",
    "items": "the item set",
    "freeze": "the freeze",
    "policy": "the start policy",
}


class AdoptionError(StudyError, ValueError):
    """An earlier evaluation is not one of the same start policy under the same protocol; the message names the first difference."""


@dataclass(frozen=True)
class Earlier:
    """The baseline of an earlier study on one measure."""

    study: Path
    """`results/{study}`."""
    measure: str
    """`agent-dev`, `agent-test` or `retention`."""

    @property
    def folder(self) -> Path:
        """Where its records and manifest lie."""
        return self.study / "policies" / "baseline" / self.measure

    def consumed(self, role: str) -> Path:
        """The earlier study's own file for a role."""
        if role == "tasks":
            return self.study / "tasks" / self.measure.removeprefix("agent-") / "tasks.jsonl"
        names = {
            "items": "retention/items.jsonl",
            "freeze": f"freeze/{self.measure}.json",
            "policy": "start/manifest.json",
        }
        return self.study / names[role]

    def check(self, inputs: Mapping[str, Path]) -> list[str]:
        """Names of the records to take over.

        Args:
            inputs: role -> this study's file: `policy`, `freeze`, and `tasks` or `items`.

        Raises:
            AdoptionError: something it consumed differs from this study's.
            ManifestError: a record is missing or not the recorded one.
        """
        manifest = read_json(self.folder / "manifest.json")
        if "recorded" in manifest["inputs"]:
            own = self.folder / "recorded.json"
            raise AdoptionError(
                f"{self.folder}: was itself taken from a recorded file; set baselines.retention to a copy of {own}"
            )
        self._equal(
            "kind of evaluation",
            {"policy": "baseline", "stage": self._stage()},
            {k: manifest[k] for k in ("policy", "stage")},
        )
        for role in sorted(inputs, key=ORDER.index):
            if sha256(inputs[role]) != manifest["inputs"].get(role):
                self._explain(role, inputs[role], manifest["inputs"].get(role))
        check_files(self.folder, manifest["outputs"], self.folder / "manifest.json")
        return list(manifest["outputs"])

    def _stage(self) -> str:
        return "evaluate_retention" if self.measure == RETENTION else "evaluate_agent"

    def _equal(self, what: str, expected: Any, found: Any) -> None:
        if (place := first_difference(expected, found)) is not None:
            raise self._refusal(what, *place)

    def _refusal(self, what: str, path: str, expected: Any, found: Any) -> AdoptionError:
        key = "retention" if self.measure == RETENTION else "agent"
        where = f" at {path}" if path else ""
        return AdoptionError(
            f"{self.folder}: cannot be taken over, {what} differs{where} (expected {_short(expected)}, found {_short(found)}); "
            f"make the studies equal, or set baselines.{key} to null and evaluate the start policy anew"
        )

    def _explain(self, role: str, mine: Path, recorded: str | None) -> None:
        """Raise the refusal of one role, as precisely as the earlier study's own files allow."""
        theirs = self.consumed(role)
        if theirs.is_file() and sha256(theirs) == recorded:
            read = _lines if role in ("tasks", "items") else read_json
            expected, found = read(mine), read(theirs)
            if role == "policy":  # its files say more than the recipe that made them
                self._equal(
                    WHAT[role], {"outputs": expected["outputs"]}, {"outputs": found["outputs"]}
                )
            self._equal(WHAT[role], expected, found)
        raise self._refusal(
            f"{WHAT[role]} ({mine.name}; {theirs} is gone or changed, so no more can be told)",
            "",
            sha256(mine),
            recorded,
        )


def _lines(path: Path) -> dict[str, Any]:
    """Line number, padded so that it sorts, -> record."""
    return {
        f"line {number:05d}": json.loads(line)
        for number, line in enumerate(path.read_bytes().splitlines(), 1)
    }


def _short(value: object, limit: int = 100) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."

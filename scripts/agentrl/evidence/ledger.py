"""The ledger of looks at test splits: `results/ledger.jsonl`, outside every study, append-only, never an input of a rule.

Every evaluation on a test split leaves a line: which split (by sha256), which policy, arm, study, commit and when. Choosing an arm
after having seen its test score is the most common way to fool oneself, so the summary states how often the split was looked at.
"""

import fcntl
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentrl.evidence.errors import StudyError
from agentrl.evidence.provenance import commit

NAME = "ledger.jsonl"


class LedgerError(StudyError, ValueError):
    """The ledger cannot be read; the message names the line."""


def record(ledger: Path, study: str, policy: str, *, split: str, model: str, manifest: str) -> bool:
    """Append one look, once per job.

    Args:
        ledger: `results/ledger.jsonl`.
        study: name of the study.
        policy: `baseline` or `{arm}/seed-{seed}`.
        split: sha256 of the split's task file.
        model: sha256 of the policy's manifest, so that a retrained policy is another look.
        manifest: sha256 of the evaluation's manifest: a rerun with the same result is the same look.

    Returns:
        Whether a line was added; False where this very look is recorded already.
    """
    identity = {
        "split": split,
        "study": study,
        "policy": policy,
        "arm": policy.split("/")[0],
        "model": model,
        "evaluation": manifest,
    }
    ledger.parent.mkdir(parents=True, exist_ok=True)
    with open(ledger, "a+", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.seek(0)
        if any(_same(line, identity) for line in _parse(ledger, stream.read())):
            return False
        line = {
            **identity,
            "commit": commit(),
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        stream.write(json.dumps(line, sort_keys=True) + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    return True


def looks(ledger: Path, split: str) -> list[dict[str, Any]]:
    """Every recorded look at one split, oldest first; empty without a ledger."""
    if not ledger.is_file():
        return []
    return [
        line
        for line in _parse(ledger, ledger.read_text(encoding="utf-8"))
        if line["split"] == split
    ]


def sentences(found: list[dict[str, Any]], study: str) -> list[str]:
    """How often a split was looked at, for people; warns where a choice may have followed a look.

    Args:
        found: `looks` at the split.
        study: the study that reports; candidates of other studies count as earlier looks.
    """
    candidates = [line for line in found if line["policy"] != "baseline"]
    mine = [line for line in candidates if line["study"] == study]
    others = sorted({line["study"] for line in candidates} - {study})
    versions = len({(line["policy"], line["model"]) for line in mine}) - len(
        {line["policy"] for line in mine}
    )
    told = [
        f"This test split was looked at {len(found)} times, {len(mine)} of them for candidates of this study."
    ]
    if others:
        told.append(
            f"Candidates of other studies were seen on it before or since: {', '.join(others)}."
        )
    if versions:
        told.append(f"{versions} earlier versions of this study's candidates were seen on it.")
    if others or versions:
        told.append(
            "WARNING: an arm may have been chosen after such a look; judge it on a fresh split (another tasks.seed)."
        )
    return told


def _same(line: Mapping[str, Any], identity: Mapping[str, Any]) -> bool:
    return all(line.get(name) == value for name, value in identity.items())


def _parse(ledger: Path, text: str) -> list[dict[str, Any]]:
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or "split" not in row:
                raise ValueError("no look")
        except ValueError:
            raise LedgerError(
                f"{ledger}, line {number}: not a ledger line; restore the file from a backup, or move it away"
            ) from None
        found.append(row)
    return found

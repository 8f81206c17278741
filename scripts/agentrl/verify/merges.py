"""The gate of a merge, applied a second time: from what its audit recorded, and, where weights are asked for, weight by weight."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.evidence.files import read_json
from agentrl.verify.breaks import Findings
from agentrl.verify.evidence import read_lines
from agentrl.verify.tensors import dtypes, expected_targets, stored_dtype

LOGIT_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.5}
"""By the dtype in which the start stores its targeted weights: `merge.LOGIT_TOLERANCE`, stated a second time without torch (a test
compares)."""
CONTEXTS = 8
"""Streams on which logits are compared, as `merge.CONTEXTS` says, or all that there are."""
LOSSLESS = 0.01
"""By how much the kept share of an update may differ from 1 where nothing was rounded to fewer bits than float32."""
ROUNDING = 0.002
"""Of shares with three digits, summed elsewhere in another order."""


def check(study: Path, folder: Path, findings: Findings, weights: bool) -> None:
    """Every gate of one merge.

    Args:
        study: the study's folder.
        folder: `arms/{arm}/{seed}/merged`.
        findings: receives breaks and counts.
        weights: whether to compare start, adapter and merged weights, too (needs torch).
    """
    file = folder / "merge.json"
    with findings.reading(file):
        claims = read_json(file)
        findings.equal(
            "merge",
            folder / "manifest.json",
            "",
            "audit",
            claims,
            read_json(folder / "manifest.json")["audit"],
        )
        _counts(study, folder, claims, findings)
        _logits(study, folder, claims, findings)
        _kept(study, file, claims, findings)
        findings.counts["gates of merges"] += 1
    if weights:
        _weights(study, folder, findings)


def _lora(folder: Path) -> dict[str, Any]:
    """The LoRA that the merged run trained with."""
    return read_json(folder.parent / "train" / "manifest.json")["config"]["training"]["lora"]


def _counts(study: Path, folder: Path, claims: Mapping[str, Any], findings: Findings) -> None:
    """Exactly the targets changed, everything else is identical, and there are as many as the start has."""
    file, start = folder / "merge.json", study / "start" / "model"
    findings.equal("merge", file, "", "changed", claims["targets"], claims["changed"])
    findings.equal(
        "merge", file, "", "identical", claims["tensors"] - claims["targets"], claims["identical"]
    )
    if (expected := expected_targets(start, _lora(folder)["targets"])) is not None:
        findings.equal("merge", file, "", "targets", expected, claims["targets"])
    if stored := dtypes(start):
        findings.equal("merge", file, "", "tensors", len(stored), claims["tensors"])
    config = json.loads((start / "config.json").read_text(encoding="utf-8"))
    findings.equal(
        "merge",
        file,
        "",
        "tied_head",
        bool(config.get("tie_word_embeddings", False)),
        claims["tied_head"],
    )


def _logits(study: Path, folder: Path, claims: Mapping[str, Any], findings: Findings) -> None:
    """The logits agree, measured by the rule of the stored dtype, on as many streams as the rule asks for."""
    file = folder / "merge.json"
    stored = stored_dtype(study / "start" / "model", _lora(folder)["targets"])
    if stored is None:
        findings.notes.append(
            f"{file.relative_to(study)}: the start's dtype is the merge's own account, its weights are not here"
        )
    else:
        findings.equal("merge", file, "", "stored_dtype", stored, claims["stored_dtype"])
    allowed = LOGIT_TOLERANCE.get(stored or claims["stored_dtype"])
    findings.equal("merge", file, "", "tolerance", allowed, claims["tolerance"])
    gap = claims["largest_logit_difference"]
    if allowed is None or not 0 <= gap <= allowed:
        findings.add("merge", file, "", "largest_logit_difference", f"0 to {allowed}", gap)
    episodes = sum(1 for _ in read_lines(folder.parent / "train" / "episodes.jsonl"))
    findings.equal("merge", file, "", "contexts", min(CONTEXTS, episodes), claims["contexts"])


def _kept(study: Path, file: Path, claims: Mapping[str, Any], findings: Findings) -> None:
    """Shares are shares; in float32 throughout, nothing of the update is lost."""
    kept, moved = claims["update_kept"], claims["weights_moved"]
    if not (math.isfinite(kept) and 0 <= moved <= 1):
        findings.add(
            "merge",
            file,
            "",
            "update_kept, weights_moved",
            "a finite number, a share",
            (kept, moved),
        )
    evaluated = read_json(study / "config" / "model.json")["dtype"]
    if evaluated == claims["stored_dtype"] == "float32" and abs(kept - 1) > LOSSLESS:
        findings.add(
            "merge",
            file,
            "",
            "update_kept",
            f"1 within {LOSSLESS}: float32 rounds next to nothing away",
            kept,
        )


def _weights(study: Path, folder: Path, findings: Findings) -> None:
    """The audit repeated; and every merged weight is start plus update, rounded once, which is more than any logit could show."""
    from agentrl.policy import merge  # torch and peft, only where checkpoints are asked for
    from agentrl.verify.sums import wrong_sums

    file = folder / "merge.json"
    start, adapter, merged = (
        study / "start" / "model",
        folder.parent / "train" / "adapter",
        folder / "model",
    )
    try:
        counts = merge.audit(
            start, adapter, merged, read_json(study / "config" / "model.json")["dtype"]
        )
        claims = read_json(file)
        for name, excess in wrong_sums(start, adapter, merged):
            findings.add(
                "merge",
                folder / "model",
                name,
                "weights",
                "start plus adapter, rounded once",
                f"{excess:.3g} times the rounding",
            )
    except (merge.MergeError, ValueError, OSError) as error:
        findings.add("merge", file, "", "audit", "start plus adapter", error)
        return
    for field, value in counts.items():
        if not isinstance(value, float):
            findings.equal("merge", file, "", field, value, claims[field])
        elif abs(value - claims[field]) > ROUNDING:
            findings.add("merge", file, "", field, value, claims[field])
    findings.counts["merges audited"] += 1

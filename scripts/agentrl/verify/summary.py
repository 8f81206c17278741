"""What the summary tells beyond statistics, counted here a second time: what was replayed, training facts, release; and where it ran."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from safetensors import safe_open

from agentrl.evidence.files import read_json
from agentrl.report import runs
from agentrl.verify.breaks import Findings
from agentrl.verify.evidence import Evidence, read_lines


def check_told(
    study: Path, summary: Mapping[str, Any], evidence: Evidence, findings: Findings
) -> None:
    """Calls and tokens by stage, facts of every training, and release, from this verification's own recount."""
    file = study / "summary" / "summary.json"
    stages = {stage: dict(counts) for stage, counts in findings.stages.items()}
    for stage in sorted({*stages, *summary["checked"]}):
        findings.equal(
            "summary", file, stage, "checked", stages.get(stage), summary["checked"].get(stage)
        )
    for name, told in summary["training"].items():
        facts = _trained(study / "arms" / name)
        for field, value in facts.items():
            findings.equal("summary", file, name, f"training.{field}", value, told[field])
        expected = _eligible(facts, told, evidence, name)
        findings.equal(
            "summary",
            file,
            name,
            "release.eligible",
            expected,
            summary["release"][name]["eligible"],
        )


def _trained(run: Path) -> dict[str, Any]:
    """Facts of one training, from its records and, where it still lies there, its adapter."""
    manifest = read_json(run / "train" / "manifest.json")
    settings = manifest["config"]["training"]
    steps = [row for _, row in read_lines(run / "train" / "steps.jsonl")]
    episodes = sum(1 for _ in read_lines(run / "train" / "episodes.jsonl"))
    facts = {
        "steps_with_gradient": sum(step["grad_norm"] > 0 for step in steps),
        "infrastructure_errors": settings["steps"] * settings["batch_size"] - episodes,
        "reward": manifest["config"]["arm"]["reward"],
        "merge": read_json(run / "merged" / "merge.json"),
    }
    weights = run / "train" / "adapter" / "adapter_model.safetensors"
    if weights.is_file():
        with safe_open(weights, framework="numpy") as tensors:
            facts["adapter_tensors"] = len(tensors.keys())
    return facts


def _eligible(
    facts: Mapping[str, Any], told: Mapping[str, Any], evidence: Evidence, name: str
) -> bool:
    """Whether every gate of a candidate passed: training health, merge audit, no drop of retention."""
    health = (
        facts["infrastructure_errors"] == 0
        and facts["steps_with_gradient"] > 0
        and told["mixed_groups"] > 0
    )
    moved = told["adapter_tensors"] == told["adapter_tensors_changed"]
    audit = facts["merge"]
    merged = (
        audit["changed"] == audit["targets"]
        and audit["largest_logit_difference"] <= audit["tolerance"]
    )
    before, after = (
        int(evidence.scores[policy, "retention"]["score"].sum()) for policy in ("baseline", name)
    )
    return facts["reward"] != "random" and health and moved and merged and after >= before


def check_runs(study: Path, findings: Findings) -> None:
    """runs.json says what every stage's provenance says, and runs.md is its rendering.

    A stage that ran again afterwards and gave the same bytes leaves the summary as it is, seconds included: a note, no break.
    """
    file, text = study / "summary" / runs.DATA, study / "summary" / runs.TEXT
    with findings.reading(file):
        told, found = read_json(file), runs.collect(study)
        for stage in sorted({*told, *found}):
            if _later(found.get(stage, {}), told.get(stage, {})):
                findings.notes.append(
                    f"{stage} ran again after the summary was written; summary/{runs.TEXT} tells of the run before"
                )
            else:
                findings.equal(
                    "summary", file, stage, "provenance", found.get(stage), told.get(stage)
                )
        findings.equal(
            "summary", text, "", "text", runs.render(told), text.read_text(encoding="utf-8")
        )


def _later(found: Mapping[str, Any], told: Mapping[str, Any]) -> bool:
    return (
        "ended" in found
        and "ended" in told
        and datetime.fromisoformat(found["ended"]) > datetime.fromisoformat(told["ended"])
    )

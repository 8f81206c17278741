"""The node's report, judged a second time: it is of this study's model, and what it says of the node passes the gate that it stands for.

It is a claim about a machine that is gone. That the versions, the disk and the GPU were those cannot be proven from it; that the
stages ran where it says they may is compared with their provenance, and a difference is a note: an environment that was renewed between two
stages is no forgery.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.cluster.node import MEMORY_FACTOR, SPARE_DISK
from agentrl.evidence.files import read_json
from agentrl.verify.breaks import Findings

REPORT = Path("preflight", "gpu", "report.json")
MODEL_STAGES = (
    "preflight",
    "train",
    "warm_up",
    "merge_adapter",
    "evaluate_agent",
    "evaluate_retention",
)
"""Commands that run under the interpreter that the node was judged with."""


def check(study: Path, folders: Sequence[Path], findings: Findings) -> None:
    """The report of a study in which a model ran; a study that has only planned needs none."""
    file, ran = study / REPORT, _provenances(folders)
    if not ran:
        return
    if not file.is_file():
        findings.add(
            "node",
            file,
            "",
            "file",
            "the report of the node, without which no model starts",
            "none",
        )
        return
    with findings.reading(file):
        report, section = read_json(file), read_json(study / "config" / "model.json")
        candidates = len(read_json(study / "config" / "design.json")["candidates"])
        findings.equal("node", file, "", "model", section, report["model"])
        findings.equal("node", file, "", "checkpoints", candidates, report["checkpoints"])
        _packages(file, report, findings)
        _weights(study, file, report, findings)
        needed = candidates * report["weights"] + SPARE_DISK
        if not report["free_disk"] >= needed:
            findings.add("node", file, "", "free_disk", f"at least {needed}", report["free_disk"])
        if (section["device"] == "cuda") != (report["gpu"] is not None):
            findings.add(
                "node", file, "", "gpu", f"what device {section['device']} needs", report["gpu"]
            )
        elif report["gpu"] is not None:
            _gpu(file, report, section["dtype"], findings)
        _elsewhere(study, report, ran, findings)
        findings.counts["node reports"] += 1


def _packages(file: Path, report: Mapping[str, Any], findings: Findings) -> None:
    """None is missing, and both accounts of the same process agree."""
    found = report["packages"]
    if not found or "missing" in found.values():
        findings.add(
            "node", file, "", "packages", "a version of every package that was checked", found
        )
    both = found.keys() & report["environment"]["packages"].keys()
    for name in sorted(both):
        findings.equal(
            "node",
            file,
            "",
            f"packages.{name}",
            report["environment"]["packages"][name],
            found[name],
        )


def _weights(study: Path, file: Path, report: Mapping[str, Any], findings: Findings) -> None:
    """The size of the start's weights, where they lie here; 0 is said of a start that the node had not got yet."""
    size = sum(path.stat().st_size for path in (study / "start" / "model").glob("*.safetensors"))
    if size and report["weights"] not in (0, size):
        findings.add(
            "node",
            file,
            "",
            "weights",
            f"{size} bytes (0 where they were not there yet)",
            report["weights"],
        )


def _gpu(file: Path, report: Mapping[str, Any], dtype: str, findings: Findings) -> None:
    """A GPU build, a driver for it, a GPU with the arithmetic and the memory."""
    gpu, needed = report["gpu"], MEMORY_FACTOR * report["weights"]
    recorded = report["packages"].get("torch", gpu["torch"])
    findings.equal("node", file, "", "gpu.torch", _release(recorded), _release(gpu["torch"]))
    holds = {
        "gpu.built_for": ("a GPU build of torch", gpu["built_for"] is not None),
        "gpu.driver_cuda": (
            f"a driver for CUDA {gpu['built_for']}",
            _major(gpu["driver_cuda"]) >= _major(gpu["built_for"]),
        ),
        "gpu.name": ("a GPU", gpu["name"] is not None and gpu["count"] >= 1),
        "gpu.bf16": ("BF16 arithmetic", bool(gpu["bf16"]) or dtype != "bfloat16"),
        "gpu.free": (
            f"{needed} bytes and no more than there are",
            needed <= gpu["free"] <= gpu["memory"],
        ),
    }
    for field, (expected, passed) in holds.items():
        if not passed:
            findings.add("node", file, "", field, expected, gpu[field.removeprefix("gpu.")])


def _release(version: str) -> str:
    """A version without its build (`2.11.0+cu130`): package metadata may leave it out."""
    return version.split("+")[0]


def _major(version: str | None) -> float:
    """Major version of CUDA; below every other where there is none."""
    return -math.inf if version is None else int(version.split(".")[0])


def _provenances(folders: Sequence[Path]) -> dict[Path, Mapping[str, Any]]:
    """Stage -> its provenance, of stages in which a model ran; a baseline that was taken over ran elsewhere."""
    files = [
        folder / "provenance.json" for folder in folders if (folder / "provenance.json").is_file()
    ]
    found = {file.parent: read_json(file) for file in files}
    return {
        folder: record
        for folder, record in found.items()
        if record["command"].removesuffix(".py") in MODEL_STAGES
    }


def _elsewhere(
    study: Path,
    report: Mapping[str, Any],
    ran: Mapping[Path, Mapping[str, Any]],
    findings: Findings,
) -> None:
    """Note stages that ran with other versions than the node was judged with."""
    for folder, record in ran.items():
        shared = report["packages"].keys() & record["packages"].keys()
        other = [
            f"{name} {record['packages'][name]}"
            for name in sorted(shared)
            if record["packages"][name] != report["packages"][name]
        ]
        if other:
            findings.notes.append(
                f"{folder.relative_to(study)}: ran with {', '.join(other)}, other than {REPORT} says of its node"
            )

"""The gates of training, merge and node, applied a second time to the recorded numbers.

A stage that passed its gates says so by existing; whoever forges its records would have it exist without. So every gate is applied here to
the numbers that the stage recorded, by rules written down here again and not by the stage's own code. What the weights alone could tell
is left to `--checkpoints`: that the adapter's tensors moved.

A step's loss, KL and advantages are not free of each other. Each batch is sampled by the policy that is trained on it, so every ratio is 1
and the loss is a known sum: with token-averaged losses L = -sum(A_i n_i) / N + beta KL, A_i the advantage and n_i the sampled tokens of
episode i (Shao et al. 2024, arXiv 2402.03300, with the normalisers of TRL 1.16's `GRPOTrainer._compute_loss`).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.config import LOGIT_TOLERANCE
from agentrl.health import RATIO_BOUNDS
from agentrl.manifest import read_json
from agentrl.verify.breaks import Findings
from agentrl.verify.evidence import read_lines

LOSS_TOLERANCE = 2e-5
"""Of a recorded loss: float32 sums over a batch, advantages with six decimals; 2.3e-7 was the most over 64 steps of the demo."""
KL_AT_START = 1e-6
"""Largest KL of a policy from itself, nats a token: two passes of one model, 0 wherever it was measured."""
MATRICES = 2
"""Tensors of a LoRA for one weight: A and B."""
Steps = Sequence[Mapping[str, Any]]


def check_training(run: Path, findings: Findings, weights: bool) -> None:
    """Every gate of one training run.

    Args:
        run: `arms/{arm}/seed-{seed}`.
        findings: receives breaks.
        weights: also open the adapter.
    """
    manifest, file = run / "train" / "manifest.json", run / "train" / "steps.jsonl"
    with findings.reading(file):
        recorded = read_json(manifest)
        settings = recorded["config"]["training"]
        steps = [row for _, row in read_lines(file)]
        signals = list(_signals(steps, settings["kl"]))
        _check_steps(steps, signals, file, findings)
        _check_losses(steps, run, recorded, findings)
        for field, value in _numbers(steps, signals).items():
            findings.equal("gate", manifest, "", f"gates.{field}", value, recorded["gates"][field])
        _check_adapter(run, recorded["gates"], findings, weights)
        findings.counts["gates"] += 1


def _signals(steps: Steps, kl: float) -> Iterator[bool]:
    """Step by step, whether its batch must give a gradient: a group varies, or the policy has left a reference that pulls it back."""
    moved = False
    for step in steps:
        yield step["mixed_groups"] > 0 or (moved and kl > 0)
        moved = moved or step["grad_norm"] > 0


def _check_steps(steps: Steps, signals: Sequence[bool], file: Path, findings: Findings) -> None:
    low, high = RATIO_BOUNDS
    if sum(step["mixed_groups"] for step in steps) == 0:
        findings.add("gate", file, "", "mixed_groups", "a group with reward variation", 0)
    for step, signal in zip(steps, signals, strict=True):
        record = f"line {step['step']}"
        for field in ("loss", "kl", "grad_norm"):
            if not math.isfinite(step[field]):
                findings.add("gate", file, record, field, "a finite number", step[field])
        if signal and not step["grad_norm"] > 0:
            findings.add("gate", file, record, "grad_norm", "above 0, for the batch carries a signal", step["grad_norm"])
        if step["grad_norm"] < 0:
            findings.add("gate", file, record, "grad_norm", "a norm", step["grad_norm"])
        if not low <= step["ratio_mean"] <= high:
            findings.add("gate", file, record, "ratio_mean", f"{low} to {high}", step["ratio_mean"])


def _numbers(steps: Steps, signals: Sequence[bool]) -> dict[str, Any]:
    """What the manifest's `gates` must say, as far as the step records tell."""
    ratios = sorted(step["ratio_mean"] for step in steps)
    demanded = [step["grad_norm"] for step, signal in zip(steps, signals, strict=True) if signal]
    return {
        "mixed_groups": sum(step["mixed_groups"] for step in steps),
        "steps_with_signal": len(demanded),
        "steps_with_gradient": sum(step["grad_norm"] > 0 for step in steps),
        "smallest_gradient": min(demanded, default=None),
        "ratio_mean_low": ratios[0],
        "ratio_mean_high": ratios[-1],
    }


def _check_losses(steps: Steps, run: Path, recorded: Mapping[str, Any], findings: Findings) -> None:
    """The first step's policy is its reference unless an expert warmed it up; every loss follows from advantages, loss mask and KL."""
    file, settings = run / "train" / "steps.jsonl", recorded["config"]["training"]
    if recorded["config"]["arm"]["warmup"] is None and abs(steps[0]["kl"]) > KL_AT_START:
        findings.add("gate", file, "line 1", "kl", "0, for the policy is its reference", steps[0]["kl"])
    rows = [row for _, row in read_lines(run / "train" / "episodes.jsonl")]
    size = settings["batch_size"]
    for step in steps:
        batch = rows[(step["step"] - 1) * size : step["step"] * size]
        expected = _loss(batch, step["kl"], settings, recorded["config"]["protocol"]["budget"])
        if expected is not None and not abs(step["loss"] - expected) <= LOSS_TOLERANCE * (1 + abs(expected)):
            findings.add("gate", file, f"line {step['step']}", "loss, kl", f"a loss of {expected:.6f} at this KL", step["loss"])
        findings.counts["losses recomputed"] += expected is not None


def _loss(batch: Sequence[Mapping[str, Any]], kl: float, settings: Mapping[str, Any], budget: int) -> float | None:
    """The loss of one on-policy step; None where KL enters it with weights that were not recorded (`grpo` averages by episode)."""
    tokens = [sum(length for value, length in row["loss_runs"] if value) for row in batch]
    weighted = sum(row["advantage"] * number for row, number in zip(batch, tokens, strict=True))
    if settings["loss_type"] in ("dapo", "bnpo"):
        return -weighted / sum(tokens) + settings["kl"] * kl
    if settings["loss_type"] == "dr_grpo":
        return (-weighted + settings["kl"] * kl * sum(tokens)) / (len(batch) * budget)
    return None


def _check_adapter(run: Path, gates: Mapping[str, Any], findings: Findings, weights: bool) -> None:
    """Every tensor of the adapter changed: by the manifest's count, by the merge's targets, and with `weights` by the tensors."""
    manifest = run / "train" / "manifest.json"
    findings.equal("gate", manifest, "", "gates.adapter_tensors_changed", gates["adapter_tensors"], gates["adapter_tensors_changed"])
    merged = run / "merged" / "merge.json"
    if merged.is_file():
        targets = read_json(merged)["targets"]
        findings.equal("gate", manifest, "", "gates.adapter_tensors", MATRICES * targets, gates["adapter_tensors"])
    if weights:
        _check_tensors(run / "train" / "adapter" / "adapter_model.safetensors", gates, findings)


def _check_tensors(file: Path, gates: Mapping[str, Any], findings: Findings) -> None:
    """As many tensors as recorded, all finite, and no B still 0, where every B starts."""
    import torch  # with --checkpoints only
    from safetensors import safe_open

    with findings.reading(file), safe_open(file, framework="pt") as tensors:
        names = list(tensors.keys())
        findings.equal("gate", file, "", "tensors", gates["adapter_tensors"], len(names))
        for name in names:
            tensor = tensors.get_tensor(name)
            if not torch.isfinite(tensor).all():
                findings.add("gate", file, name, "values", "finite numbers", "others among them")
            elif ".lora_B." in name and not tensor.any():
                findings.add("gate", file, name, "values", "changed from 0, where training starts", "all 0")


def check_merge(merged: Path, findings: Findings) -> None:
    """The audit of one merge, from its own numbers: the code's tolerance, not the record's word for it."""
    file = merged / "merge.json"
    with findings.reading(file):
        audit, manifest = read_json(file), merged / "manifest.json"
        findings.equal("gate", manifest, "", "audit", audit, read_json(manifest)["audit"])
        findings.equal("gate", file, "", "tolerance", LOGIT_TOLERANCE[audit["stored_dtype"]], audit["tolerance"])
        if not 0 <= audit["largest_logit_difference"] <= LOGIT_TOLERANCE[audit["stored_dtype"]]:
            expected = f"at most {LOGIT_TOLERANCE[audit['stored_dtype']]} in {audit['stored_dtype']}"
            findings.add("gate", file, "", "largest_logit_difference", expected, audit["largest_logit_difference"])
        if not audit["contexts"] > 0:
            findings.add("gate", file, "", "contexts", "at least 1", audit["contexts"])
        findings.equal("gate", file, "", "changed", audit["targets"], audit["changed"])
        findings.equal("gate", file, "", "identical", audit["tensors"] - audit["targets"], audit["identical"])
        findings.counts["gates"] += 1


def check_node(study: Path, findings: Findings) -> None:
    """The look at the node, if its report lies here: it goes with the study's device and number format."""
    file = study / "preflight" / "gpu" / "report.json"
    if not file.is_file():
        findings.notes.append("no report about the node: whether it could carry the study was looked at elsewhere, or the file was deleted")
        return
    with findings.reading(file):
        report, model = read_json(file), read_json(study / "config" / "model.json")
        gpu = report["gpu"]
        findings.equal("gate", file, "", "gpu", model["device"] == "cuda", gpu is not None)
        if gpu is not None and model["dtype"] == "bfloat16":
            findings.equal("gate", file, "", "gpu.bf16", True, gpu["bf16"])
        if gpu is not None and gpu["name"] is None:
            findings.add("gate", file, "", "gpu.name", "a GPU", None)
        findings.counts["gates"] += 1

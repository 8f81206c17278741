"""Health gates of a training run, applied a second time from its step records, and the loss against what it must have been.

Written anew on purpose: no line of `health.gates` vouches for itself. The gradient, the KL and the loss were measured on the weights, which
verification does not have; but a gradient must not be 0 where the batch carries a signal, an untrained policy is its own reference, and
on-policy the loss is a function of advantages, loss mask and KL. So no one of these numbers can be changed alone. All of a step's numbers
changed to fit together, a gradient norm made larger or smaller: that takes the weights to find.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.evidence.files import read_json
from agentrl.verify.breaks import Findings
from agentrl.verify.evidence import read_lines
from agentrl.verify.tensors import count, expected_targets, unusable

LOSS_TOLERANCE = 3e-6
"""Absolute. TRL logs the loss unrounded; advantages are recorded with six decimals (5e-7), a float32 sum over a batch of 16 x 768 tokens
adds as much. Observed: 3.3e-7 at most, four loss types, float32 and bfloat16 weights (log-probabilities are float32 under both)."""
KL_TOLERANCE = 1e-6
"""Relative, of a mean that was computed and multiplied in float32."""
FIRST_KL = {"float32": 1e-6, "bfloat16": 1e-2}
"""Largest KL of a policy that is its own reference, nats per token. Both passes are the same arithmetic: 0 exactly in the demo, and on
bfloat16 weights on a CPU. A GPU may take another kernel for the other pass: float32 then rounds exp(d) - d - 1 by 6e-8 a token; bfloat16
moves logits of magnitude 32 by 2^-9 of it, at temperature 0.6 some .12 nats, of which half the square is 7e-3."""
Records = Sequence[Mapping[str, Any]]


def check_training(study: Path, policy: str, findings: Findings, weights: bool) -> None:
    """Every gate of one training run.

    Args:
        study: the study's folder.
        policy: `{arm}/seed-{seed}`.
        findings: receives breaks and counts.
        weights: whether to read the adapter's numbers, too.
    """
    folder = study / "arms" / policy / "train"
    file = folder / "steps.jsonl"
    with findings.reading(file):
        manifest = read_json(folder / "manifest.json")
        steps = [row for _, row in read_lines(file)]
        rows = [row for _, row in read_lines(folder / "episodes.jsonl")]
        settings = manifest["config"]["training"]
        numbers = [step["step"] for step in steps]
        findings.equal("gates", file, "", "step", list(range(1, settings["steps"] + 1)), numbers)
        recounted = _gradients(file, steps, settings, findings)
        _kl(file, steps, manifest["config"], findings)
        _losses(file, steps, rows, manifest["config"], findings)
        claims = manifest["gates"]
        for name in sorted({*recounted, *claims} - {"adapter_tensors", "adapter_tensors_changed"}):
            findings.equal(
                "gates",
                folder / "manifest.json",
                "",
                f"gates.{name}",
                recounted.get(name),
                claims.get(name),
            )
        _adapter(study, folder, claims, settings["lora"]["targets"], weights, findings)
        findings.counts["gates of trainings"] += 1


def _gradients(
    file: Path, steps: Records, settings: Mapping[str, Any], findings: Findings
) -> dict[str, Any]:
    """Name what is not finite and every zero gradient where there must be one; the gates' numbers, counted anew."""
    finite, demanded, moved = 0, [], False
    for number, step in enumerate(steps, 1):
        numbers = (step["loss"], step["grad_norm"], step["kl"])
        if all(math.isfinite(value) for value in numbers):
            finite += 1
        else:
            findings.add(
                "gates", file, f"line {number}", "loss, grad_norm, kl", "finite numbers", numbers
            )
        away = moved or step["kl"] > 0  # from the reference: the KL term then has a gradient
        if step["mixed_groups"] > 0 or (settings["kl"] > 0 and away):
            demanded.append(step["grad_norm"])
            if not step["grad_norm"] > 0:  # NaN compares false
                findings.add(
                    "gates",
                    file,
                    f"line {number}",
                    "grad_norm",
                    "above 0: the batch carries a signal",
                    step["grad_norm"],
                )
        moved = moved or step["grad_norm"] > 0
    mixed = sum(step["mixed_groups"] for step in steps)
    if mixed == 0:
        findings.add(
            "gates", file, "", "mixed_groups", "at least one group whose rewards differ", 0
        )
    ratios = [step["ratio_mean"] for step in steps]
    return {
        "mixed_groups": mixed,
        "steps_finite": finite,
        "steps_with_signal": len(demanded),
        "steps_with_gradient": sum(step["grad_norm"] > 0 for step in steps),
        "smallest_gradient_with_signal": min(demanded, default=None),
        "ratio_mean_low": min(ratios, default=None),
        "ratio_mean_high": max(ratios, default=None),
    }


def _kl(file: Path, steps: Records, config: Mapping[str, Any], findings: Findings) -> None:
    """The KL is an estimate that no token makes negative, and 0 where nothing was trained yet."""
    slack = FIRST_KL[config["model"]["dtype"]]
    for number, step in enumerate(steps, 1):
        untrained = step["step"] == 1 and config["arm"]["warmup"] is None
        most = slack if untrained or config["training"]["kl"] == 0 else math.inf
        if not -slack <= step["kl"] <= most:
            expected = (
                f"0 (at most {slack}): nothing tells the policy from its reference"
                if most == slack
                else "not negative"
            )
            findings.add("gates", file, f"line {number}", "kl", expected, step["kl"])


def _losses(
    file: Path, steps: Records, rows: Records, config: Mapping[str, Any], findings: Findings
) -> None:
    """Each step's loss against its rows and its KL."""
    settings = config["training"]
    if settings.get("entropy_quantile", 1.0) < 1:
        findings.notes.append(
            f"{file.relative_to(findings.root)}: the loss leaves tokens of low entropy out, so it was not recomputed"
        )
        return
    size = settings["batch_size"]
    for number, step in enumerate(steps, 1):
        batch = rows[(step["step"] - 1) * size : step["step"] * size]
        if len(batch) != size:
            continue  # episodes that are missing are named by `evidence`
        low, high = loss_range(batch, step["kl"], settings, config["protocol"]["budget"])
        slack = LOSS_TOLERANCE + KL_TOLERANCE * settings["kl"] * abs(step["kl"])
        if not low - slack <= step["loss"] <= high + slack:
            expected = f"{low:.7f}" if low == high else f"{low:.7f} to {high:.7f}"
            why = f"{expected}, from advantages, loss mask and a KL of {step['kl']:.4g}"
            findings.add("loss", file, f"line {number}", "loss, kl", why, step["loss"])
        findings.counts["losses recomputed"] += 1


def loss_range(
    batch: Records, kl: float, settings: Mapping[str, Any], budget: int
) -> tuple[float, float]:
    """The least and the greatest loss that a step on fresh samples can have had, as TRL 1.16 normalises on one device.

    The ratio to the sampling policy is exp(0) = 1, so a token of row i contributes -A_i + beta k_t, where the recorded KL is the mean of
    k_t over all n tokens of the batch, whichever estimator is used (their values agree on-policy). `GRPOTrainer._compute_loss`:

    - `dapo`, `bnpo`: sum over tokens / n.
    - `dr_grpo`: sum over tokens / (rows x budget).
    - `grpo`: mean over rows of each row's mean. How the KL spreads over rows of different length is not recorded: its share lies between
      all of it in the longest and all of it in the shortest row.

    Args:
        batch: the step's rows, with `advantage` and `loss_runs`.
        kl: nats per token.
        settings: the training section: `kl`, `loss_type`.
        budget: TRL's `max_completion_length`.
    """
    lengths = [sum(length for value, length in row["loss_runs"] if value) for row in batch]
    advantages = [row["advantage"] for row in batch]
    tokens, penalty = max(1, sum(lengths)), settings["kl"] * kl
    weighted = sum(
        advantage * length for advantage, length in zip(advantages, lengths, strict=True)
    )
    match settings["loss_type"]:
        case "dapo" | "bnpo":
            only = penalty - weighted / tokens
            return only, only
        case "dr_grpo":
            only = (penalty * tokens - weighted) / (len(batch) * budget)
            return only, only
        case "grpo":
            kept = [length for length in lengths if length] or [1]
            reward = sum(
                advantage for advantage, length in zip(advantages, lengths, strict=True) if length
            ) / len(batch)
            bounds = [
                penalty * tokens / (len(batch) * length) - reward
                for length in (max(kept), min(kept))
            ]
            return min(bounds), max(bounds)
    raise ValueError(f"training.loss_type {settings['loss_type']!r}: no rule for its loss")


def _adapter(
    study: Path,
    folder: Path,
    claims: Mapping[str, Any],
    targets: Sequence[str],
    weights: bool,
    findings: Findings,
) -> None:
    """All of the adapter's tensors were trained: the claim is complete; with weights, no B is still 0, as it began."""
    manifest, file = folder / "manifest.json", folder / "adapter" / "adapter_model.safetensors"
    expected = expected_targets(study / "start" / "model", targets)
    if expected is None:
        name = manifest.relative_to(study)
        findings.notes.append(
            f"{name}: how many weights the adapter targets is not known without the start's weights"
        )
    else:
        findings.equal(
            "gates", manifest, "", "gates.adapter_tensors", 2 * expected, claims["adapter_tensors"]
        )
    findings.equal(
        "gates",
        manifest,
        "",
        "gates.adapter_tensors_changed",
        claims["adapter_tensors"],
        claims["adapter_tensors_changed"],
    )
    if file.is_file():
        findings.equal("gates", file, "", "tensors", claims["adapter_tensors"], count(file))
    if weights:
        for name, what in unusable(file):
            findings.add("gates", file, name, "values", "finite, and not all 0 in a B", what)

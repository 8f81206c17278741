"""Merge a LoRA adapter into a standalone checkpoint, and audit the result tensor by tensor against the start.

Merged in float32, stored in the start's own dtype: W' = W + (alpha / r) B A, rounded once. The audit reads both safetensors files anew:
every targeted weight must have changed, every other tensor must be bit-identical, and the logits of the merged model must agree with
base + adapter on contexts the policy really saw.

Rounding can lose the update itself. A bfloat16 weight of 0.02 has neighbours 1.2e-4 apart, while some steps at a learning rate of 1e-5
move it by some 1e-5: most weights round back to where they were, and the merged checkpoint is then closer to the start than to the policy
that was trained. How much survives is measured (`update_kept`) and told in the summary.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors import safe_open
from transformers import AutoModelForCausalLM, PreTrainedModel

from agentrl.evidence.errors import StudyError
from agentrl.policy.checkpoint import TOKENIZER_FILES, check_checkpoint

LOGIT_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.5}
"""Largest allowed difference of a logit. float32: rounding of two orders of summation. bfloat16: storing W' rounds each weight to
8 bits, which at Qwen3-1.7B's width moves logits of magnitude 20 by some tenths."""

CONTEXTS = 8
"""Training episodes whose streams the logits are compared on, or all where there are fewer."""


class MergeError(StudyError, RuntimeError):
    """The merged checkpoint is not the start plus the adapter; the message names the tensor."""


def merge(start: Path, adapter: Path, out: Path) -> str:
    """Write the merged checkpoint to `out`, tokenizer files copied from the start byte for byte; returns the dtype it is stored in."""
    dtype = stored_dtype(start, adapter)
    base = _load(start, torch.float32)
    merged = PeftModel.from_pretrained(base, str(adapter)).merge_and_unload(safe_merge=True)
    shutil.rmtree(out, ignore_errors=True)
    merged.to(getattr(torch, dtype)).save_pretrained(out)
    for name in TOKENIZER_FILES:
        if (start / name).is_file():
            shutil.copyfile(start / name, out / name)
    return dtype


def stored_dtype(start: Path, adapter: Path) -> str:
    """Name of the dtype in which the start stores the weights that the adapter targets. Raises `MergeError` where they differ."""
    tensors = _tensors(start)
    found = {
        str(tensors[name].get_tensor(name).dtype).removeprefix("torch.")
        for name in targeted(adapter)
        if name in tensors
    }
    if len(found) != 1 or not found <= set(LOGIT_TOLERANCE):
        raise MergeError(
            f"{start}: targeted weights are stored as {sorted(found)}, expected one of {', '.join(LOGIT_TOLERANCE)} for all"
        )
    return found.pop()


def audit(start: Path, adapter: Path, merged: Path, dtype: str) -> dict[str, Any]:
    """Compare every stored tensor of two checkpoints. Raises `MergeError` at the first that breaks the rule.

    Args:
        start: the start checkpoint.
        adapter: the trained adapter.
        merged: the merged checkpoint.
        dtype: in which both are evaluated.

    Returns:
        Counts: `tensors` stored, `changed` (all of them targets), `identical`, `targets`, whether the head is tied, and what `kept` says.
    """
    targets = targeted(adapter)
    before, after = _tensors(start), _tensors(merged)
    if set(before) != set(after):
        odd = sorted(set(before) ^ set(after))[0]
        raise MergeError(f"{merged}: tensor {odd} is stored in only one of start and merged")
    changed = 0
    for name in sorted(before):
        old, new = before[name].get_tensor(name), after[name].get_tensor(name)
        if old.dtype != new.dtype or old.shape != new.shape:
            raise MergeError(
                f"{merged}: {name} is {new.dtype} {tuple(new.shape)}, the start has {old.dtype} {tuple(old.shape)}"
            )
        same = torch.equal(old, new)
        if same == (name in targets):
            raise MergeError(
                f"{merged}: {name} {'did not change although the adapter targets it' if same else 'changed although nothing targets it'}"
            )
        if not torch.isfinite(new).all():
            raise MergeError(f"{merged}: {name} holds values that are not finite")
        changed += not same
    if missing := sorted(targets - set(before)):
        raise MergeError(f"{adapter}: targets {missing[0]}, which the start does not store")
    tied = bool(
        json.loads((start / "config.json").read_text(encoding="utf-8")).get(
            "tie_word_embeddings", False
        )
    )
    counts = {
        "tensors": len(before),
        "changed": changed,
        "identical": len(before) - changed,
        "targets": len(targets),
        "tied_head": tied,
    }
    return counts | kept(before, after, adapter, dtype)


def kept(
    before: Mapping[str, Any], after: Mapping[str, Any], adapter: Path, dtype: str
) -> dict[str, float]:
    """How much of the trained update the merged weights carry when both checkpoints are loaded in `dtype`.

    Args:
        before: stored tensors of the start (`_tensors`).
        after: stored tensors of the merged checkpoint.
        adapter: the trained adapter.
        dtype: in which both are evaluated.

    Returns:
        `update_kept`: <W' - W, U> / <U, U> over all targeted weights, U = (alpha / r) B A in float32: 1 is all of the update, 0 none.
        `weights_moved`: share of the targeted numbers that differ from the start's.
    """
    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    scale, number = config["lora_alpha"] / config["r"], getattr(torch, dtype)
    shared = norm = 0.0
    moved = total = 0
    with safe_open(adapter / "adapter_model.safetensors", framework="pt") as tensors:
        for name in sorted(targeted(adapter)):
            module = f"base_model.model.{name.removesuffix('.weight')}"
            update = (
                scale
                * tensors.get_tensor(f"{module}.lora_B.weight").float()
                @ tensors.get_tensor(f"{module}.lora_A.weight").float()
            )
            change = (
                after[name].get_tensor(name).to(number).float()
                - before[name].get_tensor(name).to(number).float()
            )
            shared, norm = (
                shared + float((change * update).sum(dtype=torch.float64)),
                norm + float((update**2).sum(dtype=torch.float64)),
            )
            moved, total = moved + int(change.count_nonzero()), total + change.numel()
    return {"update_kept": round(shared / norm, 3), "weights_moved": round(moved / total, 3)}


def targeted(adapter: Path) -> set[str]:
    """Names of the base weights that an adapter changes, from its own tensors. Raises `MergeError` on an unpaired A or B."""
    with safe_open(adapter / "adapter_model.safetensors", framework="pt") as tensors:
        names = list(tensors.keys())
    found: dict[str, set[str]] = {}
    for name in names:
        module, _, part = name.removeprefix("base_model.model.").rpartition(".lora_")
        found.setdefault(f"{module}.weight", set()).add(part)
    if odd := sorted(
        weight for weight, parts in found.items() if parts != {"A.weight", "B.weight"}
    ):
        raise MergeError(f"{adapter}: {odd[0]} has not exactly one A and one B")
    return set(found)


@torch.inference_mode()
def logit_gap(
    start: Path, adapter: Path, merged: Path, contexts: Sequence[Sequence[int]], dtype: str
) -> float:
    """Largest absolute logit difference between merged and base + adapter, over every position of real contexts; computed in float32.

    Raises `MergeError` above the tolerance of the stored dtype.
    """
    adapted = PeftModel.from_pretrained(_load(start, torch.float32), str(adapter)).eval()
    standalone = _load(merged, torch.float32).eval()
    rows = [torch.tensor([list(context)]) for context in contexts]
    gaps = [
        (adapted(input_ids=ids).logits - standalone(input_ids=ids).logits).abs().max()
        for ids in rows
    ]
    gap = float(torch.stack(gaps).max())  # torch's max keeps a NaN, Python's loses it
    if not gap <= LOGIT_TOLERANCE[dtype]:
        raise MergeError(
            f"{merged}: logits differ from base + adapter by {gap:.4g}, allowed {LOGIT_TOLERANCE[dtype]} in {dtype}"
        )
    return gap


def _load(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(
        str(folder),
        dtype=dtype,
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=False,
    )


def _tensors(folder: Path) -> dict[str, Any]:
    """Stored tensor name -> open safetensors file."""
    files = [name for name in check_checkpoint(folder) if name.endswith(".safetensors")]
    return {
        key: handle
        for name in files
        for handle in [safe_open(folder / name, framework="pt")]
        for key in handle.keys()  # noqa: SIM118
    }

"""Whether each merged weight is what adding start and adapter gives: needs torch, no model and no forward pass."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from agentrl.evidence.files import read_json

SUMS = 2
"""How often a sum in float32 is rounded that another order of summation rounds otherwise: once here, once in the merge."""


def wrong_sums(start: Path, adapter: Path, merged: Path) -> Iterator[tuple[str, float]]:
    """(weight, how many times its rounding it is off) for every targeted weight that is not W + (alpha / r) B A.

    Allowed, number by number: half an eps of the stored dtype times |W| + |U| for storing it, and on top two eps of float32 times
    |W| + r (alpha / r) |B| |A| for sums in any order.
    """
    config = read_json(adapter / "adapter_config.json")
    scale, rank = config["lora_alpha"] / config["r"], config["r"]
    single = torch.finfo(torch.float32).eps
    before, after = _tensors(start), _tensors(merged)
    with safe_open(adapter / "adapter_model.safetensors", framework="pt") as tensors:
        for name in sorted(key for key in tensors.keys() if ".lora_B." in key):  # noqa: SIM118 - no mapping
            weight = name.removeprefix("base_model.model.").replace(".lora_B.weight", ".weight")
            up, down = (
                tensors.get_tensor(key).float()
                for key in (name, name.replace(".lora_B.", ".lora_A."))
            )
            old, new = before[weight].get_tensor(weight), after[weight].get_tensor(weight)
            update = scale * (up @ down)
            storing = torch.finfo(new.dtype).eps / 2 * (old.float().abs() + update.abs())
            allowed = storing + SUMS * single * (
                old.float().abs() + rank * scale * (up.abs() @ down.abs())
            )
            excess = (
                (
                    (new.float() - old.float() - update).abs()
                    / allowed.clamp(min=torch.finfo(torch.float32).tiny)
                )
                .max()
                .item()
            )
            if not excess <= 1:  # NaN compares false
                yield weight, excess


def _tensors(folder: Path) -> dict[str, Any]:
    """Stored tensor name -> open safetensors file."""
    handles = [safe_open(file, framework="pt") for file in sorted(folder.glob("*.safetensors"))]
    return {key: handle for handle in handles for key in handle.keys()}  # noqa: SIM118 - no mapping

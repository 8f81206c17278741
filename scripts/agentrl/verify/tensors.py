"""What weight files say of themselves: names, dtypes and numbers of tensors, without torch where names are enough."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open

LAYERS = "num_hidden_layers"
DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64"}
"""Safetensors' names of them."""


def dtypes(folder: Path) -> dict[str, str]:
    """Tensor name -> dtype, from the headers of a checkpoint's weight files; empty where none lies there.

    Raises:
        ValueError: a file is damaged.
    """
    found: dict[str, str] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="numpy") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - no mapping
                    stored = tensors.get_slice(name).get_dtype()
                    found[name] = DTYPES.get(stored, stored)
        except SafetensorError as error:
            raise ValueError(f"{file.name}: damaged ({error})") from None
    return found


def count(file: Path) -> int:
    """Tensors in one file. Raises ValueError where it is damaged."""
    try:
        with safe_open(file, framework="numpy") as tensors:
            return len(list(tensors.keys()))
    except SafetensorError as error:
        raise ValueError(f"{file.name}: damaged ({error})") from None


def is_target(weight: str, targets: Sequence[str]) -> bool:
    """Whether a stored weight belongs to a module that the LoRA targets, by PEFT's rule: the module's name or its last part."""
    module = weight.removesuffix(".weight")
    return module != weight and any(
        module == target or module.endswith(f".{target}") for target in targets
    )


def expected_targets(start: Path, targets: Sequence[str]) -> int | None:
    """Weights of the start that a LoRA changes: counted by name where its weights lie there, else one of each kind in every layer.

    None where neither the weights nor the number of layers is known.
    """
    if stored := dtypes(start):
        return sum(is_target(name, targets) for name in stored)
    layers = json.loads((start / "config.json").read_text(encoding="utf-8")).get(LAYERS)
    return None if layers is None else layers * len(targets)


def stored_dtype(start: Path, targets: Sequence[str]) -> str | None:
    """In which the start stores the weights that a LoRA targets: from their headers, else as its config.json says; None if that is silent.

    Raises:
        ValueError: they are stored in several.
    """
    if stored := dtypes(start):
        found = {dtype for name, dtype in stored.items() if is_target(name, targets)}
        if len(found) != 1:
            raise ValueError(f"targeted weights are stored as {sorted(found)}, expected one dtype")
        return found.pop()
    config = json.loads((start / "config.json").read_text(encoding="utf-8"))
    return config.get("dtype", config.get("torch_dtype"))  # transformers 5, transformers 4


def unusable(adapter: Path) -> Iterator[tuple[str, str]]:
    """(tensor, what is wrong) of an adapter file: a B that is still all 0, as LoRA begins, or numbers that are not finite."""
    import torch  # only where checkpoints are asked for

    with safe_open(adapter, framework="pt") as tensors:
        for name in sorted(tensors.keys()):
            values = tensors.get_tensor(name)
            if not torch.isfinite(values).all():
                yield name, "values that are not finite"
            elif ".lora_B." in name and not values.any():
                yield name, "all 0: it was never trained"

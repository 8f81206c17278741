"""The LoRA adapter of a policy: its shape, its files, and the same bytes for the same work; one for warm-up and GRPO."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, load_peft_weights, set_peft_model_state_dict
from safetensors import safe_open
from transformers import PreTrainedModel

from agentrl.evidence.files import read_json, write_json
from agentrl.policy.settings import Lora

FOLDER = "adapter"
"""Beside the manifest of the stage that trained it."""
FILES = (f"{FOLDER}/adapter_config.json", f"{FOLDER}/adapter_model.safetensors")


BIAS = "none"
"""Biases are not trained: neither the merge nor a GPU engine would carry them to the evaluation. PEFT's default."""
INITIAL: dict[str, bool | str] = {"kaiming": True, "gaussian": "gaussian"}
"""`lora.init` -> PEFT's `init_lora_weights`."""
FIXED: dict[str, Any] = {
    # Plain LoRA, W + alpha / r * B A, on the named projections of every layer and on nothing else.
    "use_rslora": False,
    "use_dora": False,
    "use_qalora": False,
    "lora_bias": False,
    "rank_pattern": {},
    "alpha_pattern": {},
    "exclude_modules": None,
    "modules_to_save": None,
    "layers_to_transform": None,
    "layers_pattern": None,
    "layer_replication": None,
    "target_parameters": None,
    "trainable_token_indices": None,
    "ensure_weight_tying": False,
    "fan_in_fan_out": False,
}
"""Arguments of `LoraConfig` that decide what is trained -> their value in every study."""


def lora_config(lora: Lora) -> LoraConfig:
    """PEFT's form of a configured LoRA, the same for warm-up and GRPO. Nothing that enters the training is left to a default."""
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.r,
        lora_alpha=lora.alpha,
        target_modules=list(lora.targets),
        lora_dropout=lora.dropout,
        bias=BIAS,
        init_lora_weights=INITIAL[lora.init],
        **deepcopy(FIXED),
    )


def with_lora(model: PreTrainedModel, lora: Lora, seed: int) -> PeftModel:
    """Wrap for LoRA training, initialised from `seed`; merge with `merge_and_unload` afterwards."""
    torch.manual_seed(seed)
    return get_peft_model(model, lora_config(lora))


def load(model: torch.nn.Module, folder: Path) -> None:
    """Set the adapter's weights, in place."""
    set_peft_model_state_dict(model, load_peft_weights(str(folder), device="cpu"))


def save(model: torch.nn.Module, folder: Path) -> None:
    """Write the adapter so that equal work gives equal bytes: PEFT would record the start's path and its targets in set order."""
    model.save_pretrained(folder)
    config = read_json(folder / "adapter_config.json")
    write_json(
        folder / "adapter_config.json",
        {
            **config,
            "base_model_name_or_path": "start",
            "target_modules": sorted(config["target_modules"]),
        },
    )


def count(folder: Path) -> int:
    """Tensors of a saved adapter."""
    with safe_open(folder / "adapter_model.safetensors", framework="pt") as tensors:
        return len(tensors.keys())


def state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the adapter's tensors, on the CPU."""
    return {
        name: tensor.detach().cpu().clone()
        for name, tensor in model.named_parameters()
        if "lora_" in name
    }

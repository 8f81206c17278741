"""Check what trainings really ran with: the recorded arguments of TRL and of the LoRA against the configuration.

What a configuration must have become stands here a second time, on purpose: `agentrl.arguments` tells the trainer, and is not asked.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.evidence.files import read_json
from agentrl.verify.breaks import Findings

KIND = "arguments"
ADVANTAGE_EPSILON = 1e-4
"""In `replay.group_relative`, too."""

LOSS: dict[str, Any] = {
    "delta": None,
    "off_policy_mask_threshold": None,
    "use_vllm": False,
    "vllm_importance_sampling_correction": False,
    "entropy_coef": 0.0,
    "use_adaptive_entropy": False,
    "router_aux_loss_coef": 0.0,
    "label_smoothing_factor": 0.0,
    "neftune_noise_alpha": None,
    "reward_weights": [1.0],
    "multi_objective_aggregation": "sum_then_normalize",
    "sync_ref_model": False,
    "disable_dropout": False,
    "cast_lm_head_to_fp32": False,
    "use_liger_kernel": False,
    "torch_compile": False,
    "fp16": False,
    "repetition_penalty": 1.0,
}
"""What no configuration can change: the loss has no further terms, weights or kernels."""
ORDER: dict[str, Any] = {
    "gradient_accumulation_steps": 1,
    "num_iterations": 1,
    "steps_per_generation": 1,
    "shuffle_dataset": True,
    "ignore_data_skip": False,
    "dataloader_num_workers": 0,
    "dataloader_drop_last": False,
    "auto_find_batch_size": False,
}
"""Nor this: one step per batch, tasks in an order drawn from the seed."""
OPTIMIZER: dict[str, Any] = {
    "optim_args": None,
    "optim_target_modules": None,
    "lr_scheduler_kwargs": None,
}
LORA: dict[str, Any] = {
    "peft_type": "LORA",
    "bias": "none",
    "use_rslora": False,
    "use_dora": False,
    "lora_bias": False,
    "rank_pattern": {},
    "alpha_pattern": {},
    "exclude_modules": None,
    "modules_to_save": None,
    "layers_to_transform": None,
    "layer_replication": None,
    "target_parameters": None,
    "trainable_token_indices": None,
}
"""Plain LoRA."""


def check(study: Path, trained: Sequence[str], findings: Findings) -> None:
    """Every run's arguments follow from its configuration; runs of one configuration had the same ones, defaults included.

    Args:
        study: the results folder.
        trained: `{arm}/seed-{seed}` of every training that counts.
        findings: receives breaks (kind `arguments`) and the number of arguments compared.
    """
    alike: dict[str, tuple[str, dict[str, Any]]] = {}
    for name in trained:
        folder = study / "arms" / name / "train"
        file = folder / "manifest.json"
        with findings.reading(file):
            manifest = read_json(file)
            config = manifest["config"]
            claims = {part: manifest[part] for part in ("grpo_config", "lora_config")}
            _compare(file, "grpo_config", trainer(config), claims["grpo_config"], findings)
            _compare(
                file,
                "lora_config",
                lora(config["training"]["lora"]),
                claims["lora_config"],
                findings,
            )
            findings.equal(
                KIND,
                file,
                "",
                "advantage_epsilon",
                ADVANTAGE_EPSILON,
                manifest["advantage_epsilon"],
            )
            _adapter(folder / "adapter" / "adapter_config.json", claims["lora_config"], findings)
            same = {
                section: config[section]
                for section in ("training", "decoding", "protocol", "model")
            }
            first, expected = alike.setdefault(json.dumps(same, sort_keys=True), (name, claims))
            for part, values in claims.items():
                _alike(file, f"{part} (as in {first})", expected[part], values, findings)


def trainer(config: Mapping[str, Any]) -> dict[str, Any]:
    """`GRPOConfig` as far as a training's configuration says what must stand there: the sections of its manifest, plain."""
    training, decoding, model, seed = (
        config[name] for name in ("training", "decoding", "model", "seed")
    )
    optimizer = training["optimizer"]
    return {
        **LOSS,
        **ORDER,
        **OPTIMIZER,
        "max_steps": training["steps"],
        "per_device_train_batch_size": training["batch_size"],
        "generation_batch_size": training["batch_size"],
        "num_generations": training["group_size"],
        "max_completion_length": config["protocol"]["budget"],
        "learning_rate": training["learning_rate"],
        "lr_scheduler_type": {"constant": "constant_with_warmup"}.get(
            training["lr_schedule"], training["lr_schedule"]
        ),
        "warmup_steps": training["warmup_steps"],
        "max_grad_norm": training["max_grad_norm"],
        "optim": optimizer["name"],
        "adam_beta1": optimizer["beta1"],
        "adam_beta2": optimizer["beta2"],
        "adam_epsilon": optimizer["epsilon"],
        "weight_decay": optimizer["weight_decay"],
        "beta": training["kl"],
        "use_bias_correction_kl": {"k3": False, "k3_unbiased": True}[training["kl_estimator"]],
        "loss_type": training["loss_type"],
        "scale_rewards": training["scale_rewards"],
        "importance_sampling_level": training["importance_level"],
        "epsilon": training["clip"]["low"],
        "epsilon_high": training["clip"]["high"],
        "mask_truncated_completions": training["mask_truncated"],
        "top_entropy_quantile": training["entropy_quantile"],
        "temperature": decoding["temperature"],
        "top_p": decoding["top_p"],
        "top_k": decoding["top_k"],
        "min_p": decoding["min_p"],
        "seed": seed,
        "data_seed": seed,
        "bf16": model["dtype"] == "bfloat16",
        "use_cpu": model["device"] == "cpu",
        "activation_checkpointing": training["gradient_checkpointing"],
        "gradient_checkpointing": training["gradient_checkpointing"],
        "save_steps": training["checkpoint_every"],
    }


def lora(section: Mapping[str, Any]) -> dict[str, Any]:
    """`LoraConfig` as far as `training.lora` says what must stand there."""
    return {
        **LORA,
        "r": section["r"],
        "lora_alpha": section["alpha"],
        "target_modules": sorted(section["targets"]),
        "lora_dropout": section["dropout"],
        "init_lora_weights": {"kaiming": True, "gaussian": "gaussian"}[section["init"]],
    }


def _compare(
    file: Path, part: str, expected: Mapping[str, Any], found: Mapping[str, Any], findings: Findings
) -> None:
    """Each argument that is known, by name; one that is not recorded is a break as well."""
    for name, value in expected.items():
        findings.equal(KIND, file, "", f"{part}.{name}", value, found.get(name, "not recorded"))
        findings.counts["arguments compared"] += 1


def _alike(
    file: Path, part: str, expected: Mapping[str, Any], found: Mapping[str, Any], findings: Findings
) -> None:
    """All arguments but the seed."""
    for name in sorted((expected.keys() | found.keys()) - {"seed", "data_seed"}):
        findings.equal(
            KIND,
            file,
            "",
            f"{part}.{name}",
            expected.get(name, "not recorded"),
            found.get(name, "not recorded"),
        )


def _adapter(file: Path, recorded: Mapping[str, Any], findings: Findings) -> None:
    """The adapter's own file says the same; it is saved to be loaded (`inference_mode`)."""
    with findings.reading(file):
        saved = read_json(file)
        for name in sorted((recorded.keys() & saved.keys()) - {"inference_mode"}):
            findings.equal(KIND, file, "", name, recorded[name], saved[name])

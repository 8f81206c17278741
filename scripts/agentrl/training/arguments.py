"""What TRL is told: every argument that enters the loss, the optimizer or the order of the data is set here, none is left to a default.

An upgrade of TRL, transformers or PEFT cannot change such an argument silently: the protocol's come from the configuration (`configured`),
the others stand in `FIXED` with their reason. What a run really trained with, defaults included, goes into its manifest (`recorded`). That
the defaults of everything else are still the ones we know is tested (`tests/data/defaults.json`).

Nothing is imported but the standard library: what a run will be told can be said without PyTorch.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, fields, is_dataclass
from enum import Enum
from typing import Any

from agentrl.policy.settings import Model
from agentrl.rollout.settings import Decoding
from agentrl.training.settings import TrainingSettings

SCHEDULES = {"linear": "linear", "constant": "constant_with_warmup", "cosine": "cosine"}
"""`training.lr_schedule` -> transformers' name; its `constant` would pass over `warmup_steps` without a word."""

FIXED: dict[str, Any] = {
    # One optimizer step per generation batch, the batch whole: every episode is sampled by the policy that is trained on it.
    "gradient_accumulation_steps": 1,
    "num_iterations": 1,
    "steps_per_generation": 1,
    # The order of the tasks: a permutation drawn from `seed` by TRL's RepeatSampler, drawn on where steps outnumber tasks; a resumed run
    # skips what it has seen. One process reads, so that nothing depends on how many workers a node has.
    "shuffle_dataset": True,
    "ignore_data_skip": False,
    "dataloader_num_workers": 0,
    "dataloader_drop_last": False,
    "remove_unused_columns": False,
    "auto_find_batch_size": False,
    "accelerator_config": {
        "split_batches": False,
        "dispatch_batches": None,
        "even_batches": True,
        "use_seedable_sampler": True,
        "non_blocking": False,
        "gradient_accumulation_kwargs": None,
    },
    # No further term in the loss and no weight on its tokens: what the configuration names is all. Off-policy corrections would weigh
    # tokens by the rounding between two engines (`grpo`); auxiliary losses and entropy bonuses are younger than the recipe's trainer.
    "delta": None,
    "off_policy_mask_threshold": None,
    "use_vllm": False,
    "vllm_importance_sampling_correction": False,
    "entropy_coef": 0.0,
    "use_adaptive_entropy": False,
    "router_aux_loss_coef": 0.0,
    "label_smoothing_factor": 0.0,
    # One reward per episode, decided where it was played, and its advantage within its group.
    "reward_weights": [1.0],
    "multi_objective_aggregation": "sum_then_normalize",
    # The reference stays the start policy.
    "sync_ref_model": False,
    # The model as it is: no noise, no other kernels, no other precision than the configured one.
    "disable_dropout": False,
    "neftune_noise_alpha": None,
    "cast_lm_head_to_fp32": False,
    "use_liger_kernel": False,
    "torch_compile": False,
    "fp16": False,
    "tf32": None,  # PyTorch's own default: full float32
    "full_determinism": False,
    "pad_to_multiple_of": None,
    # Recomputing activations changes memory and time alone; non-reentrant is what PyTorch recommends and TRL 0.29.0 set.
    "activation_checkpointing_kwargs": {"use_reentrant": False},
    # Optimizer and schedule without further arguments.
    "optim_args": None,
    "optim_target_modules": None,
    "lr_scheduler_kwargs": None,
    # Sampling is not TRL's here, but its temperature divides the logits of the loss.
    "repetition_penalty": 1.0,
    "generation_kwargs": None,
    "chat_template_kwargs": None,
    # A loss that is not finite must reach the log and the health gate: the default writes the mean of earlier ones instead.
    "logging_nan_inf_filter": False,
}
"""Argument of `GRPOConfig` -> its value in every study."""

MACHINE: dict[str, str] = {
    "output_dir": "a path",
    "resume_from_checkpoint": "a path",
    "deepspeed": "a path; the record of one process on one device has none",
    "run_name": "a name for loggers, none is attached",
    "project": "a name for loggers",
    "trackio_space_id": "a name for a logger",
    "trackio_bucket_id": "a name for a logger",
    "trackio_static_space_id": "a name for a logger",
    "report_to": "which loggers are attached; an environment may add its own",
    "hub_model_id": "a name",
    "hub_revision": "a name",
    "hub_token": "a secret",
    "local_rank": "the number of a process",
    "ddp_backend": "how processes talk, there is one",
    "vllm_server_base_url": "an address",
    "vllm_server_host": "an address",
    "vllm_server_port": "an address",
    "vllm_group_port": "an address",
}
"""Arguments that are not recorded, and why: the same work elsewhere must give the same bytes."""

LORA_MACHINE: dict[str, str] = {
    "base_model_name_or_path": "a path; the manifest names the start by its hash",
    "revision": "of that path",
    "peft_version": "provenance.json has the versions",
}
"""The same for `LoraConfig`."""


def configured(
    settings: TrainingSettings, decoding: Decoding, budget: int, device: Model, seed: int
) -> dict[str, Any]:
    """Arguments of `GRPOConfig` that follow from the study's configuration.

    Args:
        settings: the arm's effective settings.
        decoding: how episodes are sampled; the temperature also divides the logits of the loss.
        budget: tokens of the stream; a length that `dr_grpo` divides by.
        device: precision and device.
        seed: of the run: the order of the tasks and the adapter's initialisation (set before it, TRL 1.16's `GRPOTrainer.__init__`).
    """
    return {
        "max_steps": settings.steps,
        "per_device_train_batch_size": settings.batch_size,
        "num_generations": settings.group_size,
        "max_completion_length": budget,
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": SCHEDULES[settings.lr_schedule],
        "warmup_steps": settings.warmup_steps,
        "max_grad_norm": settings.max_grad_norm,
        "beta": settings.kl,
        "use_bias_correction_kl": settings.kl_estimator == "k3_unbiased",
        "loss_type": settings.loss_type,
        "scale_rewards": settings.scale_rewards,
        "importance_sampling_level": settings.importance_level,
        "epsilon": settings.clip.low,
        "epsilon_high": settings.clip.high,
        "mask_truncated_completions": settings.mask_truncated,
        "top_entropy_quantile": settings.entropy_quantile,
        "optim": settings.optimizer.name,
        "adam_beta1": settings.optimizer.beta1,
        "adam_beta2": settings.optimizer.beta2,
        "adam_epsilon": settings.optimizer.epsilon,
        "weight_decay": settings.optimizer.weight_decay,
        "temperature": decoding.temperature,
        "top_p": decoding.top_p,
        "top_k": decoding.top_k,
        "min_p": decoding.min_p,
        "seed": seed,
        "data_seed": seed,
        "bf16": device.dtype == "bfloat16",
        "use_cpu": device.device == "cpu",
        "activation_checkpointing": settings.gradient_checkpointing,  # the older name follows it
        "save_steps": settings.checkpoint_every,
    }


def recorded(arguments: Any, unrecorded: Collection[str]) -> dict[str, Any]:
    """Every argument that a run really had, as plain JSON.

    Args:
        arguments: a dataclass of arguments as its trainer left it: defaults filled in, aliases resolved.
        unrecorded: names that are left out: `MACHINE` or `LORA_MACHINE`.

    Raises:
        TypeError: an argument holds something that JSON cannot say; the message names it.
    """
    return {
        f.name: _plain(f.name, getattr(arguments, f.name))
        for f in fields(arguments)
        if f.name not in unrecorded
    }


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(name, asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(name, inner) for key, inner in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(_plain(name, inner) for inner in value)
    if isinstance(value, list | tuple):
        return [_plain(name, inner) for inner in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"argument {name} holds {value!r}, expected what JSON can say; teach `arguments` its type, or leave it out by name"
    )

"""What GRPO is told, against the defaults of the recipe's trainer and of the pinned one: every argument that differs, or that we set.

`python tests/grpo_config_table.py trl-0.29.0/trl transformers-5.2.0/transformers > benchmarks/training/grpo-config.md`

Both folders are unpacked wheels (`pip download --no-deps trl==0.29.0 transformers==5.2.0`); nothing of them is imported, their dataclasses
are read as text. transformers 5.2.0 is the oldest that TRL 0.29.0's `environment_factory` accepts.
"""

import ast
import os
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(Path(__file__).parent)]

from trl import GRPOConfig  # noqa: E402 - the path comes first

from agentrl.study.config import Study, validate_study  # noqa: E402
from agentrl.study.strictyaml import read_yaml  # noqa: E402
from agentrl.training import arguments  # noqa: E402

SOURCES = (
    "transformers/training_args.py",
    "trl/trainer/base_config.py",
    "trl/trainer/grpo_config.py",
)
"""Later ones override earlier ones."""
ABSENT = "-"
NO_ARGUMENTS = """## What is no argument

| what | TRL 0.29.0 | TRL 1.16.0 |
| --- | --- | --- |
| epsilon of the advantages | 1e-4 | 1e-4; recorded in the manifest (`advantage_epsilon`) |
| log-probabilities | softmax over logits kept for the whole vocabulary | over tiles of it, in float32 (`kernels/chunked_logprob.py`) |
| seed of the adapter | whatever was drawn before `get_peft_model` | `seed`, set before it |
| what `dapo` divides by | trained tokens of the batch | the same, at least 1 |
"""
"""Read in both sources; no setting brings them together."""
NOTES: dict[str, str] = {
    "use_bias_correction_kl": "training.kl_estimator: another gradient wherever the policy has left the reference",
    "beta": "training.kl",
    "learning_rate": "training.learning_rate",
    "max_steps": "training.steps",
    "num_generations": "training.group_size",
    "per_device_train_batch_size": "training.batch_size",
    "max_completion_length": "protocol.budget",
    "temperature": "decoding; also divides the logits of the loss",
    "top_p": "decoding; the loss does not see it",
    "top_k": "decoding; the loss does not see it",
    "min_p": "decoding; the loss does not see it",
    "lr_scheduler_type": "training.lr_schedule",
    "warmup_steps": "training.warmup_steps",
    "max_grad_norm": "training.max_grad_norm",
    "loss_type": "training.loss_type",
    "scale_rewards": "training.scale_rewards",
    "importance_sampling_level": "training.importance_level",
    "epsilon": "training.clip.low",
    "epsilon_high": "training.clip.high; null means epsilon",
    "mask_truncated_completions": "training.mask_truncated",
    "top_entropy_quantile": "training.entropy_quantile",
    "optim": "training.optimizer.name",
    "adam_beta1": "training.optimizer.beta1",
    "adam_beta2": "training.optimizer.beta2",
    "adam_epsilon": "training.optimizer.epsilon",
    "weight_decay": "training.optimizer.weight_decay",
    "seed": "training.seeds",
    "data_seed": "training.seeds",
    "bf16": "model.dtype",
    "use_cpu": "model.device",
    "activation_checkpointing": "training.gradient_checkpointing; once named gradient_checkpointing, default true",
    "save_steps": "training.checkpoint_every",
    "steps_per_generation": "null means gradient_accumulation_steps",
    "reward_weights": "null means ones",
    "pad_to_multiple_of": "auto pads on Neuron only",
    "vllm_importance_sampling_correction": "acts with use_vllm alone",
    "router_aux_loss_coef": "null takes a mixture of experts' own; TRL 0.29.0 added no such term",
    "activation_checkpointing_kwargs": "TRL 0.29.0 set use_reentrant false itself",
    "accelerator_config": "null means these values",
    "logging_nan_inf_filter": "so that a loss which is not finite reaches the health gate",
    "entropy_coef": "TRL 0.29.0 had no such term",
    "use_adaptive_entropy": "TRL 0.29.0 had no such term",
}


def ours(study: Study) -> dict[str, Any]:
    """What a run of the study's first seed is told, as plain data."""
    configured = arguments.configured(
        study.training, study.decoding, study.protocol.budget, study.model, study.training.seeds[0]
    )
    return {**configured, **arguments.FIXED}


def pinned() -> dict[str, Any]:
    """Defaults of the installed `GRPOConfig`."""
    return {
        f.name: f.default if f.default is not MISSING else f.default_factory()
        for f in fields(GRPOConfig)
    }  # type: ignore[misc]


def parsed(files: list[Path]) -> dict[str, Any]:
    """Defaults of the dataclass fields in some modules, later ones over earlier ones; what is no literal is given as it is written."""
    found: dict[str, Any] = {}
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found |= {
                    ast.unparse(part.target): _default(part.value)
                    for part in node.body
                    if isinstance(part, ast.AnnAssign)
                }
    return found


def _default(node: ast.expr | None) -> Any:
    if isinstance(node, ast.Call):  # field(...)
        given = {word.arg: word.value for word in node.keywords}
        if ast.unparse(given.get("default_factory", ast.Constant(None))) == "list":
            return []
        node = given.get("default")
    if node is None:
        return ABSENT
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def row(name: str, told: dict[str, Any], recipe: dict[str, Any], now: dict[str, Any]) -> str:
    """One argument as a line of the table."""
    values = (told.get(name, ABSENT), recipe.get(name, ABSENT), now.get(name, ABSENT))
    return f"| {name} | {' | '.join(map(_shown, values))} | {NOTES.get(name, '')} |"


def _shown(value: Any) -> str:
    """A value as YAML says it."""
    if isinstance(value, dict):
        return ", ".join(
            f"{key} {_shown(inner)}" for key, inner in value.items() if inner is not None
        )
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def order(
    told: dict[str, Any], recipe: dict[str, Any], now: dict[str, Any]
) -> dict[str, list[str]]:
    """Heading -> its arguments, each once."""
    differs = [
        name
        for name in told
        if told[name] != recipe.get(name, ABSENT) or told[name] != now.get(name)
    ]
    same = [name for name in told if name not in differs]
    moved = [
        name
        for name in sorted(recipe.keys() & now.keys())
        if name not in told and recipe[name] != now[name]
    ]
    return {
        "Set, and not the default of both": differs,
        "Set, and the default of both": same,
        "Not set, the default changed": moved,
    }


def main(trl: Path, transformers: Path) -> None:
    """Print the table for config.yaml."""
    roots = {"trl": trl, "transformers": transformers}
    recipe = parsed([roots[name.split("/")[0]].parent / name for name in SOURCES])
    recipe["optim"] = "adamw_torch_fused"  # of torch 2.8 and later; older ones had adamw_torch
    told, now = ours(validate_study(read_yaml(ROOT / "config.yaml"))), pinned()
    print("# What GRPO is told, against its trainers' defaults\n")
    print(
        "Made by `python tests/grpo_config_table.py TRL-0.29.0 TRANSFORMERS-5.2.0`. Ours is the pilot of config.yaml; `-`: no such"
    )
    print(
        "argument, or one that we do not set. A run's manifest holds all of them (`grpo_config`); verify derives those anew"
    )
    print("that we set.\n")
    for heading, names in order(told, recipe, now).items():
        print(
            f"## {heading}\n\n| argument | ours | TRL 0.29.0 | TRL 1.16.0 | note |\n| --- | --- | --- | --- | --- |"
        )
        print("\n".join(row(name, told, recipe, now) for name in names) + "\n")
    print(NO_ARGUMENTS, end="")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

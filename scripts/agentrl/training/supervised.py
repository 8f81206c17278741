"""Supervised training on token sequences with a mask: a plain `transformers.Trainer` run, for the demo's start policy and for warm-ups."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerBase,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from agentrl.rollout.trajectory import Trajectory

_log = logging.getLogger(__name__)
RISING = 0.08
"""Share of the steps in which the learning rate rises."""
LOGGED = 20
FIXED: dict[str, Any] = {
    # Ours: a run of some hundred steps wants a second moment that forgets faster than the usual .999 does.
    "optim": "adamw_torch_fused",
    "optim_args": None,
    "optim_target_modules": None,
    "adam_beta1": 0.9,
    "adam_beta2": 0.98,
    "adam_epsilon": 1e-8,
    "weight_decay": 0.01,
    "max_grad_norm": 1.0,
    "lr_scheduler_type": "cosine",
    "lr_scheduler_kwargs": None,
    # One optimizer step per batch, rows shuffled by the seed and read by one process.
    "gradient_accumulation_steps": 1,
    "train_sampling_strategy": "random",
    "dataloader_num_workers": 0,
    "dataloader_drop_last": False,
    "auto_find_batch_size": False,
    "remove_unused_columns": True,
    # Plain cross-entropy on the model as it is, in the configured precision.
    "label_smoothing_factor": 0.0,
    "neftune_noise_alpha": None,
    "use_liger_kernel": False,
    "torch_compile": False,
    "bf16": False,  # unless the caller's precision says so
    "fp16": False,
    "tf32": None,
    "full_determinism": False,
    # A loss that is not finite must reach the log.
    "logging_nan_inf_filter": False,
}
"""Argument of `TrainingArguments` -> its value in every supervised run: what enters loss, optimizer or order of the data."""


class Schedule(Protocol):
    """Length and size of a supervised run."""

    steps: int
    batch_size: int
    learning_rate: float


@dataclass(frozen=True)
class Example:
    """One supervised sequence."""

    ids: list[int]
    mask: list[int]
    """1 where the policy is taught, 0 on external tokens; aligned with `ids`."""


def example(trajectory: Trajectory) -> Example:
    """A trajectory as a supervised sequence; the taught tokens are those a policy would have sampled."""
    prompt = trajectory.prompt_ids
    return Example(prompt + trajectory.completion_ids, [0] * len(prompt) + trajectory.loss_mask)


def train(
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    found: Sequence[Example],
    schedule: Schedule,
    seed: int,
    work: Path,
    **arguments: Any,
) -> list[dict[str, Any]]:
    """Train on the taught tokens; returns the loss log, an entry every `LOGGED` steps.

    Args:
        model: trained in place.
        tokenizer: pads.
        found: rows; shuffled by `seed`, seen again where the steps need more.
        schedule: cosine to zero after `RISING` of the steps.
        seed: order of the rows.
        work: folder for what `Trainer` wants to write.
        arguments: further `TrainingArguments`: device, precision, gradient checkpointing.
    """
    rows = [
        {
            "input_ids": e.ids,
            "labels": [i if m else -100 for i, m in zip(e.ids, e.mask, strict=True)],
        }
        for e in found
    ]
    settings = TrainingArguments(
        output_dir=str(work),
        max_steps=schedule.steps,
        per_device_train_batch_size=schedule.batch_size,
        learning_rate=schedule.learning_rate,
        warmup_steps=max(1, round(RISING * schedule.steps)),
        seed=seed,
        data_seed=seed,
        logging_steps=min(LOGGED, schedule.steps),
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **{**FIXED, **arguments},
    )
    collator = DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=-100)
    trainer = Trainer(model=model, args=settings, train_dataset=rows, data_collator=collator)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(LossLog())
    trainer.train()
    return [entry for entry in trainer.state.log_history if "loss" in entry]


class LossLog(TrainerCallback):
    """Shows progress as one line per logged step."""

    def on_log(
        self,
        _args: TrainingArguments,
        state: TrainerState,
        _control: TrainerControl,
        logs: dict[str, Any],
        **_: Any,
    ) -> None:
        """Step and mean loss since the last line."""
        if "loss" in logs:
            _log.info(
                "step %d of %d, loss %.3f", state.global_step, state.max_steps, float(logs["loss"])
            )

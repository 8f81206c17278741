"""Seconds and memory of a GRPO step: plain TRL with its environment and `generate`, and this project's trainer in its parts.

The pilot's shape: one task a step, four rollouts of 768 tokens, a rank-16 adapter in float32 on BF16 weights, KL against the adapter off.
Rewards are the placebo's coin, so that gradients are not zero; a random policy uses up every episode's budget.
"""

import gc
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import PreTrainedModel, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from agentrl.engine import loading
from agentrl.engine.transformers import TransformersEngine
from agentrl.policy.loading import load_model
from agentrl.rollout.chat import ChatProtocol, load_tokenizer
from agentrl.rollout.loop import Rollout
from agentrl.rollout.sampler import Engine
from agentrl.study.config import Study
from agentrl.tasks.environment import Environment
from agentrl.tasks.families import Task, generate
from agentrl.training import grpo
from agentrl.training.reward import REWARDS
from benchmarks.gpu.decoding import vllm_section
from benchmarks.gpu.limit import synchronize
from benchmarks.gpu.result import CHECKPOINTING, PARTS
from benchmarks.gpu.scale import Scale

POLICY = "benchmark/seed-42"


class Profile(TrainerCallback):
    """Wall seconds of each step and of its parts, the device waited for at every boundary."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self.steps: list[float] = []
        self.parts: list[dict[str, float]] = []
        self._began = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """A new step: generation, loss and update."""
        synchronize(self.scale)
        self._began = time.perf_counter()
        self.parts.append(defaultdict(float))

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """The update is done."""
        synchronize(self.scale)
        self.steps.append(time.perf_counter() - self._began)

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Gradients are clipped."""
        synchronize(self.scale)
        self._optimizer = time.perf_counter()

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        """The optimizer has stepped."""
        synchronize(self.scale)
        self.parts[-1]["optimizer"] += time.perf_counter() - self._optimizer

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time one part of the running step."""
        synchronize(self.scale)
        began = time.perf_counter()
        yield
        synchronize(self.scale)
        if self.parts:
            self.parts[-1][name] += time.perf_counter() - began

    def watch(self, owner: Any, method: str, name: Callable[[], str]) -> None:
        """Time every call of a method of one object."""
        original = getattr(owner, method)

        def timed(*arguments: Any, **named: Any) -> Any:
            with self.part(name()):
                return original(*arguments, **named)

        setattr(owner, method, timed)

    def watch_trainer(self, trainer: GRPOTrainer) -> None:
        """Time what every `GRPOTrainer` does; the pass without gradients is that of the KL term's reference."""
        self.watch(
            trainer,
            "_get_per_token_logps_and_entropies",
            lambda: "forward" if torch.is_grad_enabled() else "reference",
        )
        self.watch(trainer.accelerator, "backward", lambda: "backward")
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(self)

    def facts(self) -> dict[str, Any]:
        """Seconds of the steps; of a later step's parts their mean, the first step warms up."""
        counted = self.parts[1:] or self.parts
        later = self.steps[1:] or self.steps
        mean = sum(later) / len(later)
        parts = {
            name: sum(part.get(name, 0.0) for part in counted) / len(counted)
            for name in PARTS
            if any(name in p for p in counted)
        }
        found = {
            "steps": len(self.steps),
            "first_step_seconds": round(self.steps[0], 3),
            "step_seconds": round(mean, 3),
            "seconds_of_16_steps": round(
                self.steps[0] + 15 * mean if len(self.steps) != 16 else sum(self.steps), 1
            ),
            "extrapolated": len(self.steps) != 16,
        }
        if parts:
            parts["other"] = max(mean - sum(parts.values()), 0.0)
            found["parts"] = {name: round(seconds, 4) for name, seconds in parts.items()}
        return found


def measure(folder: Path, name: str, scale: Scale, study: Study) -> dict[str, Any]:
    """One training cell in a work folder that is thrown away.

    Args:
        folder: the checkpoint.
        name: `trl`, or the loop or engine of this project, with `-checkpointing` to recompute activations.
        scale: sizes and steps.
        study: the protocol.
    """
    profile = Profile(scale)
    if scale.device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as work:
        began = time.perf_counter()
        trainer = (plain if name == "trl" else recorded)(
            folder, name, scale, study, Path(work), profile
        )
        opened = time.perf_counter() - began
        trainer.train()
    facts = {
        "rollouts": study.training.batch_size,
        "tokens": scale.budget,
        "startup_seconds": round(opened, 2),
        **profile.facts(),
    }
    if scale.device == "cuda":
        facts["peak_memory_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    return facts


def recorded(
    folder: Path, name: str, scale: Scale, study: Study, work: Path, profile: Profile
) -> grpo.RecordedTrainer:
    """This project's trainer over one of its engines, its parts watched."""
    kind = name.removesuffix(CHECKPOINTING)
    split = _tasks(study)
    engine, model, chat = _opened(folder, kind, scale, study, split)
    changes = {
        "steps": scale.steps[name],
        "gradient_checkpointing": kind != name,
        "checkpoint_every": 1000,
    }
    settings = study.training.model_copy(update=changes)
    rollout = Rollout(engine, chat, study.protocol.model_copy(update={"budget": scale.budget}))
    reward = partial(REWARDS["random"], study.reward)
    recorder = grpo.Recorder(rollout, split, reward, POLICY, 42, work, settings)
    made = grpo.trainer(
        model, chat.tokenizer, recorder, settings, study.decoding, scale.budget, scale.model
    )
    for method, part in (
        ("follow", "sync"),
        ("serve" if hasattr(engine, "serve") else "generate", "generation"),
    ):
        if hasattr(engine, method):
            profile.watch(engine, method, lambda part=part: part)
    profile.watch_trainer(made)
    return made


def _opened(
    folder: Path, kind: str, scale: Scale, study: Study, split: list[Task]
) -> tuple[Engine, PreTrainedModel, ChatProtocol]:
    """Engine, model to train and protocol, put together as the training stage does."""
    if kind == "vllm":
        section, dialogues = vllm_section(scale), [task.messages() for task in split]
        beside = loading.Training(
            study.training.batch_size, scale.budget, study.training.lora.r, dialogues
        )
        engine, chat = loading.open_engine(folder, section, study.decoding, beside)
        return engine, loading.trained_model(engine, folder, section), chat
    tokenizer = load_tokenizer(folder)
    chat = ChatProtocol(tokenizer)
    loop: Any = kind
    engine = TransformersEngine(
        load_model(folder, scale.model), study.decoding, chat.stop_ids, tokenizer.pad_token_id, loop
    )
    return engine, engine.model, chat


def plain(
    folder: Path, name: str, scale: Scale, study: Study, work: Path, profile: Profile
) -> GRPOTrainer:
    """TRL as its documentation shows it: `environment_factory`, `generate`, the same LoRA, batch and lengths."""
    tokenizer = load_tokenizer(folder)
    settings = study.training
    rows = [
        {"prompt": task.messages(), "record_id": task.record_id, "facts": json.dumps(task.facts)}
        for task in _tasks(study)
    ]
    arguments = GRPOConfig(
        output_dir=str(work), max_steps=scale.steps[name], per_device_train_batch_size=settings.batch_size, gradient_accumulation_steps=1,
        num_generations=settings.group_size, max_completion_length=scale.budget, generation_kwargs={"min_new_tokens": scale.budget},
        learning_rate=settings.learning_rate, beta=settings.kl, temperature=study.decoding.temperature, top_p=study.decoding.top_p,
        top_k=study.decoding.top_k, bf16=True, use_cpu=scale.device == "cpu", gradient_checkpointing=False, save_strategy="no",
        report_to="none", disable_tqdm=True, logging_strategy="no", dataloader_pin_memory=False,
    )  # fmt: skip
    lora = LoraConfig(
        r=settings.lora.r, lora_alpha=settings.lora.alpha, target_modules=list(settings.lora.targets), lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )  # fmt: skip
    made = GRPOTrainer(
        load_model(folder, scale.model),
        alternating,
        arguments,
        Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=lora,
        environment_factory=Environment,
    )
    profile.watch(made, "_generate", lambda: "generation")
    profile.watch_trainer(made)
    return made


def alternating(completions: list[Any], **_: Any) -> list[float]:
    """TRL's reward function of the plain run: every group varies."""
    return [float(index % 2) for index in range(len(completions))]


def _tasks(study: Study) -> list[Task]:
    return generate(study.tasks, "train", study.tasks.splits.train)

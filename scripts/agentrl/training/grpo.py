"""GRPO by TRL over our rollouts: prompts in, recorded episodes out, and nothing is trained on that the records do not show.

TRL's `rollout_func` plays every episode with the evaluation's own loop. Before each optimizer step, what TRL is about to train on (prompt
ids, completion ids, loss mask, advantages) is compared with the records, row by row; the first difference stops the run. Records are
on disk before the step is taken.

No importance correction: each batch is sampled by the policy that is trained on it and used for one step, so the policy is never stale and
the gradient is a function of ids, loss mask and advantages alone, whichever engine sampled. Between sampler and trainer lies only rounding
(two kernels, bfloat16); weighting tokens by it would feed that noise into the gradient. Both take log-probabilities before top-k and
top-p, so their gap is measured at every step, recorded, and a run stops where it says that sampler and trainer are not one policy.
"""

import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from trl import GRPOConfig, GRPOTrainer

from agentrl.evidence.errors import StudyError
from agentrl.evidence.files import write_json, write_text
from agentrl.policy import adapter
from agentrl.policy.settings import Model
from agentrl.rollout import trajectory
from agentrl.rollout.loop import Rollout
from agentrl.rollout.sampler import follow
from agentrl.rollout.settings import Decoding
from agentrl.rollout.trajectory import Key, Trajectory
from agentrl.tasks.families import Task
from agentrl.training import arguments
from agentrl.training.health import (
    EPSILON,
    StepRecord,
    advantage_tolerances,
    check_ratio,
    group_advantages,
    sampler_gap,
)
from agentrl.training.settings import TrainingSettings

_log = logging.getLogger(__name__)
EPISODES, STEPS, COMPLETE = "episodes.jsonl", "steps.jsonl", "complete.json"

RewardRule = Callable[[Trajectory], float]


class BoundaryError(StudyError, RuntimeError):
    """TRL was about to train on something the records do not show."""


class DeviceError(StudyError, RuntimeError):
    """The training process sees devices it cannot use as configured."""


class Recorder:
    """Plays, records and checks the episodes of one training run.

    Args:
        rollout: the study's loop over the policy in training.
        tasks: the training split.
        reward: the arm's reward of one finished episode.
        policy: `{arm}/seed-{seed}`.
        seed: the training seed.
        work: folder that receives `episodes.jsonl` and `steps.jsonl`.
        settings: group size and reward scaling.
    """

    def __init__(
        self,
        rollout: Rollout,
        tasks: Sequence[Task],
        reward: RewardRule,
        policy: str,
        seed: int,
        work: Path,
        settings: TrainingSettings,
    ) -> None:
        self.rollout, self.reward, self.policy, self.seed, self.work, self.settings = (
            rollout,
            reward,
            policy,
            seed,
            work,
            settings,
        )
        self.table = {
            task.messages()[-1]["content"]: task for task in tasks
        }  # TRL hands over prompts only
        self.batch: list[Trajectory] = []
        self.step: StepRecord | None = None

    def rollout_func(
        self, prompts: list[list[dict[str, str]]], trainer: GRPOTrainer
    ) -> dict[str, Any]:
        """One generation batch for TRL, in its order: every prompt `group_size` times in a row."""
        tasks = [self.table[prompt[-1]["content"]] for prompt in prompts]
        seen: Counter[str] = Counter()
        keys = []
        for task in tasks:
            keys.append(
                Key(
                    self.policy,
                    trainer.state.global_step,
                    task.split,
                    task.id,
                    seen[task.id],
                    self.seed,
                )
            )
            seen[task.id] += 1
        model = trainer.accelerator.unwrap_model(trainer.model)
        model.eval()
        follow(self.rollout.engine, model)
        played = self.rollout.play(tasks, keys)
        model.train()
        self.batch = [replace(episode, reward=self.reward(episode)) for episode in played]
        return {
            "prompt_ids": [episode.prompt_ids for episode in self.batch],
            "completion_ids": [episode.completion_ids for episode in self.batch],
            "env_mask": [episode.loss_mask for episode in self.batch],
            "logprobs": None,  # no importance correction: see above
            "reward": [episode.reward for episode in self.batch],
        }

    def check(self, inputs: dict[str, Any]) -> None:
        """Compare one loss batch with the records, then write them. Raises `BoundaryError` naming episode and field."""
        rows = inputs["episode"].tolist()
        if sorted(rows) != list(range(len(self.batch))):
            raise BoundaryError(
                f"the loss got rows {sorted(rows)} of {len(self.batch)} recorded episodes"
            )
        rewards = [_reward(episode) for episode in self.batch]
        expected, tolerance = (
            group_advantages(rewards, self.settings),
            advantage_tolerances(rewards, self.settings),
        )
        checked: list[Trajectory | None] = [None] * len(rows)
        for position, row in enumerate(rows):
            episode, advantage = self.batch[row], float(inputs["advantages"][position])
            _compare(
                episode,
                "prompt ids",
                episode.prompt_ids,
                _kept(inputs, "prompt_ids", "prompt_mask", position),
            )
            mask = (
                self._left_out(episode, inputs, position)
                if self.leaves_out(episode)
                else self._trained(episode, inputs, position)
            )
            if not abs(advantage - expected[row]) <= tolerance[row]:  # NaN compares false
                raise BoundaryError(
                    f"{episode.key}: TRL's advantage {advantage}, recorded rewards give {expected[row]}"
                )
            runs = [[value, len(list(run))] for value, run in groupby(mask)]
            checked[row] = replace(episode, advantage=round(advantage, 6), loss_runs=runs)
        recorded = [episode for episode in checked if episode is not None]
        with open(self.work / EPISODES, "a", encoding="utf-8") as stream:
            trajectory.append(stream, recorded)
        self.step = StepRecord.of(recorded, self.settings.group_size)

    def leaves_out(self, episode: Trajectory) -> bool:
        """Whether an episode is no part of the loss: `mask_truncated`, and its last token ends no turn (as TRL sees it, padding does)."""
        ends = self.rollout.chat.stop_ids | {self.rollout.chat.tokenizer.pad_token_id}
        return self.settings.mask_truncated and episode.completion_ids[-1] not in ends

    @staticmethod
    def _trained(episode: Trajectory, inputs: dict[str, Any], position: int) -> list[int]:
        """The loss mask of an episode that is trained on."""
        _compare(
            episode,
            "completion ids",
            episode.completion_ids,
            _kept(inputs, "completion_ids", "completion_mask", position),
        )
        mask = _kept(inputs, "tool_mask", "completion_mask", position)
        _compare(episode, "loss mask", episode.loss_mask, mask)
        return mask

    @staticmethod
    def _left_out(episode: Trajectory, inputs: dict[str, Any], position: int) -> list[int]:
        """The loss mask of an episode that is left out: nothing of it is looked at."""
        size = len(episode.completion_ids)
        _compare(
            episode,
            "completion ids",
            episode.completion_ids,
            inputs["completion_ids"][position][:size].tolist(),
        )
        _compare(episode, "loss mask", [], _kept(inputs, "tool_mask", "completion_mask", position))
        return [0] * size

    def compare(self, inputs: dict[str, Any], scores: torch.Tensor) -> None:
        """Note how far the sampler's log-probabilities of this batch are from the trainer's.

        Args:
            inputs: what the loss was called with.
            scores: the trainer's log-probabilities, (rows, completion tokens), nats.
        """
        kept = inputs["completion_mask"].bool() & inputs["tool_mask"].bool()
        sampler: list[float] = []
        trainer: list[float] = []
        for position, row in enumerate(inputs["episode"].tolist()):
            if not self.leaves_out(self.batch[row]):
                sampler += [
                    score for segment in self.batch[row].sampled for score in segment.logprobs or []
                ]
                trainer += scores[position][kept[position]].tolist()
        if self.step is not None and trainer:
            self.step = replace(self.step, **sampler_gap(sampler, trainer))


def _reward(episode: Trajectory) -> float:
    if episode.reward is None:
        raise BoundaryError(f"{episode.key}: no reward was recorded")
    return episode.reward


def _kept(inputs: dict[str, Any], name: str, mask: str, row: int) -> list[int]:
    return inputs[name][row][inputs[mask][row].bool()].tolist()


def _compare(episode: Trajectory, field: str, recorded: list[int], given: list[int]) -> None:
    if recorded != given:
        at = next(
            (i for i, (a, b) in enumerate(zip(recorded, given, strict=False)) if a != b),
            min(len(recorded), len(given)),
        )
        raise BoundaryError(
            f"{episode.key}: TRL's {field} differ from the record at position {at} "
            f"(recorded {recorded[at : at + 3]} of {len(recorded)}, given {given[at : at + 3]} of {len(given)})"
        )


class RecordedTrainer(GRPOTrainer):
    """`GRPOTrainer` that shows the recorder what it is about to train on."""

    recorder: Recorder
    _scores: torch.Tensor | None = None
    """What the last forward pass gave the tokens it scored."""

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        output["episode"] = torch.arange(
            len(output["advantages"])
        )  # survives TRL's shuffle of the batch
        return output

    def _compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        self.recorder.check(inputs)
        loss = super()._compute_loss(model, inputs)
        if self._scores is not None:
            self.recorder.compare(inputs, self._scores)
        return loss

    def _get_per_token_logps_and_entropies(
        self, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, ...]:
        output = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._scores = output[
            0
        ].detach()  # inside the loss: of the policy; before it: of the reference
        return output


class StepLog(TrainerCallback):
    """Writes one record per optimizer step, shows progress, and marks checkpoints that are complete."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def on_log(
        self,
        _args: TrainingArguments,
        state: TrainerState,
        _control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """One line per step in `steps.jsonl` and on stdout."""
        if logs is None or "grad_norm" not in logs or self.recorder.step is None:
            return
        step = replace(
            self.recorder.step,
            grad_norm=float(logs["grad_norm"]),
            kl=float(logs.get("kl", 0.0)),
            loss=float(logs["loss"]),
        )
        with open(self.recorder.work / STEPS, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(asdict(step), sort_keys=True) + "\n")
        self.recorder.step = step
        _log.info(
            "%s: step %d of %d, mean reward %.3f, strict %d of %d, KL %.4f, gradient norm %.3f, sampler's gap %.4f",
            *(
                self.recorder.policy,
                state.global_step,
                state.max_steps,
                step.mean_reward,
                step.strict,
                step.episodes,
                step.kl,
                step.grad_norm,
                step.gap_mean,
            ),
        )

    def on_save(
        self, args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any
    ) -> None:
        """A checkpoint without this mark was interrupted and is not resumed from."""
        write_json(
            Path(args.output_dir) / f"checkpoint-{state.global_step}" / COMPLETE,
            {"step": state.global_step},
        )


class RatioGate(TrainerCallback):
    """Stops a run at the first step whose sampler was not the policy in training, instead of after the last."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def on_log(
        self, _args: TrainingArguments, _state: TrainerState, _control: TrainerControl, **_: Any
    ) -> None:
        """Raises `HealthError`; the step's record is on disk."""
        if self.recorder.step is not None:
            check_ratio(self.recorder.step)


def trainer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    recorder: Recorder,
    settings: TrainingSettings,
    decoding: Decoding,
    budget: int,
    device: Model,
) -> RecordedTrainer:
    """The configured trainer; the reference of its KL term is the same model with the adapter off.

    Adapters are float32 whatever the weights are, and no logits of the whole vocabulary are kept: PEFT and TRL 1.16 see to both
    (`autocast_adapter_dtype`, `add_fused_lm_head`), tests watch them. What TRL is told stands in `arguments`; below is only where and how
    it writes.

    Raises:
        DeviceError: more than one GPU is visible.
    """
    check_single_gpu(device)
    told = {
        **arguments.FIXED,
        **arguments.configured(settings, decoding, budget, device, recorder.seed),
    }
    config = GRPOConfig(
        output_dir=str(recorder.work),
        save_strategy="steps",
        save_total_limit=2,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **deepcopy(told),
    )
    made = RecordedTrainer(
        model=model,
        args=config,
        reward_funcs=recorded_reward,
        train_dataset=Dataset.from_list(
            [{"prompt": task.messages()} for task in recorder.table.values()]
        ),
        processing_class=tokenizer,
        rollout_func=recorder.rollout_func,
        peft_config=adapter.lora_config(settings.lora),
        callbacks=[StepLog(recorder)],
    )
    made.remove_callback(PrinterCallback)  # StepLog prints
    made.recorder = recorder
    return made


def effective(made: RecordedTrainer) -> dict[str, Any]:
    """What a run trains with in full, for its manifest: TRL's arguments, the LoRA's, and the one number that TRL lets nobody set."""
    return {
        "grpo_config": arguments.recorded(made.args, arguments.MACHINE),
        "lora_config": arguments.recorded(
            made.model.peft_config["default"], arguments.LORA_MACHINE
        ),
        "advantage_epsilon": EPSILON,
    }


def check_single_gpu(device: Model) -> None:
    """Refuse several visible GPUs: `Trainer` would wrap the model in `nn.DataParallel`, which plays no part in this study.

    Choosing one here would leave the choice to chance where jobs share a node. Raises `DeviceError`.
    """
    visible = torch.cuda.device_count() if device.device == "cuda" else 1
    if visible > 1:
        raise DeviceError(
            f"training uses one GPU and this process sees {visible}; set CUDA_VISIBLE_DEVICES to one of them, or ask the scheduler for one"
        )


def recorded_reward(reward: list[float], **_: Any) -> list[float]:
    """TRL's reward function: the rewards of the records, decided where the episode was played."""
    return reward


def train(made: RecordedTrainer, work: Path) -> int:
    """Run to the last step from the newest complete checkpoint on; returns the step it was resumed from.

    A run that was killed after its last step gets its adapter back only: `Trainer.train` would take one step more.
    """
    checkpoint, step = last_checkpoint(work)
    rewind(work, step)
    made.add_callback(RatioGate(made.recorder))
    if checkpoint is not None and step >= made.args.max_steps:
        adapter.load(made.model, checkpoint)
    else:
        made.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return step


def last_checkpoint(work: Path) -> tuple[Path | None, int]:
    """The newest complete checkpoint and its step; (None, 0) to start anew."""
    found = {
        int(path.name.split("-")[1]): path
        for path in work.glob("checkpoint-*")
        if (path / COMPLETE).is_file()
    }
    return (found[max(found)], max(found)) if found else (None, 0)


def rewind(work: Path, step: int) -> None:
    """Drop evidence behind a checkpoint: episodes of policies at or after `step`, step records after it, unfinished lines."""
    for name, kept in (
        (EPISODES, lambda row: row["key"]["step"] < step),
        (STEPS, lambda row: row["step"] <= step),
    ):
        path = work / name
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith("\n")]
        write_text(
            path, "".join(line for line in whole if kept(json.loads(line)))
        )  # a kill here must not cost what is kept

"""GRPO: what the loss gets is what was recorded, the first difference stops the run, and a resumed run is the same run."""

import copy
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import pytest
import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM, TrainerCallback
from trl import GRPOTrainer

from agentrl.engine.scripted import ScriptedEngine
from agentrl.engine.transformers import TransformersEngine
from agentrl.evidence.files import write_json
from agentrl.policy import adapter
from agentrl.rollout import trajectory
from agentrl.rollout.chat import ChatProtocol
from agentrl.rollout.loop import Rollout
from agentrl.rollout.sampler import Engine, EngineError, Request, Sample
from agentrl.rollout.trajectory import Trajectory
from agentrl.study.config import Study
from agentrl.tasks.families import Task, generate, lookup_call
from agentrl.training import grpo
from agentrl.training.expert import calculator_call, encode_turn
from agentrl.training.health import HealthError, StepRecord, group_advantages
from agentrl.training.reward import random_reward, shaped_reward
from agentrl.training.settings import TrainingSettings
from agentrl.verify import evidence as verification
from agentrl.verify import gates
from agentrl.verify.breaks import Findings
from agentrl.verify.replay import Replay

Tensors = dict[str, torch.Tensor]
POLICY = "pilot/seed-3"
GROUP, BATCH = 4, 8


def settings(study: Study, **changes: object) -> TrainingSettings:
    values = {name: getattr(study.training, name) for name in TrainingSettings.model_fields}
    fixed = {
        "steps": 2,
        "group_size": GROUP,
        "batch_size": BATCH,
        "learning_rate": 0.01,
        "kl": 0.02,
        "checkpoint_every": 1,
    }
    return TrainingSettings(**values | fixed | changes)


@dataclass
class Lab:
    """What makes one run after another, each with objects of its own, as a new process has."""

    study: Study
    tasks: list[Task]
    model: Qwen3ForCausalLM
    tokenizer: PreTrainedTokenizerFast
    chat: ChatProtocol

    def sampling(self) -> Engine:
        """The policy itself, four tokens of nonsense an episode."""
        return TransformersEngine(
            None, self.study.decoding, self.chat.stop_ids, self.tokenizer.pad_token_id
        )  # type: ignore[arg-type]

    def scripted(self) -> Engine:
        """Four courses of an episode, one per trial: streams of different length, tools and reward."""
        by_id = {task.id: task for task in self.tasks}

        def script(request: Request) -> list[int]:
            _, _, _, name, trial, turn = request.key
            task = by_id[str(name)]
            look, end = lookup_call(task.record_id), f"<answer>{task.answer}</answer>"
            product = calculator_call(" * ".join(map(str, task.facts.values())))
            courses = [
                [look, product, end],
                [look, end],
                ["Nein."],
                [look, calculator_call("1 +"), product, "Fertig."],
            ]
            return encode_turn(self.chat, courses[int(trial)][int(turn)])

        return ScriptedEngine(script, self.chat.stop_ids)

    def recorder(
        self, work: Path, engine: Engine, budget: int, chosen: TrainingSettings, arm: str = "shaped"
    ) -> grpo.Recorder:
        rule = partial({"shaped": shaped_reward, "random": random_reward}[arm], self.study.reward)
        rollout = Rollout(
            engine, self.chat, self.study.protocol.model_copy(update={"budget": budget})
        )
        return grpo.Recorder(rollout, self.tasks, rule, POLICY, 3, work, chosen)

    def trainer(self, recorder: grpo.Recorder) -> grpo.RecordedTrainer:
        budget = recorder.rollout.protocol.budget
        return grpo.trainer(
            copy.deepcopy(self.model),
            self.tokenizer,
            recorder,
            recorder.settings,
            self.study.decoding,
            budget,
            self.study.model,
        )


@pytest.fixture(scope="module")
def lab(
    study: Study,
    tiny_model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    chat: ChatProtocol,
) -> Lab:
    return Lab(study, generate(study.tasks, "train", 6), tiny_model, copy.deepcopy(tokenizer), chat)


@dataclass
class Run:
    """A finished two-step run and what TRL's loss was called with."""

    work: Path
    lab: Lab
    settings: TrainingSettings
    losses: list[Tensors]
    batches: list[list[Trajectory]]
    before_step: list[tuple[int, int]]
    """Records on disk and step records on disk when the optimizer was about to step."""
    initial: Tensors
    final: Tensors

    @property
    def episodes(self) -> list[Trajectory]:
        return list(trajectory.read(self.work / grpo.EPISODES))

    @property
    def steps(self) -> list[StepRecord]:
        return [StepRecord(**json.loads(line)) for line in lines(self.work / grpo.STEPS)]


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


class BeforeStep(TrainerCallback):
    """Looks at the evidence just before the optimizer steps."""

    def __init__(self, work: Path) -> None:
        self.work, self.seen = work, []

    def on_pre_optimizer_step(self, *_: object, **__: object) -> None:
        self.seen.append(
            (len(lines(self.work / grpo.EPISODES)), len(lines(self.work / grpo.STEPS)))
        )


@pytest.fixture(scope="module", params=["shaped", "random"])
def run(request: pytest.FixtureRequest, lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Run:
    work = tmp_path_factory.mktemp(request.param)
    chosen = settings(lab.study, scale_rewards="group" if request.param == "shaped" else "none")
    recorder = lab.recorder(work, lab.scripted(), 160, chosen, request.param)
    losses, batches, original = [], [], GRPOTrainer._compute_loss

    def compute_loss(self: GRPOTrainer, model: torch.nn.Module, inputs: Tensors) -> torch.Tensor:
        losses.append(
            {
                name: value.clone()
                for name, value in inputs.items()
                if isinstance(value, torch.Tensor)
            }
        )
        batches.append(list(recorder.batch))
        return original(self, model, inputs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GRPOTrainer, "_compute_loss", compute_loss)
        trainer, watch = lab.trainer(recorder), BeforeStep(work)
        trainer.add_callback(watch)
        initial = adapter.state(trainer.model)
        trainer.train()
    return Run(
        work, lab, chosen, losses, batches, watch.seen, initial, adapter.state(trainer.model)
    )


def test_episodes_are_on_disk_before_the_step(run: Run) -> None:
    assert run.before_step == [(BATCH, 0), (2 * BATCH, 1)]


def test_every_episode_is_recorded_once_under_its_policy(run: Run) -> None:
    keys = [episode.key for episode in run.episodes]
    assert {(key.policy, key.seed, key.split) for key in keys} == {(POLICY, 3, "train")}
    assert [key.step for key in keys] == [0] * BATCH + [1] * BATCH
    assert [key.trial for key in keys] == list(range(GROUP)) * 4
    assert len({key.task for key in keys[:BATCH]}) == len({key.task for key in keys[BATCH:]}) == 2


def test_the_loss_got_the_recorded_ids_and_trains_on_sampled_ids_only(run: Run) -> None:
    for step, loss in enumerate(run.losses):
        episodes = run.episodes[step * BATCH : (step + 1) * BATCH]
        assert sorted(loss["episode"].tolist()) == list(range(BATCH))
        for position, row in enumerate(loss["episode"].tolist()):
            episode, kept = episodes[row], loss["completion_mask"][position].bool()
            trained = (loss["completion_mask"] * loss["tool_mask"])[position].bool()
            assert (
                loss["prompt_ids"][position][loss["prompt_mask"][position].bool()].tolist()
                == episode.prompt_ids
            )
            assert loss["completion_ids"][position][kept].tolist() == episode.completion_ids
            assert loss["completion_ids"][position][trained].tolist() == [
                i for segment in episode.sampled for i in segment.ids
            ]
            assert float(loss["advantages"][position]) == pytest.approx(episode.advantage, abs=1e-6)
            assert [value for value, length in episode.loss_runs for _ in range(length)] == trained[
                kept
            ].int().tolist()
    assert {len(episode.sampled) for episode in run.episodes} == {1, 2, 3, 4}


def test_rewards_are_the_arm_s_and_advantages_follow(run: Run) -> None:
    rewards = [episode.reward for episode in run.episodes]
    assert len(set(rewards)) > 1
    assert [episode.advantage for episode in run.episodes] == pytest.approx(
        group_advantages(rewards, run.settings), abs=1e-4
    )
    for episode in run.episodes:
        assert episode.outcome.strict == (episode.key.trial == 0)


def test_one_step_record_per_step(run: Run) -> None:
    assert [record.step for record in run.steps] == [1, 2]
    for index, record in enumerate(run.steps):
        episodes = run.episodes[index * BATCH : (index + 1) * BATCH]
        unmeasured = {
            "loss": 0.0,
            "grad_norm": 0.0,
            "kl": 0.0,
            "gap_mean": 0.0,
            "gap_max": 0.0,
            "ratio_mean": 1.0,
            "ratio_outside": 0.0,
        }
        assert replace(record, **unmeasured) == StepRecord.of(episodes, GROUP)
        assert record.grad_norm > 0


def test_the_adapter_starts_from_the_seed_alone(lab: Lab, tmp_path: Path) -> None:
    """Whatever drew random numbers before: after a resume the initial tensors must be those that the run began with."""
    made = []
    for before, seed in ((1, 3), (2, 3), (1, 4)):
        torch.manual_seed(before)
        recorder = lab.recorder(tmp_path, lab.sampling(), 6, settings(lab.study))
        recorder.seed = seed
        made.append(adapter.state(lab.trainer(recorder).model))
    assert all(tensor.equal(made[1][name]) for name, tensor in made[0].items())
    assert not any(
        tensor.equal(made[2][name]) for name, tensor in made[0].items() if "lora_A" in name
    )
    assert not any(tensor.any() for name, tensor in made[0].items() if "lora_B" in name)


def test_adapters_are_float32_on_bfloat16_weights(lab: Lab, tmp_path: Path) -> None:
    """A step of 1e-5 is lost in BF16: its numbers near 0.01 lie 6e-5 apart."""
    half = replace(lab, model=copy.deepcopy(lab.model).bfloat16())
    recorder = half.recorder(tmp_path, half.scripted(), 160, settings(lab.study, steps=1))
    trainer = half.trainer(recorder)
    initial = adapter.state(trainer.model)
    trainer.train()
    final = adapter.state(trainer.model)
    assert {tensor.dtype for tensor in (*initial.values(), *final.values())} == {torch.float32}
    assert {weight.dtype for weight in trainer.model.parameters() if not weight.requires_grad} == {
        torch.bfloat16
    }
    assert any(not tensor.equal(initial[name]) for name, tensor in final.items())


def test_training_keeps_no_logits_of_the_whole_vocabulary(lab: Lab, tmp_path: Path) -> None:
    """The head is only ever called by the sampler, on one position a row; the loss projects in tiles."""
    recorder = lab.recorder(tmp_path, lab.sampling(), 6, settings(lab.study, steps=1))
    trainer = lab.trainer(recorder)
    shapes: list[torch.Size] = []
    trainer.model.get_output_embeddings().register_forward_hook(
        lambda _, __, logits: shapes.append(logits.shape)
    )
    trainer.train()
    assert shapes
    assert {shape[1] for shape in shapes} == {1}


def test_several_visible_gpus_are_refused(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    recorder = lab.recorder(tmp_path, lab.scripted(), 160, settings(lab.study))
    cuda = lab.study.model.model_copy(update={"device": "cuda"})
    with pytest.raises(grpo.DeviceError, match="sees 2; set CUDA_VISIBLE_DEVICES to one"):
        grpo.trainer(
            lab.model, lab.tokenizer, recorder, recorder.settings, lab.study.decoding, 160, cuda
        )


def test_every_adapter_tensor_is_trained(run: Run) -> None:
    targets = len(run.settings.lora.targets) * run.lab.model.config.num_hidden_layers
    assert len(run.initial) == len(run.final) == 2 * targets
    assert all(
        not run.final[name].equal(run.initial[name]) for name in run.initial if "lora_B" in name
    )


def test_the_reference_is_the_start_policy(run: Run) -> None:
    """KL is exactly 0 at step 1; at both steps the reference's log-probabilities are those of the model without an adapter."""
    assert run.steps[0].kl == 0.0
    assert run.steps[1].kl > 0
    for loss in run.losses:
        ids = torch.cat([loss["prompt_ids"], loss["completion_ids"]], dim=1)
        attention = torch.cat([loss["prompt_mask"], loss["completion_mask"]], dim=1)
        width = loss["completion_ids"].shape[1]
        with torch.inference_mode():
            logits = run.lab.model(input_ids=ids, attention_mask=attention).logits[
                :, -width - 1 : -1
            ]
        scores = (logits / run.lab.study.decoding.temperature).log_softmax(-1)
        expected = scores.gather(-1, loss["completion_ids"].unsqueeze(-1)).squeeze(-1)
        kept = loss["completion_mask"].bool()
        torch.testing.assert_close(
            loss["ref_per_token_logps"][kept], expected[kept], atol=1e-4, rtol=1e-4
        )


@pytest.mark.parametrize(
    ("loss_type", "dtype"),
    [
        ("dapo", "float32"),
        ("dapo", "bfloat16"),
        ("bnpo", "float32"),
        ("dr_grpo", "float32"),
        ("grpo", "float32"),
    ],
)
def test_verification_s_gates_hold_for_what_trl_computed(
    lab: Lab, tmp_path: Path, loss_type: str, dtype: str
) -> None:
    """KL at step 1 and every loss, from the records alone; the policy is far from its reference at the later steps."""
    device = lab.study.model.model_copy(update={"dtype": dtype})
    made = replace(
        lab,
        model=copy.deepcopy(lab.model).to(getattr(torch, dtype)),
        study=lab.study.model_copy(update={"model": device}),
    )
    recorder = made.recorder(
        tmp_path, made.scripted(), 160, settings(lab.study, loss_type=loss_type, steps=3)
    )
    made.trainer(recorder).train()
    rows, steps = (
        [json.loads(line) for line in lines(tmp_path / name)]
        for name in (grpo.EPISODES, grpo.STEPS)
    )
    trained = recorder.settings.model_dump(mode="json")
    config = {
        "training": trained,
        "model": {"dtype": dtype},
        "arm": {"warmup": None},
        "protocol": {"budget": 160},
    }
    findings = Findings(tmp_path)
    gates._kl(tmp_path / grpo.STEPS, steps, config, findings)
    gates._losses(tmp_path / grpo.STEPS, steps, rows, config, findings)
    assert findings.passed, findings.first
    assert findings.counts["losses recomputed"] == 3
    assert steps[2]["kl"] > 1
    beyond = 100 * trained["kl"]  # more than the way in which the KL spreads over rows can explain
    wrong = [{**step, "loss": step["loss"] + 2.0 + beyond * step["kl"]} for step in steps]
    gates._losses(tmp_path / grpo.STEPS, wrong, rows, config, findings)
    assert findings.breaks["loss"] == 3


@pytest.fixture
def checked(run: Run, tmp_path: Path) -> tuple[grpo.Recorder, Tensors]:
    """A recorder that holds the second batch, and what TRL was about to train on."""
    recorder = run.lab.recorder(tmp_path, run.lab.scripted(), 160, run.settings)
    recorder.batch = run.batches[1]
    return recorder, {name: value.clone() for name, value in run.losses[1].items()}


def rows(inputs: Tensors, order: list[int]) -> Tensors:
    """The batch with its rows in another order."""
    return {name: value[order] if value.dim() else value for name, value in inputs.items()}


@pytest.mark.parametrize(
    "order", [list(range(BATCH)), list(range(BATCH))[::-1], [3, 0, 6, 1, 7, 2, 5, 4]]
)
def test_what_trl_really_trains_on_passes_in_any_order(
    checked: tuple[grpo.Recorder, Tensors], order: list[int]
) -> None:
    recorder, inputs = checked
    recorder.check(rows(inputs, order))
    written = list(trajectory.read(recorder.work / grpo.EPISODES))
    assert [
        replace(episode, advantage=None, loss_runs=None) for episode in written
    ] == recorder.batch


def first(inputs: Tensors, name: str, position: int) -> int:
    """First kept column of a row."""
    return int(inputs[name][position].nonzero()[0])


def boundary(inputs: Tensors, position: int) -> int:
    """First column of a row that the environment wrote."""
    return int((inputs["tool_mask"][position] == 0).nonzero()[0])


def prompt_id(inputs: Tensors, at: int) -> None:
    inputs["prompt_ids"][at, first(inputs, "prompt_mask", at) + 5] += 1


def prompt_cut(inputs: Tensors, at: int) -> None:
    inputs["prompt_mask"][at, first(inputs, "prompt_mask", at)] = 0


def sampled_id(inputs: Tensors, at: int) -> None:
    inputs["completion_ids"][at, boundary(inputs, at) - 2] += 1


def observed_id(inputs: Tensors, at: int) -> None:
    inputs["completion_ids"][at, boundary(inputs, at) + 3] += 1


def completion_cut(inputs: Tensors, at: int) -> None:
    inputs["completion_mask"][at, int(inputs["completion_mask"][at].sum()) - 1] = 0


def mask_bit(inputs: Tensors, at: int) -> None:
    inputs["tool_mask"][at, boundary(inputs, at) - 3] = 0


def mask_longer(inputs: Tensors, at: int) -> None:
    inputs["tool_mask"][at, boundary(inputs, at)] = 1


def mask_shorter(inputs: Tensors, at: int) -> None:
    inputs["tool_mask"][at, boundary(inputs, at) - 1] = 0


def mask_off(inputs: Tensors, at: int) -> None:
    inputs["tool_mask"][at] = 1


def advantage_off(inputs: Tensors, at: int) -> None:
    inputs["advantages"][at] += 0.001


def advantage_sign(inputs: Tensors, at: int) -> None:
    inputs["advantages"][at] *= -1


def advantage_nan(inputs: Tensors, at: int) -> None:
    inputs["advantages"][at] = torch.nan


Corruption = Callable[[Tensors, int], None]
CORRUPTIONS: list[tuple[Corruption, str]] = [
    (prompt_id, "prompt ids"),
    (prompt_cut, "prompt ids"),
    (sampled_id, "completion ids"),
    (observed_id, "completion ids"),
    (completion_cut, "completion ids"),
    (mask_bit, "loss mask"),
    (mask_longer, "loss mask"),
    (mask_shorter, "loss mask"),
    (mask_off, "loss mask"),
    (advantage_off, "advantage"),
    (advantage_sign, "advantage"),
    (advantage_nan, "advantage"),
]


def lively(recorder: grpo.Recorder, inputs: Tensors) -> int:
    """The last row of the batch whose episode saw a tool and has an advantage."""
    found = [
        p
        for p, row in enumerate(inputs["episode"].tolist())
        if recorder.batch[row].calls and inputs["advantages"][p] != 0
    ]
    return found[-1]


@pytest.mark.parametrize(
    ("corrupt", "field"), CORRUPTIONS, ids=lambda value: getattr(value, "__name__", "")
)
def test_one_difference_stops_the_run_and_is_named(
    checked: tuple[grpo.Recorder, Tensors], corrupt: Corruption, field: str
) -> None:
    recorder, inputs = checked
    at = lively(recorder, inputs)
    corrupt(inputs, at)
    with pytest.raises(grpo.BoundaryError, match=f"TRL's {field}") as caught:
        recorder.check(inputs)
    assert str(recorder.batch[int(inputs["episode"][at])].key) in str(caught.value)
    assert not (recorder.work / grpo.EPISODES).exists()


def test_swapped_rows_are_found(checked: tuple[grpo.Recorder, Tensors]) -> None:
    """Whether everything but the row's number is exchanged, or the advantages of one group alone."""
    recorder, inputs = checked
    order = [1, 0, *range(2, BATCH)]
    with pytest.raises(grpo.BoundaryError, match=r"TRL's (prompt|completion) ids differ"):
        recorder.check(rows(inputs, order) | {"episode": inputs["episode"]})
    by_row = inputs["episode"].argsort().tolist()
    one, other = (
        by_row[0],
        next(
            p for p in by_row[1:GROUP] if inputs["advantages"][p] != inputs["advantages"][by_row[0]]
        ),
    )
    inputs["advantages"][[one, other]] = inputs["advantages"][[other, one]]
    with pytest.raises(grpo.BoundaryError, match="TRL's advantage"):
        recorder.check(inputs)


@pytest.mark.parametrize(
    "order", [list(range(BATCH - 1)), [*range(BATCH - 1), 0], [*range(BATCH), 0], []]
)
def test_a_dropped_or_doubled_row_is_found(
    checked: tuple[grpo.Recorder, Tensors], order: list[int]
) -> None:
    recorder, inputs = checked
    with pytest.raises(grpo.BoundaryError, match=re.escape(f"of {BATCH} recorded episodes")):
        recorder.check(rows(inputs, order))


def test_the_difference_is_shown_where_it_begins(checked: tuple[grpo.Recorder, Tensors]) -> None:
    recorder, inputs = checked
    at = lively(recorder, inputs)
    ids, column = (
        recorder.batch[int(inputs["episode"][at])].completion_ids,
        boundary(inputs, at) - 2,
    )
    sampled_id(inputs, at)
    shown = rf"at position {column} \(recorded \[{ids[column]}, .*\] of {len(ids)}, given \[{ids[column] + 1}, "
    with pytest.raises(grpo.BoundaryError, match=shown):
        recorder.check(inputs)


def test_an_episode_without_reward_is_refused(checked: tuple[grpo.Recorder, Tensors]) -> None:
    recorder, inputs = checked
    recorder.batch = [replace(recorder.batch[0], reward=None), *recorder.batch[1:]]
    with pytest.raises(grpo.BoundaryError, match="no reward was recorded"):
        recorder.check(inputs)


def test_a_corruption_inside_trl_stops_before_the_step(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the check is there for: a release of TRL that trains on something else."""
    original = GRPOTrainer._generate_and_score_completions

    def spoilt(self: GRPOTrainer, inputs: list[dict[str, object]]) -> Tensors:
        output = original(self, inputs)
        output["tool_mask"] = torch.ones_like(output["tool_mask"])
        return output

    monkeypatch.setattr(GRPOTrainer, "_generate_and_score_completions", spoilt)
    trainer = lab.trainer(lab.recorder(tmp_path, lab.scripted(), 160, settings(lab.study)))
    initial = adapter.state(trainer.model)
    with pytest.raises(grpo.BoundaryError, match="loss mask"):
        trainer.train()
    assert all(tensor.equal(initial[name]) for name, tensor in adapter.state(trainer.model).items())
    assert grpo.last_checkpoint(tmp_path) == (None, 0)


def test_an_engine_fault_is_no_score(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = lab.scripted()
    monkeypatch.setattr(engine, "generate", lambda requests: [])
    with pytest.raises(EngineError):
        lab.trainer(lab.recorder(tmp_path, engine, 160, settings(lab.study))).train()
    assert lines(tmp_path / grpo.EPISODES) == []


@dataclass
class Evidence:
    """What a run leaves."""

    resumed: int
    """Step it went on from."""
    episodes: bytes
    steps: bytes
    adapter: Tensors


def train(lab: Lab, work: Path, steps: int = 4) -> Evidence:
    """Start or resume, as scripts/train.py does, with new objects; the policy itself samples."""
    recorder = lab.recorder(work, lab.sampling(), 6, settings(lab.study, steps=steps), "random")
    trainer = lab.trainer(recorder)
    resumed = grpo.train(trainer, work)
    return Evidence(
        resumed,
        (work / grpo.EPISODES).read_bytes(),
        (work / grpo.STEPS).read_bytes(),
        adapter.state(trainer.model),
    )


@pytest.fixture(scope="module")
def straight(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """Four steps in one go."""
    return train(lab, tmp_path_factory.mktemp("straight"))


def test_the_gradient_is_the_ids_and_not_the_engine_s(
    lab: Lab, straight: Evidence, tmp_path: Path
) -> None:
    """The same ids from an engine with other log-probabilities give the same adapter, bit for bit: no correction rests on them."""
    said = {}
    for episode in map(json.loads, straight.episodes.splitlines()):
        key = episode["key"]
        for turn, segment in enumerate(
            part for part in episode["segments"] if part["kind"] == "sampled"
        ):
            said[key["step"], key["task"], key["trial"], turn] = segment["ids"]
    engine = ScriptedEngine(lambda request: said[request.key[2:]], lab.chat.stop_ids)
    trainer = lab.trainer(lab.recorder(tmp_path, engine, 6, settings(lab.study, steps=4), "random"))
    trainer.train()
    found = adapter.state(trainer.model)
    assert all(tensor.equal(straight.adapter[name]) for name, tensor in found.items())
    steps = [json.loads(line) for line in lines(tmp_path / grpo.STEPS)]
    theirs = [json.loads(line) for line in straight.steps.splitlines()]
    assert [step["grad_norm"] for step in steps] == [step["grad_norm"] for step in theirs]
    assert all(step["gap_mean"] > 1 for step in steps)


def test_each_step_measures_sampler_against_trainer(straight: Evidence) -> None:
    for line in straight.steps.splitlines():
        step = json.loads(line)
        assert 0 <= step["gap_mean"] <= step["gap_max"] < 1e-4
        assert step["ratio_mean"] == pytest.approx(1, abs=1e-4)
        assert step["ratio_outside"] == 0
        assert step["sampled_tokens"] == sum(
            len(part["ids"])
            for episode in map(json.loads, straight.episodes.splitlines())
            if episode["key"]["step"] == step["step"] - 1
            for part in episode["segments"]
            if part["kind"] == "sampled"
        )


class Truncated(TransformersEngine):
    """Reports log-probabilities behind top-k and top-p, as vLLM's `processed_logprobs` are: some nats above the trainer's."""

    name = "truncated"

    def generate(self, requests: list[Request]) -> list[Sample]:
        return [
            replace(sample, logprobs=[score + 1.5 for score in sample.logprobs])
            for sample in super().generate(requests)
        ]


def test_a_sampler_of_another_distribution_stops_the_run_at_its_first_step(
    lab: Lab, tmp_path: Path
) -> None:
    engine = Truncated(None, lab.study.decoding, lab.chat.stop_ids, lab.tokenizer.pad_token_id)
    trainer = lab.trainer(lab.recorder(tmp_path, engine, 6, settings(lab.study), "random"))
    with pytest.raises(
        HealthError,
        match=r"step 1: over \d+ sampled tokens the trainer gives 0\.223 times the sampler's probability",
    ):
        grpo.train(trainer, tmp_path)
    assert len(lines(tmp_path / grpo.STEPS)) == 1


@pytest.fixture
def interrupted(lab: Lab, tmp_path: Path) -> Path:
    """The work folder of a run killed in its third step: evidence of the step is written, the step is not taken."""
    calls, original = [], GRPOTrainer._compute_loss

    def compute_loss(self: GRPOTrainer, model: torch.nn.Module, inputs: Tensors) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(self, model, inputs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GRPOTrainer, "_compute_loss", compute_loss)
        with pytest.raises(KeyboardInterrupt):
            train(lab, tmp_path)
    return tmp_path


def same(one: Evidence, two: Evidence) -> bool:
    adapters = one.adapter.keys() == two.adapter.keys() and all(
        t.equal(two.adapter[n]) for n, t in one.adapter.items()
    )
    return (one.episodes, one.steps, adapters) == (two.episodes, two.steps, True)


def test_a_resumed_run_is_the_same_run(lab: Lab, straight: Evidence, interrupted: Path) -> None:
    assert len(lines(interrupted / grpo.EPISODES)) == 3 * BATCH
    for name in (grpo.EPISODES, grpo.STEPS):
        with open(interrupted / name, "a") as stream:
            stream.write('{"key": {"step": 2')
    resumed = train(lab, interrupted)
    assert (straight.resumed, resumed.resumed) == (0, 2)
    assert same(resumed, straight)
    assert [json.loads(line)["step"] for line in straight.steps.splitlines()] == [1, 2, 3, 4]
    finished = train(
        lab, interrupted
    )  # killed after its last step, before its results were published
    assert finished.resumed == 4
    assert same(finished, straight)


def test_an_incomplete_checkpoint_is_not_resumed_from(
    lab: Lab, straight: Evidence, interrupted: Path
) -> None:
    (interrupted / "checkpoint-2" / grpo.COMPLETE).unlink()
    (interrupted / "checkpoint-2" / "optimizer.pt").write_bytes(b"half")
    assert grpo.last_checkpoint(interrupted) == (interrupted / "checkpoint-1", 1)
    resumed = train(lab, interrupted)
    assert resumed.resumed == 1
    assert same(resumed, straight)


def test_the_policy_moves_what_is_sampled(lab: Lab, straight: Evidence, tmp_path: Path) -> None:
    """Else a resumed run could not differ: a run that stands still would sample other ids."""
    still = lab.recorder(
        tmp_path, lab.sampling(), 6, settings(lab.study, steps=4, learning_rate=1e-12), "random"
    )
    lab.trainer(still).train()
    moved = [json.loads(line) for line in straight.episodes.splitlines()]
    for episode, other in zip(moved, trajectory.read(tmp_path / grpo.EPISODES), strict=True):
        assert (episode["segments"][1]["logprobs"] == other.sampled[0].logprobs) == (
            episode["key"]["step"] == 0
        )


def test_the_newest_complete_checkpoint_is_found_by_number(tmp_path: Path) -> None:
    assert grpo.last_checkpoint(tmp_path) == (None, 0)
    for step in (8, 16, 104, 112):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if step != 112:
            write_json(tmp_path / f"checkpoint-{step}" / grpo.COMPLETE, {"step": step})
    assert grpo.last_checkpoint(tmp_path) == (tmp_path / "checkpoint-104", 104)


@pytest.mark.parametrize(
    ("step", "episodes", "steps"),
    [(0, [], []), (1, [0, 0], [1]), (2, [0, 0, 1, 1], [1, 2]), (9, [0, 0, 1, 1, 2, 2], [1, 2, 3])],
)
def test_rewind_drops_later_and_unfinished_lines(
    tmp_path: Path, step: int, episodes: list[int], steps: list[int]
) -> None:
    (tmp_path / grpo.EPISODES).write_text(
        "".join(json.dumps({"key": {"step": n // 2}}) + "\n" for n in range(6))
        + '{"key": {"step": 0}}'
    )
    (tmp_path / grpo.STEPS).write_text(
        "".join(json.dumps({"step": n}) + "\n" for n in (1, 2, 3)) + '{"ste'
    )
    grpo.rewind(tmp_path, step)
    assert [json.loads(line)["key"]["step"] for line in lines(tmp_path / grpo.EPISODES)] == episodes
    assert [json.loads(line)["step"] for line in lines(tmp_path / grpo.STEPS)] == steps
    assert all(
        (tmp_path / name).read_text()[-1:] in ("\n", "") for name in (grpo.EPISODES, grpo.STEPS)
    )


def test_rewind_never_loses_what_it_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill while rewinding must leave either file."""
    line = json.dumps({"key": {"step": 0}}) + "\n"
    (tmp_path / grpo.EPISODES).write_text(line)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        grpo.rewind(tmp_path, 1)
    assert (tmp_path / grpo.EPISODES).read_text() == line


def stepped(lab: Lab, work: Path, **changes: object) -> tuple[list[StepRecord], Tensors]:
    """Two steps on scripted episodes: the same ids whatever the policy is; the step records and the adapter."""
    work.mkdir()
    recorder = lab.recorder(work, lab.scripted(), 160, settings(lab.study, **changes))
    trainer = lab.trainer(recorder)
    trainer.train()
    return [StepRecord(**json.loads(line)) for line in lines(work / grpo.STEPS)], adapter.state(
        trainer.model
    )


def test_the_estimator_of_the_kl_term_changes_the_gradient_where_the_policy_has_left_the_reference(
    lab: Lab, tmp_path: Path
) -> None:
    """At step 1 both are 0 and flat; at step 2 they have one value and two gradients."""
    (first, second), k3 = stepped(lab, tmp_path / "k3", kl=0.5, kl_estimator="k3")
    (same, other), unbiased = stepped(
        lab, tmp_path / "unbiased", kl=0.5, kl_estimator="k3_unbiased"
    )
    assert (same.grad_norm, same.loss) == (first.grad_norm, first.loss)
    assert other.kl == second.kl > 0
    assert abs(other.grad_norm - second.grad_norm) > 1e-3 * second.grad_norm
    assert any(not tensor.equal(unbiased[name]) for name, tensor in k3.items())


@pytest.mark.parametrize(
    ("estimator", "slope"),
    [
        ("k3", lambda d: 1 - torch.exp(d)),
        ("k3_unbiased", lambda d: -d),
    ],  # d: reference minus policy, nats
    ids=["k3", "k3_unbiased"],
)
def test_the_loss_is_the_configured_one(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    estimator: str,
    slope: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """By hand: each trained token's slope is (-advantage + kl * slope of the estimator) / trained tokens. That of the unbiased one is the
    reverse KL's score function; TRL 0.29.0's default is the plain one."""
    chosen = settings(run.lab.study, kl=0.3, kl_estimator=estimator)
    trainer = run.lab.trainer(run.lab.recorder(tmp_path, run.lab.scripted(), 160, chosen))
    inputs = run.losses[1]
    policy = (
        inputs["ref_per_token_logps"] + torch.linspace(-1, 1, inputs["completion_ids"].shape[1])
    ).requires_grad_()
    seen = (policy, torch.zeros_like(policy), None)
    monkeypatch.setattr(GRPOTrainer, "_get_per_token_logps_and_entropies", lambda *_, **__: seen)
    trainer.model.eval()  # else TRL asks how many steps it accumulates, known in `train` only
    GRPOTrainer._compute_loss(trainer, trainer.model, inputs).backward()
    mask = inputs["completion_mask"] * inputs["tool_mask"]
    away = (inputs["ref_per_token_logps"] - policy).detach()
    expected = (0.3 * slope(away) - inputs["advantages"].unsqueeze(1)) * mask / mask.sum()
    torch.testing.assert_close(policy.grad, expected)


def test_the_optimizer_is_the_configured_one(lab: Lab, tmp_path: Path) -> None:
    section = {
        "name": "adamw_torch",
        "beta1": 0.7,
        "beta2": 0.9,
        "epsilon": 1e-5,
        "weight_decay": 0.2,
    }
    changes = {"optimizer": section, "warmup_steps": 2, "lr_schedule": "constant", "steps": 4}
    chosen = settings(lab.study).model_dump() | {**changes, "learning_rate": 0.01}
    trainer = lab.trainer(lab.recorder(tmp_path, lab.scripted(), 160, TrainingSettings(**chosen)))
    trainer.create_optimizer_and_scheduler(4)
    group = trainer.optimizer.param_groups[0]
    found = {
        name: group[name]
        for name in ("betas", "eps", "weight_decay", "fused", "amsgrad", "maximize")
    }
    assert type(trainer.optimizer) is torch.optim.AdamW
    assert found == {
        "betas": (0.7, 0.9),
        "eps": 1e-5,
        "weight_decay": 0.2,
        "fused": None,
        "amsgrad": False,
        "maximize": False,
    }
    rates = []
    for _ in range(4):
        rates.append(trainer.lr_scheduler.get_last_lr()[0])
        trainer.optimizer.step()
        trainer.lr_scheduler.step()
    assert rates == pytest.approx([0.0, 0.005, 0.01, 0.01])


def test_the_effective_arguments_are_recorded_in_full(lab: Lab, tmp_path: Path) -> None:
    """And are the same in another folder, before and after the run."""
    made = [
        lab.trainer(lab.recorder(tmp_path / name, lab.scripted(), 160, settings(lab.study, kl=0.3)))
        for name in ("a", "b")
    ]
    first, second = (
        json.dumps(grpo.effective(trainer), sort_keys=True, allow_nan=False) for trainer in made
    )
    assert first == second
    (tmp_path / "a").mkdir(exist_ok=True)
    made[0].train()
    assert json.dumps(grpo.effective(made[0]), sort_keys=True) == first
    found = json.loads(first)
    assert (found["grpo_config"]["beta"], found["grpo_config"]["use_bias_correction_kl"]) == (
        0.3,
        False,
    )
    assert found["lora_config"]["target_modules"] == sorted(made[0].recorder.settings.lora.targets)
    assert found["advantage_epsilon"] == 1e-4
    assert str(tmp_path) not in first


@pytest.mark.parametrize("leave_out", [True, False])
def test_episodes_that_break_off_are_left_out_of_the_loss_where_the_configuration_says_so(
    lab: Lab, tmp_path: Path, leave_out: bool
) -> None:
    """A budget that cuts some of the scripted courses short: TRL's mask, the records and what verification derives agree."""
    chosen = settings(lab.study, mask_truncated=leave_out, steps=1)
    recorder = lab.recorder(tmp_path, lab.scripted(), 60, chosen)
    lab.trainer(recorder).train()
    episodes = list(trajectory.read(tmp_path / grpo.EPISODES))
    cut = [episode for episode in episodes if episode.completion_ids[-1] not in lab.chat.stop_ids]
    assert 0 < len(cut) < len(episodes)
    evidence = verification.Evidence(tmp_path, lab.chat, Findings(tmp_path))
    for line, episode in zip(lines(tmp_path / grpo.EPISODES), episodes, strict=True):
        looked_at = (
            [0] * len(episode.loss_mask) if leave_out and episode in cut else episode.loss_mask
        )
        assert [value for value, length in episode.loss_runs for _ in range(length)] == looked_at
        replayed = Replay()
        replayed.mask = episode.loss_mask
        assert evidence._loss_mask(json.loads(line), replayed, chosen) == looked_at

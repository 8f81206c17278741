"""Warm-up: demonstrations are strict successes on training tasks only, and what is taught is what a policy would have sampled."""

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import Qwen3ForCausalLM

from agentrl.policy.settings import Model
from agentrl.rollout.chat import ChatProtocol
from agentrl.rollout.trajectory import Trajectory
from agentrl.study.config import Study
from agentrl.tasks.families import Task, generate
from agentrl.training import warmup
from agentrl.training.settings import TrainingSettings, Warmup
from agentrl.verify.replay import replay

CPU = Model(start=None, dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def train_tasks(study: Study) -> list[Task]:
    return generate(study.tasks, "train", 6)


@pytest.fixture(scope="module")
def played(study: Study, chat: ChatProtocol, train_tasks: list[Task]) -> list[Trajectory]:
    return warmup.demonstrate(train_tasks, chat, study.protocol, "warm/seed-3", 3)


def test_every_training_task_is_demonstrated_once_and_replays_as_a_strict_success(
    study: Study, chat: ChatProtocol, train_tasks: list[Task], played: list[Trajectory]
) -> None:
    assert [(e.key.policy, e.key.step, e.key.task, e.key.seed) for e in played] == [
        ("warm/seed-3", 0, t.id, 3) for t in train_tasks
    ]
    for task, episode in zip(train_tasks, played, strict=True):
        found = replay(episode.to_json(), task, chat, study.protocol)
        assert found.mismatches == []
        assert found.outcome["strict"] is True
        assert (episode.outcome.tool_errors, len(episode.calls)) == (0, 2)


def test_the_seed_chooses_the_words(
    study: Study, chat: ChatProtocol, train_tasks: list[Task], played: list[Trajectory]
) -> None:
    assert warmup.demonstrate(train_tasks, chat, study.protocol, "warm/seed-3", 3) == played
    other = warmup.demonstrate(train_tasks, chat, study.protocol, "warm/seed-3", 4)
    assert [e.completion_ids for e in other] != [e.completion_ids for e in played]


def test_tasks_of_another_split_are_refused(
    study: Study, chat: ChatProtocol, tasks: list[Task]
) -> None:
    with pytest.raises(
        warmup.WarmupError,
        match=f"task {tasks[0].id}: demonstrations are made of training tasks only",
    ):
        warmup.demonstrate(tasks, chat, study.protocol, "warm/seed-3", 3)


def test_a_budget_that_cuts_the_expert_short_is_refused(
    study: Study, chat: ChatProtocol, train_tasks: list[Task]
) -> None:
    short = study.protocol.model_copy(update={"budget": 40})
    with pytest.raises(
        warmup.WarmupError, match=rf"task {train_tasks[0].id}: .*protocol\.budget \(40\)"
    ):
        warmup.demonstrate(train_tasks, chat, short, "warm/seed-3", 3)


def test_training_teaches_the_sampled_tokens_and_leaves_the_start_alone(
    tiny_model: Qwen3ForCausalLM,
    chat: ChatProtocol,
    played: list[Trajectory],
    study: Study,
    tmp_path: Path,
) -> None:
    before = {name: tensor.clone() for name, tensor in tiny_model.state_dict().items()}
    settings = TrainingSettings(**study.training.model_dump(exclude={"seeds"}))
    section = Warmup(steps=12, batch_size=6, learning_rate=1e-2)
    adapted, log = warmup.train(tiny_model, chat, played, section, settings, CPU, 3, tmp_path)
    try:
        assert [entry["step"] for entry in log] == [12]
        with torch.inference_mode():
            taught = nats(adapted, played)
            with adapted.disable_adapter():
                start = nats(adapted, played)
        assert taught < 0.8 * start
    finally:
        adapted.unload()
    for name, tensor in tiny_model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def nats(model: PeftModel, played: list[Trajectory]) -> float:
    """Mean negative log-likelihood of the sampled tokens."""
    losses = []
    for episode in played:
        ids = torch.tensor([episode.prompt_ids + episode.completion_ids])
        mask = torch.tensor([[0] * len(episode.prompt_ids) + episode.loss_mask])
        labels = ids.masked_fill(mask == 0, -100)
        losses.append(float(model(input_ids=ids, labels=labels).loss))
    return sum(losses) / len(losses)

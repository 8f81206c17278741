"""Evaluation: every task and trial once, whatever the batch shape, and counts that follow from the episodes."""

from collections import Counter
from collections.abc import Callable

import pytest
from transformers import Qwen3ForCausalLM

from agentrl.engine.scripted import ScriptedEngine
from agentrl.engine.transformers import TransformersEngine
from agentrl.evaluation.agent import batched_list, episodes, measures
from agentrl.rollout.chat import ChatProtocol
from agentrl.rollout.loop import Rollout
from agentrl.rollout.settings import Decoding
from agentrl.rollout.trajectory import Key, Segment, Trajectory
from agentrl.study.config import Study
from agentrl.tasks.environment import Call, EndKind, Outcome
from agentrl.tasks.families import Task, lookup_call
from agentrl.training.expert import calculator_call, encode_turn

Say = Callable[..., Trajectory]
ZERO = dict.fromkeys(
    ("episodes", "strict_success", "valid_workflow", "correct_answer", "lookup", "calculation", "tool_calls", "tool_errors",
     "malformed_finals", "malformed_uncapped", "turn_cap", "token_cap", "observation_cap", "assistant_tokens", "external_tokens",
     "infrastructure_errors"), 0,
)  # fmt: skip


def product(task: Task) -> str:
    return calculator_call(" * ".join(map(str, task.facts.values())))


def test_measures_of_whole_episodes(say: Say, task: Task) -> None:
    """One episode of each kind, played; every count is stated by hand."""
    look, right = lookup_call(task.record_id), f"<answer>{task.answer}</answer>"
    played = [
        say(task, look, product(task), right),
        say(task, look, product(task), f"<answer>{task.answer + 1}</answer>"),
        say(task, look, right),
        say(task, look, product(task), "Fertig."),
        say(task, calculator_call("1 +"), look, product(task), right),
        say(task, look, look, look, look),
        say(task, look, budget=8),
        say(task, look, budget=len(say(task, look, "Nein.").sampled[0].ids) + 1),
    ]
    assert [episode.outcome.end for episode in played] == [
        "answer", "answer", "answer", "malformed", "answer", "turn_cap", "token_cap", "observation_cap",
    ]  # fmt: skip
    found = measures(played, 8)
    assert found == {
        "episodes": 8, "strict_success": 2, "valid_workflow": 4, "correct_answer": 3, "lookup": 6, "calculation": 4, "tool_calls": 14,
        "tool_errors": 1, "malformed_finals": 4, "malformed_uncapped": 1, "turn_cap": 1, "token_cap": 1, "observation_cap": 1,
        "infrastructure_errors": 0,
        "assistant_tokens": sum(sum(episode.loss_mask) for episode in played),
        "external_tokens": sum(len(segment.ids) for e in played for segment in e.segments if segment.kind in ("framing", "observation")),
    }  # fmt: skip
    assert found["assistant_tokens"] + found["external_tokens"] == sum(
        len(episode.completion_ids) for episode in played
    )


KINDS: dict[EndKind, tuple[str, ...]] = {
    "answer": (),
    "malformed": ("malformed_finals", "malformed_uncapped"),
    "turn_cap": ("malformed_finals", "turn_cap"),
    "token_cap": ("malformed_finals", "token_cap"),
    "observation_cap": ("malformed_finals", "observation_cap"),
}


@pytest.mark.parametrize("end", KINDS)
def test_each_end_counts_in_its_own_row_and_as_malformed_where_there_is_no_answer(
    end: EndKind,
) -> None:
    segments = [Segment("prompt", [1, 2]), Segment("sampled", [3, 4, 5]), Segment("framing", [6])]
    outcome = Outcome(False, False, False, 7 if end == "answer" else None, False, False, 1, end)
    calls = [Call(0, None, None, "Fehler", "invalid_json", False)]
    expected = ZERO | {
        "episodes": 1,
        "tool_calls": 1,
        "tool_errors": 1,
        "assistant_tokens": 3,
        "external_tokens": 1,
    }
    expected |= dict.fromkeys(KINDS[end], 1)
    assert (
        measures(
            [
                Trajectory(
                    Key("baseline", 0, "dev", "dev-0001", 0, 42),
                    segments,
                    calls,
                    outcome,
                    "scripted",
                )
            ],
            1,
        )
        == expected
    )


def ended(end: EndKind, answer: int | None, right: bool = False) -> Trajectory:
    outcome = Outcome(False, False, False, answer, right, False, 0, end)
    return Trajectory(
        Key("baseline", 0, "test", "test-0001", 0, 42),
        [Segment("prompt", [1])],
        [],
        outcome,
        "scripted",
    )


def test_the_pilot_s_own_overlap() -> None:
    """23 malformed + 13 turn cap + 3 token cap + 7 right exceed 32: capped episodes are malformed, too."""
    capped = [ended("turn_cap", None)] * 13 + [ended("token_cap", None)] * 3
    played = (
        capped
        + [ended("malformed", None)] * 7
        + [ended("answer", 8, right=True)] * 7
        + [ended("answer", 9)] * 2
    )
    found = measures(played, 32)
    names = (
        "episodes",
        "malformed_finals",
        "malformed_uncapped",
        "turn_cap",
        "token_cap",
        "observation_cap",
        "correct_answer",
    )
    assert [found[name] for name in names] == [32, 23, 7, 13, 3, 0, 7]


@pytest.mark.parametrize("missing", [0, 1, 5])
def test_planned_episodes_without_a_record_are_infrastructure_errors(missing: int) -> None:
    assert measures([ended("answer", 8)] * 3, 3 + missing)["infrastructure_errors"] == missing


def test_no_episodes_count_nothing() -> None:
    assert measures([], 0) == ZERO


def test_counts_are_whole_numbers_for_json(say: Say, task: Task) -> None:
    assert {type(value) for value in measures([say(task, "Nein.")], 1).values()} == {int}


def test_a_queue_is_cut_into_consecutive_batches() -> None:
    assert list(batched_list(list(range(7)), 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(batched_list([], 3)) == []


@pytest.mark.parametrize("size", [1, 4, 5, 100])
def test_every_task_and_trial_is_played_once(
    study: Study, chat: ChatProtocol, tasks: list[Task], size: int
) -> None:
    chosen = tasks[:4]
    engine = ScriptedEngine(lambda request: encode_turn(chat, "Nein."), chat.stop_ids)
    batches = list(
        episodes(Rollout(engine, chat, study.protocol), chosen, 3, size, "pilot/seed-1", 16, 42)
    )
    assert [len(batch) for batch in batches] == [
        len(part) for part in batched_list(range(12), size)
    ]
    keys = [episode.key for batch in batches for episode in batch]
    assert Counter((key.task, key.trial) for key in keys) == {
        (task.id, trial): 1 for task in chosen for trial in range(3)
    }
    assert {(key.policy, key.step, key.split, key.seed) for key in keys} == {
        ("pilot/seed-1", 16, "dev", 42)
    }


def test_an_engine_with_a_queue_takes_more_than_a_batch(
    study: Study, chat: ChatProtocol, tasks: list[Task]
) -> None:
    engine = ScriptedEngine(lambda request: encode_turn(chat, "Nein."), chat.stop_ids)
    engine.queue = 7
    batches = list(
        episodes(Rollout(engine, chat, study.protocol), tasks[:4], 3, 2, "pilot/seed-1", 16, 42)
    )
    assert [len(batch) for batch in batches] == [7, 5]


@pytest.fixture
def play(
    study: Study, chat: ChatProtocol, tiny_model: Qwen3ForCausalLM, tasks: list[Task]
) -> Callable[..., dict[Key, Trajectory]]:
    """A random policy's episodes by key."""
    decoding = Decoding(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, seed=42)
    rollout = Rollout(
        TransformersEngine(tiny_model, decoding, chat.stop_ids, 0),
        chat,
        study.protocol.model_copy(update={"budget": 10}),
    )

    def run(
        size: int,
        count: int = 4,
        trials: int = 2,
        policy: str = "baseline",
        step: int = 0,
        seed: int = 42,
    ) -> dict[Key, Trajectory]:
        found = episodes(rollout, tasks[:count], trials, size, policy, step, seed)
        return {episode.key: episode for batch in found for episode in batch}

    return run


def ids(found: dict[Key, Trajectory]) -> dict[Key, list[int]]:
    return {key: episode.completion_ids for key, episode in found.items()}


def test_batch_shape_does_not_change_what_is_sampled(
    play: Callable[..., dict[Key, Trajectory]],
) -> None:
    whole = ids(play(8))
    assert ids(play(1)) == whole
    assert ids(play(3)) == whole
    assert len({tuple(found) for found in whole.values()}) == 8, "trials and tasks differ"


def test_more_trials_or_tasks_leave_the_others_as_they_were(
    play: Callable[..., dict[Key, Trajectory]],
) -> None:
    whole = ids(play(8))
    fewer = ids(play(8, count=3, trials=1))
    assert fewer == {key: whole[key] for key in fewer}


def test_an_unchanged_policy_differs_in_no_episode(
    play: Callable[..., dict[Key, Trajectory]],
) -> None:
    """The start sampled once more under a candidate's name and step: the same ids, so 0 items differ and the gates see nothing."""
    before = {(key.task, key.trial): found for key, found in ids(play(8)).items()}
    after = {
        (key.task, key.trial): found
        for key, found in ids(play(8, policy="x/seed-1", step=32)).items()
    }
    assert [place for place, found in before.items() if after[place] != found] == []
    assert len({tuple(found) for found in before.values()}) == 8, (
        "tasks and trials draw from streams of their own"
    )


def test_another_decoding_seed_draws_other_streams(
    play: Callable[..., dict[Key, Trajectory]],
) -> None:
    assert not set(map(tuple, ids(play(8)).values())) & set(
        map(tuple, ids(play(8, seed=43)).values())
    )

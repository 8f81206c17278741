"""Rollout: whole episodes through parser, environment, budget and judge. Each broken episode departs from the expert in one thing."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen3ForCausalLM

from agentrl.engine.scripted import ScriptedEngine
from agentrl.engine.transformers import TransformersEngine
from agentrl.rollout.chat import END_OF_TEXT, END_OF_TURN, ChatProtocol
from agentrl.rollout.loop import Rollout
from agentrl.rollout.sampler import Answer, EngineError, Request, Sample
from agentrl.rollout.settings import Decoding
from agentrl.rollout.trajectory import Key, Trajectory
from agentrl.study.config import Study
from agentrl.tasks.families import Task, lookup_call
from agentrl.tasks.settings import Success
from agentrl.training.expert import calculator_call, encode_turn
from agentrl.training.reward import shaped

Say = Callable[..., Trajectory]
Turns = list[str]
PRODUCT = calculator_call("36 * 75")
AMPLE = 2000


@pytest.fixture(scope="session")
def task(task: Task) -> Task:
    """A task with a product above a thousand, so that separators are possible."""
    return replace(task, facts={"menge": 36, "einzelpreis": 75}, answer=2700)


def turn(content: str, thought: str = "hm") -> str:
    return f"<think>\n{thought}\n</think>\n\n{content}"


def look_up(task: Task) -> str:
    return turn(lookup_call(task.record_id))


def calculate(expression: str = "36 * 75") -> str:
    return turn(calculator_call(expression))


def answer(text: str = "<answer>2700</answer>") -> str:
    return turn(text)


def expert(task: Task) -> Turns:
    return [look_up(task), calculate(), answer()]


def changed(task: Task, **turns: str) -> Turns:
    """The expert's turns with some replaced: `first`, `second`, `third`."""
    names = ("first", "second", "third")
    return [turns.get(name, said) for name, said in zip(names, expert(task), strict=True)]


def response(task: Task) -> str:
    return f"\n<tool_response>\n{json.dumps(task.facts)}\n</tool_response>"


def test_expert_succeeds(say: Say, task: Task, study: Study) -> None:
    played = say(task, *expert(task))
    outcome = played.outcome
    assert (
        outcome.lookup,
        outcome.calculation,
        outcome.workflow,
        outcome.answer_correct,
        outcome.strict,
    ) == (True,) * 5
    assert (outcome.answer, outcome.tool_errors, outcome.end) == (2700, 0, "answer")
    assert [(call.turn, call.name, call.error, call.retained) for call in played.calls] == [
        (0, "lookup", None, True),
        (1, "calculator", None, True),
    ]
    assert json.loads(played.calls[0].observation) == task.facts
    assert played.calls[1].observation == "2700"
    assert shaped(outcome, study.reward) == 1.0


@pytest.mark.parametrize("expression", ["36 * 75", "75 * 36", "36*75", "(36) * (75)", " 36 * 75 "])
def test_any_spelling_of_the_product_succeeds(say: Say, task: Task, expression: str) -> None:
    assert say(task, *changed(task, second=calculate(expression))).outcome.strict


def test_thinking_is_free_and_may_be_missing(say: Say, task: Task) -> None:
    bare = [said.split("</think>\n\n")[1] for said in expert(task)]
    assert say(task, *bare).outcome.strict
    private = f"{lookup_call('BBBBB')} <answer>1</answer> {calculator_call('2700')}"
    assert say(task, *[f"<think>{private}</think>{said}" for said in bare]).outcome.strict


Departure = tuple[Callable[[Task], Turns], tuple[bool, bool, int, str]]
"""Turns that break one rule; then lookup milestone, calculation milestone, tool errors and end."""


def third(text: str, end: str = "malformed") -> Departure:
    """Only the last turn departs."""
    return lambda task: changed(task, third=answer(text)), (True, True, 0, end)


BROKEN: dict[str, Departure] = {
    "guessed answer after lookup": (lambda t: [look_up(t), answer()], (True, False, 0, "answer")),
    "guessed answer at once": (lambda t: [answer()], (False, False, 0, "answer")),
    "invented response behind the call": (lambda t: changed(t, first=look_up(t) + response(t)), (True, True, 0, "answer")),
    "invented response while thinking": (lambda t: changed(t, second=turn(PRODUCT, thought=response(t))), (True, True, 0, "answer")),
    "invented response with the answer": third("<tool_response>\n2700\n</tool_response><answer>2700</answer>", "answer"),
    "invented turn of the user": third("<|im_start|>user\n2700\n<answer>2700</answer>", "answer"),
    "whole transcript in one turn": (lambda t: [look_up(t) + response(t) + calculate() + answer()], (False, False, 0, "answer")),
    "whole transcript without thinking": (
        lambda t: [lookup_call(t.record_id) + response(t) + PRODUCT + "<answer>2700</answer>", answer()], (True, False, 1, "answer"),
    ),
    "calculator with the bare result": (lambda t: changed(t, second=calculate("2700")), (True, False, 0, "answer")),
    "calculator with the result times one": (lambda t: changed(t, second=calculate("2700 * 1")), (True, False, 0, "answer")),
    "calculator with the sum": (lambda t: changed(t, second=calculate("36 + 75")), (True, False, 0, "answer")),
    "calculator before lookup": (lambda t: [calculate(), look_up(t), answer()], (True, False, 0, "answer")),
    "both calls in one turn": (lambda t: [look_up(t) + PRODUCT, answer()], (True, False, 1, "answer")),
    "both calls in nested thoughts": (
        lambda t: [f"<think>a<think>b</think>{lookup_call(t.record_id)}</think>", answer()], (False, False, 0, "malformed"),
    ),
    "lookup before a thought that closes later": (
        lambda t: changed(t, first=f"{lookup_call(t.record_id)}<think>hm</think>"), (False, False, 0, "malformed"),
    ),
    "lookup inside thinking": (lambda t: changed(t, first=turn("Ich warte.", lookup_call(t.record_id))), (False, False, 0, "malformed")),
    "product inside thinking": (lambda t: [look_up(t), turn("<answer>2700</answer>", PRODUCT)], (True, False, 0, "answer")),
    "product in thinking that never closes": (lambda t: [look_up(t), "<think>" + PRODUCT], (True, False, 0, "malformed")),
    "answer inside thinking": (lambda t: changed(t, third=turn("Fertig.", "<answer>2700</answer>")), (True, True, 0, "malformed")),
    "answer not last": third("<answer>2700</answer> Euro"),
    "thinking behind the answer": third("<answer>2700</answer><think>2701?</think>"),
    "answer split by thinking": third("<answer>27<think>\n</think>00</answer>"),
    "answer without tag": third("Das Ergebnis ist 2700."),
    "German thousands": third("<answer>2.700</answer>"),
    "English thousands": third("<answer>2,700</answer>"),
    "spaced thousands": third("<answer>2 700</answer>"),
    "leading zeros": third("<answer>02700</answer>"),
    "decimal answer": third("<answer>2700.0</answer>"),
    "two answer tags": third("<answer>2701</answer><answer>2700</answer>"),
    "the same answer twice": third("<answer>2700</answer><answer>2700</answer>"),
    "wrong answer": third("<answer>2701</answer>", "answer"),
    "negative answer": third("<answer>-2700</answer>", "answer"),
    "wrong id": (lambda t: changed(t, first=turn(lookup_call("BBBBB"))), (False, False, 1, "answer")),
    "lookup repeated": (lambda t: [look_up(t), *expert(t)], (True, True, 0, "answer")),
    "another calculation first": (lambda t: [look_up(t), calculate("1 + 1"), calculate(), answer()], (True, True, 0, "answer")),
    "unparseable product": (lambda t: changed(t, second=turn("<tool_call>36 * 75</tool_call>")), (True, False, 1, "answer")),
    "refused product": (lambda t: changed(t, second=calculate("36 x 75")), (True, False, 1, "answer")),
    "product under another key": (lambda t: changed(t, second=calculate().replace("arguments", "parameters")), (True, False, 1, "answer")),
    "unknown tool": (lambda t: changed(t, second=calculate().replace("calculator", "rechner")), (True, False, 1, "answer")),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_each_departure_breaks_success(say: Say, task: Task, study: Study, name: str) -> None:
    build, (looked_up, calculated, errors, end) = BROKEN[name]
    played = say(task, *build(task))
    outcome = played.outcome
    assert not outcome.strict
    assert (outcome.lookup, outcome.calculation, outcome.tool_errors, outcome.end) == (
        looked_up,
        calculated,
        errors,
        end,
    )
    weights = study.reward
    expected = (
        weights.lookup * looked_up + weights.calculation * calculated - weights.tool_error * errors
    )
    assert shaped(outcome, weights) == pytest.approx(max(0.0, expected))
    check_record(played, budget=AMPLE)


DETOURS: dict[str, tuple[Callable[[Task], Turns], str]] = {
    "calculator before and after lookup": (
        lambda t: [calculate(), *expert(t)],
        "extra_calculation",
    ),
    "product repeated": (
        lambda t: [look_up(t), calculate(), calculate(), answer()],
        "extra_calculation",
    ),
    "lookup again behind the product": (
        lambda t: [look_up(t), calculate(), look_up(t), answer()],
        "repeated_lookup",
    ),
    "another calculation first": (
        lambda t: [look_up(t), calculate("1 + 1"), calculate(), answer()],
        "late_calculation",
    ),
    "two calls in one turn": (
        lambda t: [look_up(t) + PRODUCT, calculate(), answer()],
        "second_call",
    ),
    "an invented response": (
        lambda t: changed(t, second=turn(PRODUCT, thought=response(t))),
        "invented_text",
    ),
}
"""Turns that reach both milestones and the right answer, and the one rule that they depart from."""


@pytest.mark.parametrize("name", DETOURS)
@pytest.mark.parametrize("effect", ["breaks", "allowed"])
def test_a_detour_breaks_success_where_its_rule_says_so(
    say: Say, task: Task, study: Study, name: str, effect: str
) -> None:
    """And never earns more, or costs more, than the milestones and tool errors that the reward counts."""
    build, rule = DETOURS[name]
    outcome = say(
        task, *build(task), success=study.protocol.success.model_copy(update={rule: effect})
    ).outcome
    assert (outcome.lookup, outcome.calculation, outcome.answer_correct) == (True, True, True)
    assert (outcome.workflow, outcome.strict) == (effect == "allowed",) * 2
    whole = 1.0 if effect == "allowed" else study.reward.lookup + study.reward.calculation
    assert shaped(outcome, study.reward) == pytest.approx(
        whole - study.reward.tool_error * (name == "two calls in one turn")
    )


def spelled(chat: ChatProtocol, token: str) -> list[int]:
    """A control token's text out of ordinary tokens."""
    ids = [i for letter in token for i in chat.tokenizer.encode(letter, add_special_tokens=False)]
    assert chat.decode(ids) == token
    assert not set(ids) & chat.stop_ids
    return ids


@pytest.mark.parametrize("token", [END_OF_TURN, END_OF_TEXT])
def test_a_spelled_stop_token_hides_nothing(
    say: Say, chat: ChatProtocol, task: Task, token: str
) -> None:
    """The text of a stop token is not the stop token: what follows it in the same turn counts."""
    fake = spelled(chat, token)
    hidden = [
        encode_turn(chat, said)[:-1] + fake + encode_turn(chat, response(task))
        for said in expert(task)
    ]
    plain = [encode_turn(chat, said) for said in expert(task)]
    for index in range(3):
        assert not say(task, *plain[:index], hidden[index], *plain[index + 1 :]).outcome.workflow
    bare = encode_turn(chat, "<answer>2700</answer>")
    assert say(task, *plain[:2], bare[:-1] + fake + bare).outcome.answer is None
    again = say(task, *plain[:2], plain[2][:-1] + fake + plain[2]).outcome
    assert again.answer == 2700, "all before the second thought's end is thinking"
    assert again.strict == (token == END_OF_TEXT), (
        "an end of turn is never the policy's to spell, in thinking neither"
    )
    assert say(task, *plain[:2], plain[2][:-1] + fake + [chat.end_of_turn]).outcome.answer is None
    assert say(task, *plain).outcome.strict


def test_end_of_text_ends_a_turn_but_calls_nothing(
    say: Say, chat: ChatProtocol, task: Task
) -> None:
    (end_of_text,) = chat.stop_ids - {chat.end_of_turn}
    first, second, third = ([*encode_turn(chat, said)[:-1], end_of_text] for said in expert(task))
    assert say(task, first).outcome.end == "malformed"
    assert not say(task, first).calls
    assert say(task, look_up(task), second).outcome.end == "malformed"
    assert say(task, look_up(task), calculate(), third).outcome.strict
    both = [*encode_turn(chat, look_up(task) + "<answer>2700</answer>")[:-1], end_of_text]
    assert say(task, look_up(task), calculate(), both).outcome.end == "malformed", (
        "an answer beside an unanswered call"
    )


def failing(study: Study, breaks: bool) -> Success:
    """The study's rules with that of a failed call set."""
    return study.protocol.success.model_copy(
        update={"failed_call": "breaks" if breaks else "allowed"}
    )


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize(
    "failed",
    [
        calculate("36 x 75"),
        calculate("1 / 0"),
        turn("<tool_call>?</tool_call>"),
        turn(lookup_call("BBBBB")),
    ],
)
def test_a_failed_call_between_costs_reward_and_perhaps_success(
    say: Say, task: Task, study: Study, failed: str, breaks: bool
) -> None:
    outcome = say(
        task, look_up(task), failed, calculate(), answer(), success=failing(study, breaks)
    ).outcome
    assert (outcome.calculation, outcome.answer_correct, outcome.tool_errors) == (True, True, 1)
    assert outcome.strict is not breaks
    assert shaped(outcome, study.reward) == pytest.approx(0.35 if breaks else 0.95)


@pytest.mark.parametrize("breaks", [False, True])
def test_two_calls_in_one_turn_break_success_whatever_follows(
    say: Say, task: Task, study: Study, breaks: bool
) -> None:
    played = say(
        task, look_up(task) + PRODUCT, calculate(), answer(), success=failing(study, breaks)
    )
    assert [call.error for call in played.calls] == [None, "second_call", None]
    assert (
        played.outcome.calculation,
        played.outcome.answer_correct,
        played.outcome.tool_errors,
    ) == (True, True, 1)
    assert not played.outcome.strict


@pytest.mark.parametrize("breaks", [False, True])
def test_a_failed_call_outside_the_two_never_breaks_success(
    say: Say, task: Task, study: Study, breaks: bool
) -> None:
    wrong = turn(lookup_call("BBBBB"))
    assert say(task, wrong, *expert(task), success=failing(study, breaks)).outcome.strict
    assert say(
        task, look_up(task), calculate(), wrong, answer(), success=failing(study, breaks)
    ).outcome.strict


def test_tool_turns_are_capped(say: Say, task: Task) -> None:
    wrong = turn(lookup_call("BBBBB"))
    turns = [wrong, wrong, *expert(task)]
    assert say(task, *turns, max_tool_iterations=4).outcome.strict
    capped = say(task, *turns, max_tool_iterations=3)
    assert capped.outcome.end == "turn_cap"
    assert (capped.outcome.lookup, capped.outcome.calculation, capped.outcome.strict) == (
        True,
        False,
        False,
    )
    assert len(capped.sampled) == 4, "three turns may call, a fourth may only answer"
    assert len(capped.calls) == 3


def lengths(played: Trajectory) -> list[int]:
    """Tokens of the stream up to the end of each sampled segment, then of the whole."""
    ends, used = [], 0
    for segment in played.segments[1:]:
        used += len(segment.ids)
        if segment.kind == "sampled":
            ends.append(used)
    return ends


def test_budget_decides_to_the_token(say: Say, task: Task, study: Study) -> None:
    """Each limit is met exactly and missed by one."""
    played = say(task, *expert(task))
    first, second, third = lengths(played)
    observed = third - len(
        played.sampled[2].ids
    )  # the stream up to the end of the calculator's observation

    def at(budget: int) -> Trajectory:
        found = say(task, *expert(task), budget=budget)
        check_record(found, budget)
        return found

    assert at(third).outcome.strict
    cut_answer = at(third - 1)
    assert (cut_answer.outcome.end, cut_answer.outcome.answer, cut_answer.outcome.workflow) == (
        "token_cap",
        None,
        True,
    )
    assert at(observed + 1).outcome.calculation, "room for one more token: the observation is kept"

    dropped = at(observed)
    assert (dropped.outcome.end, dropped.outcome.lookup, dropped.outcome.calculation) == (
        "observation_cap",
        True,
        False,
    )
    assert [call.retained for call in dropped.calls] == [True, False]
    assert shaped(dropped.outcome, study.reward) == pytest.approx(study.reward.lookup), (
        "a dropped observation earns nothing"
    )
    assert dropped.segments[-1].kind == "sampled"
    assert at(second).outcome.end == "observation_cap"

    cut_call = at(second - 1)
    assert (cut_call.outcome.end, len(cut_call.calls), cut_call.outcome.calculation) == (
        "token_cap",
        1,
        False,
    )

    nothing = at(first)
    assert (nothing.outcome.end, nothing.outcome.lookup, nothing.calls[0].retained) == (
        "observation_cap",
        False,
        False,
    )
    assert shaped(nothing.outcome, study.reward) == 0.0
    assert at(first - 1).calls == []


def check_record(played: Trajectory, budget: int) -> None:
    """What holds for every record, however the episode went."""
    kinds = [segment.kind for segment in played.segments]
    assert kinds[:2] == ["prompt", "sampled"]
    assert set(kinds[2:]) <= {"sampled", "framing", "observation"}
    completion = played.completion_ids
    assert 0 < len(completion) <= budget
    assert len(played.loss_mask) == len(completion)
    assert [
        token for token, learned in zip(completion, played.loss_mask, strict=True) if learned
    ] == [
        token for segment in played.segments if segment.kind == "sampled" for token in segment.ids
    ]
    assert all(
        (segment.finish is None) == (segment.kind != "sampled") == (segment.logprobs is None)
        for segment in played.segments
    )
    assert kinds.count("observation") == sum(call.retained for call in played.calls)
    if played.outcome.end == "token_cap":
        assert len(completion) == budget
        assert played.segments[-1].finish == "length"
    else:
        assert all(segment.finish == "stop" for segment in played.sampled)
    assert Trajectory.from_json(json.loads(json.dumps(played.to_json()))) == played


class Spy:
    """An engine that keeps the requests it passes on."""

    name = "spy"

    def __init__(self, inner: ScriptedEngine | TransformersEngine) -> None:
        self.inner, self.seen = inner, []

    def describe(self) -> dict[str, Any]:
        return {}

    def generate(self, requests: Sequence[Request]) -> list[Sample]:
        self.seen += requests
        return self.inner.generate(requests)


def scripted(chat: ChatProtocol, turns: Sequence[str]) -> Spy:
    return Spy(
        ScriptedEngine(
            lambda request: encode_turn(chat, turns[int(request.key[-1])]), chat.stop_ids
        )
    )


def key_of(task: Task, trial: int = 0) -> Key:
    return Key("baseline", 0, task.split, task.id, trial, 42)


def protocol(study: Study, **changes: Any) -> Any:
    return study.protocol.model_copy(update=changes)


MENU = ["look_up", "calculate", "answer", "both", "wrong", "broken", "silent"]


@given(budget=st.integers(1, 400), course=st.lists(st.sampled_from(MENU), min_size=4, max_size=4))
def test_any_course_under_any_budget(
    chat: ChatProtocol, study: Study, task: Task, budget: int, course: list[str]
) -> None:
    texts = {
        "look_up": look_up(task), "calculate": calculate(), "answer": answer(), "both": look_up(task) + PRODUCT,
        "wrong": turn(lookup_call("BBBBB")), "broken": "<tool_call>{", "silent": "",
    }  # fmt: skip
    engine = scripted(chat, [texts[name] for name in course])
    (played,) = Rollout(engine, chat, protocol(study, budget=budget)).play([task], [key_of(task)])
    check_record(played, budget)
    stream = [played.prompt_ids]
    for segment in played.segments[1:]:
        if segment.kind == "sampled":
            request = engine.seen[sum(s == "turn" for s in stream)]
            context = [token for part in stream if part != "turn" for token in part]
            assert request.context == context, (
                "the next request is the segments so far, token by token"
            )
            assert request.max_tokens == budget - (len(context) - len(played.prompt_ids))
            assert request.key == ("evaluation", 42, task.id, 0, sum(s == "turn" for s in stream))
            stream.append("turn")
        stream.append(segment.ids)
    assert len(engine.seen) == len(played.sampled)
    if played.outcome.strict:
        called = [name for name in course[: len(played.sampled)] if name not in ("wrong", "broken")]
        at = called.index("look_up")
        assert called[at + 1] == "calculate", "the next successful call calculates"
        assert called[-1] == "answer"
        assert set(called[:at] + called[at + 1 : -1]) <= {"look_up", "calculate"}, (
            "repeats are allowed"
        )
    retained = {
        name: any(c.name == name and c.retained and c.error is None for c in played.calls)
        for name in ("lookup", "calculator")
    }
    assert played.outcome.lookup == retained["lookup"]
    assert played.outcome.calculation <= retained["calculator"]


FRAGMENTS = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<answer>",
    "</answer>",
    "2700",
    " ",
    "x",
]
INSERTION = st.tuples(
    st.integers(0, 2),
    st.floats(0, 1),
    st.sampled_from([*FRAGMENTS, PRODUCT, "<answer>2700</answer>", "<|im_start|>"]),
)


@given(st.lists(INSERTION, max_size=3))
def test_nothing_inserted_makes_a_dishonest_success(
    say: Say, task: Task, insertions: list[tuple[int, float, str]]
) -> None:
    """Whatever text is put wherever into the expert's turns: success still needs both calls in order and the answer last."""
    turns = [*expert(task), answer(), answer()]
    for index, share, text in insertions:
        at = round(share * len(turns[index]))
        turns[index] = turns[index][:at] + text + turns[index][at:]
    played = say(task, *turns)
    if not insertions:
        assert played.outcome.strict
    if not played.outcome.strict:
        return
    said = turns[: len(played.sampled)]
    assert not any(
        tag in text
        for text in said
        for tag in ("<tool_response>", "</tool_response>", "<|im_start|>")
    )
    assert said[-1].rstrip().endswith("<answer>2700</answer>")
    squeezed = [text.replace(" ", "") for text in said]
    lookups = [
        i
        for i, text in enumerate(squeezed)
        if lookup_call(task.record_id).split("\n")[1].replace(" ", "") in text
    ]
    products = [
        i for i, text in enumerate(squeezed) if PRODUCT.split("\n")[1].replace(" ", "") in text
    ]
    assert any(first < later < len(said) - 1 for first in lookups for later in products)


def test_observations_stand_in_the_stream_as_answered(
    say: Say, chat: ChatProtocol, task: Task
) -> None:
    played = say(
        task, look_up(task) + calculator_call("1"), calculate("1 / 0"), calculate(), answer()
    )
    observed = [
        chat.decode(segment.ids) for segment in played.segments if segment.kind == "observation"
    ]
    assert len(observed) == len(played.calls) == 4
    assert all(call.observation in text for call, text in zip(played.calls, observed, strict=True))


def test_a_batch_is_its_episodes(chat: ChatProtocol, study: Study, tasks: list[Task]) -> None:
    """Episodes of one batch end at different times and come back in order, each as if it had run alone."""
    courses = {tasks[0].id: 3, tasks[1].id: 1, tasks[2].id: 2}
    batch = tasks[:3]

    def speak(request: Request) -> list[int]:
        played = next(task for task in batch if task.id == request.key[-3])
        said = [look_up(played), calculate("1 + 1"), answer()][-courses[played.id] :]
        return encode_turn(chat, said[int(request.key[-1])])

    def play(batch: Sequence[Task]) -> list[Trajectory]:
        engine = ScriptedEngine(speak, chat.stop_ids)
        return Rollout(engine, chat, protocol(study, budget=AMPLE)).play(
            batch, [key_of(task) for task in batch]
        )

    together = play(batch)
    assert [played.key.task for played in together] == [task.id for task in batch]
    assert [len(played.sampled) for played in together] == [3, 1, 2]
    assert together == [play([task])[0] for task in batch]


class Queued(ScriptedEngine):
    """An engine with a queue of its own: always the newest row first, so that one episode runs to its end while the others wait."""

    name = "scripted"

    def serve(self, requests: Sequence[Request], answer: Answer) -> None:
        waiting = list(enumerate(requests))
        while waiting:
            row, request = waiting.pop()
            following = answer(row, self.generate([request])[0])
            if following is not None:
                waiting.append((row, following))


def test_an_engine_s_own_queue_changes_no_episode(
    chat: ChatProtocol, study: Study, tasks: list[Task]
) -> None:
    """Whoever's turn is next: no row waits for another's, and every record is the same."""

    def speak(request: Request) -> list[int]:
        played = next(task for task in tasks if task.id == request.key[-3])
        turns = [look_up(played), calculate("1 + 1"), answer()][-(1 + tasks.index(played) % 3) :]
        return encode_turn(chat, turns[int(request.key[-1])])

    batch, keys = tasks[:5], [key_of(task) for task in tasks[:5]]
    lockstep, queued = (
        Rollout(kind(speak, chat.stop_ids), chat, protocol(study, budget=AMPLE))
        for kind in (ScriptedEngine, Queued)
    )
    assert lockstep.play(batch, keys) == queued.play(batch, keys)
    assert queued.play([], []) == []


class Faulty:
    """An engine that breaks the interface."""

    name = "faulty"

    def __init__(self, samples: list[Sample]) -> None:
        self.samples = samples

    def describe(self) -> dict[str, Any]:
        return {}

    def generate(self, requests: Sequence[Request]) -> list[Sample]:
        return self.samples


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "returned 0 samples for 1 rows"),
        ([Sample([5], [0.0], "stop")] * 2, "returned 2 samples for 1 rows"),
        ([Sample([], [], "length")], "returned 0 ids"),
        ([Sample([5] * 11, [0.0] * 11, "length")], "returned 11 ids .* outside its budget"),
    ],
)
def test_a_fault_of_the_engine_is_no_score(
    chat: ChatProtocol, study: Study, task: Task, samples: list[Sample], message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        Rollout(Faulty(samples), chat, protocol(study, budget=10)).play([task], [key_of(task)])


def test_as_many_keys_as_tasks(chat: ChatProtocol, study: Study, task: Task) -> None:
    with pytest.raises(ValueError, match="shorter"):
        Rollout(Faulty([]), chat, study.protocol).play([task, task], [key_of(task)])


class Opening:
    """Says the expert's lookup first and lets a model go on."""

    name = "opening"

    def __init__(self, chat: ChatProtocol, task: Task, model: TransformersEngine) -> None:
        self.first = ScriptedEngine(lambda _: encode_turn(chat, look_up(task)), chat.stop_ids)
        self.model = model

    def describe(self) -> dict[str, Any]:
        return {}

    def generate(self, requests: Sequence[Request]) -> list[Sample]:
        openings = [request.key[-1] == 0 and request.key[-2] % 2 == 0 for request in requests]
        said = iter(
            self.first.generate(
                [r for r, opening in zip(requests, openings, strict=True) if opening]
            )
        )
        sampled = iter(
            self.model.generate(
                [r for r, opening in zip(requests, openings, strict=True) if not opening]
            )
        )
        return [next(said) if opening else next(sampled) for opening in openings]


def test_qwen3_tokens_through_the_whole_protocol(
    qwen_chat: ChatProtocol, tiny_qwen3: Qwen3ForCausalLM, study: Study, task: Task
) -> None:
    """A random policy on the real vocabulary, half of it after a true lookup: every episode ends, to the token."""
    decoding = Decoding(temperature=0.6, top_p=0.95, top_k=20, min_p=0.0, seed=42)
    stops = [*qwen_chat.stop_ids, *range(0, 151936, 40)]
    for stop_ids in (sorted(qwen_chat.stop_ids), stops):
        model = TransformersEngine(tiny_qwen3, decoding, stop_ids, qwen_chat.tokenizer.pad_token_id)
        spy = Spy(Opening(qwen_chat, task, model))
        rollout = Rollout(spy, qwen_chat, protocol(study, budget=130))
        episodes = rollout.play([task] * 4, [key_of(task, trial) for trial in range(4)])
        for trial, played in enumerate(episodes):
            check_record(played, 130)
            assert played.outcome.end in ("token_cap", "malformed")
            assert played.outcome.lookup == (trial % 2 == 0)
            assert not played.outcome.strict
            last = next(request for request in reversed(spy.seen) if request.key[-2] == trial)
            assert (
                last.context + played.sampled[-1].ids == played.prompt_ids + played.completion_ids
            )
        assert len({tuple(played.completion_ids) for played in episodes}) == 4


def test_qwen3_expert_succeeds(say: Say, qwen_chat: ChatProtocol, task: Task, study: Study) -> None:
    played = say(task, *expert(task), over=qwen_chat)
    assert played.outcome.strict
    assert shaped(played.outcome, study.reward) == 1.0
    check_record(played, AMPLE)
    text = qwen_chat.decode(played.prompt_ids + played.completion_ids)
    assert text.endswith("<answer>2700</answer><|im_end|>")
    assert text.count("<tool_response>") == 2
    assert len(played.completion_ids) < 768, "an expert fits the pilot's budget"
    fake = spelled(qwen_chat, END_OF_TURN)
    hidden = (
        encode_turn(qwen_chat, look_up(task))[:-1] + fake + encode_turn(qwen_chat, response(task))
    )
    assert not say(task, hidden, calculate(), answer(), over=qwen_chat).outcome.strict

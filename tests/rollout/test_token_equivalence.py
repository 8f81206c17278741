"""Tokens are the truth: sampled ids survive whatever they spell, and TRL's own tool loop builds the same streams and loss masks from them.

All of it over Qwen3's real tokenizer. Where the two loops differ, a test says how and names the function of TRL 1.16 that decides it.
"""

import copy
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import pytest
import torch
from datasets import Dataset
from odd_turns import Made, Said, Speller, calling, closing
from transformers import Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from agentrl.engine.scripted import ScriptedEngine
from agentrl.rollout import trajectory
from agentrl.rollout.chat import END_OF_TEXT, END_OF_TURN, ChatProtocol
from agentrl.rollout.loop import Rollout
from agentrl.rollout.settings import Protocol
from agentrl.rollout.trajectory import Key, Trajectory
from agentrl.study.config import Study
from agentrl.tasks.environment import Environment
from agentrl.tasks.families import Task, generate, lookup_call
from agentrl.training import grpo
from agentrl.training.expert import calculator_call, encode_turn
from agentrl.training.settings import TrainingSettings

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*gradient_checkpointing.* is deprecated:FutureWarning"
)  # TRL's own use
Ids = list[int]
Tensors = dict[str, torch.Tensor]
CALLS = 10_000
CALLS_PER_EPISODE = 4
RECORD_IDS = (
    "BCDFG",
    "Größe-№7",
    'A"\\/\n<\N{SLIGHTLY SMILING FACE}',
    "e\N{COMBINING ACUTE ACCENT}\N{MATHEMATICAL SCRIPT CAPITAL X}",
)
AMPLE = 1500
"""With a prompt it still fits the context of the tiny model."""
OPEN, BETWEEN, CLOSE = (
    "\n<|im_start|>user\n<tool_response>\n",
    "\n</tool_response>\n<tool_response>\n",
    "\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
)
"""What Qwen3's template writes around observations: copied from its text, not taken from the code under test."""


@pytest.fixture(scope="module")
def speller(qwen_chat: ChatProtocol) -> Speller:
    return Speller(qwen_chat)


class Script:
    """The scripted sampler: it knows an episode by its prompt and says its turns in order, whoever asks."""

    def __init__(self, turns: dict[tuple[int, ...], Sequence[Ids]]) -> None:
        self.turns, self.lengths = turns, {len(prompt) for prompt in turns}
        self.contexts: dict[tuple[int, ...], list[Ids]] = {prompt: [] for prompt in turns}
        """What it was asked with."""

    def __call__(self, context: Ids, limit: int) -> Ids:
        prompt = next(
            head for length in self.lengths if (head := tuple(context[:length])) in self.turns
        )
        asked = self.contexts[prompt]
        asked.append(list(context))
        return list(self.turns[prompt][len(asked) - 1][:limit])


@dataclass(frozen=True)
class Stream:
    """What a loop makes of one episode."""

    prompt: Ids
    completion: Ids
    mask: Ids
    contexts: list[Ids]


def play(
    tasks: Sequence[Task], turns: Sequence[Sequence[Ids]], chat: ChatProtocol, protocol: Protocol
) -> list[tuple[Trajectory, Stream]]:
    """Our loop: one episode per task, each with its own prompt."""
    prompts = [tuple(chat.prompt(task.messages())) for task in tasks]
    script = Script(dict(zip(prompts, turns, strict=True)))
    engine = ScriptedEngine(
        lambda request: script(request.context, request.max_tokens), chat.stop_ids
    )
    keys = [Key("baseline", 0, task.split, task.id, 0, 42) for task in tasks]
    played = Rollout(engine, chat, protocol).play(tasks, keys)
    streams = [
        Stream(
            episode.prompt_ids, episode.completion_ids, episode.loss_mask, script.contexts[prompt]
        )
        for episode, prompt in zip(played, prompts, strict=True)
    ]
    return list(zip(played, streams, strict=True))


# 1. Ten thousand odd calls


@dataclass
class Course:
    """One episode as scripted."""

    task: Task
    turns: list[Said]


@pytest.fixture(scope="module")
def courses(speller: Speller, task: Task) -> list[Course]:
    """Episodes of four calling turns and a closing one; no two calling turns have the same ids."""
    rng, used, made = Random("odd calls"), set(), []
    for number in range(CALLS // CALLS_PER_EPISODE):
        record_id = RECORD_IDS[number % len(RECORD_IDS)] + str(number)
        turns: list[Said] = []
        while len(turns) < CALLS_PER_EPISODE:
            said = calling(record_id, speller, rng)
            turns += [] if tuple(said.ids) in used else [said]
            used.add(tuple(said.ids))
        made.append(Course(replace(task, record_id=record_id), [*turns, closing(speller, rng)]))
    return made


def test_ten_thousand_odd_calls_stand_in_the_record_as_sampled(
    courses: list[Course], qwen_chat: ChatProtocol, study: Study, tmp_path: Path
) -> None:
    ample = study.protocol.model_copy(
        update={"budget": 10**6, "max_tool_iterations": CALLS_PER_EPISODE}
    )
    turns = [[said.ids for said in course.turns] for course in courses]
    played, streams = zip(
        *play([course.task for course in courses], turns, qwen_chat, ample), strict=True
    )
    known: dict[tuple[str, ...], Ids] = {(): []}
    for course, record, stream in zip(courses, played, streams, strict=True):
        check(course, record, stream.contexts, qwen_chat, known)
    with open(tmp_path / "episodes.jsonl", "w", encoding="utf-8") as file:
        trajectory.append(file, played[::10])
    assert tuple(trajectory.read(tmp_path / "episodes.jsonl")) == played[::10], "and on disk"


def check(
    course: Course,
    record: Trajectory,
    contexts: list[Ids],
    chat: ChatProtocol,
    known: dict[tuple[str, ...], Ids],
) -> None:
    """The record is the prompt and, turn by turn, the ids as sampled and the template's text around the observations."""
    prompt = chat.tokenizer.encode(chat.render(course.task.messages()))
    stream, mask = [], []
    for index, said in enumerate(course.turns):
        assert contexts[index] == prompt + stream
        assert record.sampled[index].ids == said.ids
        calls = [call for call in record.calls if call.turn == index]
        assert [typed((call.name, call.arguments)) for call in calls] == [
            typed(made) for made in said.calls
        ], said.text
        assert all(call.error == "second_call" for call in calls[1:])
        found = [call.observation == json.dumps(course.task.facts) for call in calls[:1]]
        assert found == [made == right(course) for made in said.calls[:1]], (
            "the environment gets the id, however it is spelled"
        )
        observations = tuple(call.observation for call in calls)
        if observations not in known:
            known[observations] = chat.tokenizer.encode(OPEN + BETWEEN.join(observations) + CLOSE)
        stream += said.ids + known[observations]
        mask += [1] * len(said.ids) + [0] * len(known[observations])
    assert (record.prompt_ids, record.completion_ids, record.loss_mask) == (prompt, stream, mask)


def right(course: Course) -> Made:
    """The call that reads the episode's record."""
    return "lookup", {"record_id": course.task.record_id}


def typed(made: Made) -> str:
    """Name and arguments as text: 1, 1.0 and true are three things."""
    return json.dumps(made, sort_keys=True)


def test_the_odd_calls_are_odd(courses: list[Course], qwen_chat: ChatProtocol) -> None:
    """What the test above would not notice if they were not."""
    said = [turn for course in courses for turn in course.turns[:-1]]
    assert len({tuple(turn.ids) for turn in said}) == CALLS
    recoded = qwen_chat.tokenizer([qwen_chat.decode(turn.ids) for turn in said])["input_ids"]
    assert sum(ids != turn.ids for ids, turn in zip(recoded, said, strict=True)) > 0.95 * CALLS
    made = [(call, course) for course in courses for turn in course.turns for call in turn.calls]
    assert len(made) > 1.01 * CALLS, "some turns call twice"
    assert sum(call == (None, None) for call, _ in made) > 0.1 * CALLS
    assert sum(call == right(course) for call, course in made) > 0.1 * CALLS


# 2. TRL's own loop


class EnvironmentTrainer(GRPOTrainer):
    """TRL's tool loop over our environment; only the sampling is replaced, and it gets the whole cap each turn, as TRL's engines do."""

    script: Script

    def _generate_single_turn(
        self, prompt_ids: list[Ids], *_: Any, **__: Any
    ) -> tuple[list[Ids], None]:
        return [self.script(list(ids), self.max_completion_length) for ids in prompt_ids], None


@dataclass
class Played:
    """One episode in both loops."""

    ours: Stream
    trl: Stream
    episode: Trajectory


@dataclass
class Loops:
    """Both loops over the same tasks."""

    trainer: EnvironmentTrainer
    chat: ChatProtocol
    protocol: Protocol
    tasks: list[Task]
    batch: Tensors = field(default_factory=dict)
    """What TRL would give to its loss."""

    def play(self, scripts: Sequence[Sequence[Ids]], budget: int = AMPLE) -> list[Played]:
        """The n-th script is the n-th task's episode."""
        tasks = self.tasks[: len(scripts)]
        own = play(tasks, scripts, self.chat, self.protocol.model_copy(update={"budget": budget}))
        return [
            Played(ours, trl, episode)
            for (episode, ours), trl in zip(own, self.trl(scripts, budget), strict=True)
        ]

    def trl(self, scripts: Sequence[Sequence[Ids]], budget: int) -> list[Stream]:
        rows = [self.trainer.train_dataset[number] for number in range(len(scripts))]
        prompts = [tuple(self.chat.prompt(row["prompt"])) for row in rows]
        self.trainer.script = Script(dict(zip(prompts, scripts, strict=True)))
        self.trainer.max_completion_length = budget
        self.batch = self.trainer._generate_and_score_completions(rows)
        return [
            Stream(
                *(grpo._kept(self.batch, *names, row) for names in KEPT),
                self.trainer.script.contexts[prompt],
            )
            for row, prompt in enumerate(prompts)
        ]

    def one(self, turns: Sequence[str | Ids], budget: int = AMPLE) -> Played:
        """One episode; a turn is its text, to which the end-of-turn token is added, or its ids. TRL needs a group: the other is silent."""
        return self.play([self.ids(turns), self.ids(["Nein."])], budget)[0]

    def ids(self, turns: Sequence[str | Ids]) -> list[Ids]:
        return [encode_turn(self.chat, turn) if isinstance(turn, str) else turn for turn in turns]

    def encode(self, text: str) -> Ids:
        return self.chat.tokenizer.encode(text)


KEPT = (
    ("prompt_ids", "prompt_mask"),
    ("completion_ids", "completion_mask"),
    ("tool_mask", "completion_mask"),
)
GENERATED = 160
"""Episodes of generated calls; TRL renders its template twice for every call."""


@pytest.fixture(scope="module")
def loops(
    qwen_chat: ChatProtocol,
    tiny_qwen3: Qwen3ForCausalLM,
    study: Study,
    tmp_path_factory: pytest.TempPathFactory,
) -> Loops:
    tasks = generate(study.tasks, "train", GENERATED)
    model = copy.deepcopy(tiny_qwen3).train()
    model.generation_config.eos_token_id = sorted(
        qwen_chat.stop_ids
    )  # as in Qwen3's generation_config.json
    settings = GRPOConfig(
        output_dir=str(tmp_path_factory.mktemp("trl")), max_tool_calling_iterations=study.protocol.max_tool_iterations,
        per_device_train_batch_size=2, num_generations=2, gradient_accumulation_steps=1, steps_per_generation=1, num_iterations=1,
        max_completion_length=AMPLE, beta=0.0, use_cpu=True, bf16=False, report_to="none",
    )  # fmt: skip
    trainer = EnvironmentTrainer(
        model=model,
        args=settings,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=Dataset.from_list(
            [{"prompt": t.messages(), "record_id": t.record_id, "facts": t.facts} for t in tasks]
        ),
        processing_class=copy.deepcopy(qwen_chat.tokenizer),  # TRL adds its parser to it
        environment_factory=Environment,
    )
    return Loops(trainer, qwen_chat, study.protocol, tasks)


def thought(content: str, before: str = "hm") -> str:
    return f"<think>\n{before}\n</think>\n\n{content}"


def call(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


WRONG = lookup_call("BBBBB")
PRODUCT = calculator_call("12 * 11")
ANSWER = thought("<answer>132</answer>")
SAME: dict[str, tuple[int, Callable[[Task], list[str]]]] = {
    "expert": (3, lambda t: [thought(lookup_call(t.record_id)), thought(PRODUCT), ANSWER]),
    "no thinking": (3, lambda t: [lookup_call(t.record_id), PRODUCT, "<answer>132</answer>"]),
    "thinking opened by nobody": (2, lambda t: [f"hm</think>{lookup_call(t.record_id)}", ANSWER]),
    "odd spacing": (
        2, lambda t: [f'<tool_call>{{"name" :"lookup",\r\n\t"arguments":\n{{ "record_id":"{t.record_id}"}}  }}</tool_call>', ANSWER],
    ),
    "other key order": (2, lambda t: [call(f'{{"arguments": {{"record_id": "{t.record_id}"}}, "name": "lookup"}}'), ANSWER]),
    "escapes": (2, lambda t: [call(f'{{"n\\u0061me": "look\\u0075p", "arguments": {{"record\\u005fid": "{t.record_id}"}}}}'), ANSWER]),
    "escaped quotes": (2, lambda t: [call(r'{"name": "lookup", "arguments": {"record_id": "\"\\\/\ud83d\ude00\""}}'), ANSWER]),
    "text around the call": (2, lambda t: [thought(f"Ich rufe auf: {lookup_call(t.record_id)} und warte."), ANSWER]),
    "wrong id": (3, lambda t: [WRONG, lookup_call(t.record_id), ANSWER]),
    "id is a number": (2, lambda t: [call('{"name": "lookup", "arguments": {"record_id": 7}}'), ANSWER]),
    "refused expression": (3, lambda t: [calculator_call("__import__('os')"), calculator_call("1 / 0"), ANSWER]),
    "expression is null": (2, lambda t: [call('{"name": "calculator", "arguments": {"expression": null}}'), ANSWER]),
    "thinking inside a call": (1, lambda t: [call(f'{{"name": "lookup", <think></think>"arguments": {{"record_id": "{t.record_id}"}}}}')]),
    "two thoughts opened, one closed": (2, lambda t: [f"<think>a<think>b</think>{lookup_call(t.record_id)}", ANSWER]),
    "no call": (1, lambda t: [ANSWER]),
    "nothing": (1, lambda t: [""]),
    "call in thinking": (1, lambda t: [thought("Fertig.", lookup_call(t.record_id))]),
    "thinking never closes": (1, lambda t: [f"<think>{lookup_call(t.record_id)}"]),
    "answer and call": (2, lambda t: [f"<answer>132</answer>{lookup_call(t.record_id)}", ANSWER]),
    "invented response": (2, lambda t: [f"{lookup_call(t.record_id)}<tool_response>7</tool_response><|im_start|>assistant\n", ANSWER]),
    "last turn of the limit answers": (4, lambda t: [WRONG, WRONG, WRONG, ANSWER]),
    "call at the iteration limit": (4, lambda t: [WRONG, WRONG, WRONG, WRONG]),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_trl_builds_the_same_stream(loops: Loops, speller: Speller, name: str) -> None:
    """Prompt ids, completion ids, loss mask, and every context the sampler was asked with; spelled as the tokenizer would and otherwise."""
    turns, script = SAME[name]
    texts, rng = script(loops.tasks[0]), Random(name)
    for spelled in (
        loops.ids(texts),
        *([speller.turn(text, rng) for text in texts] for _ in range(3)),
    ):
        played = loops.one(spelled)
        assert played.ours == played.trl
        assert len(played.ours.contexts) == turns
        assert sum(played.trl.mask) == sum(map(len, spelled))


def test_trl_builds_the_same_streams_from_generated_calls(loops: Loops, speller: Speller) -> None:
    """A whole batch, whose rows end at different times. Unknown tools, mangled calls and two in a turn are in part 3."""
    rng = Random("both loops")
    scripts = []
    for task in loops.tasks:
        calls = [
            calling(task.record_id, speller, rng, known=True).ids for _ in range(rng.randint(0, 4))
        ]
        scripts.append([*calls, closing(speller, rng, known=True).ids])
    for row, played in enumerate(loops.play(scripts)):
        assert played.ours == played.trl, loops.chat.decode(played.trl.completion)
        assert len(played.ours.contexts) == min(len(scripts[row]), 4)


def test_an_end_of_turn_in_ordinary_tokens_ends_nothing(loops: Loops) -> None:
    pieces = ["<|im", "_end|>", "\n" + lookup_call(loops.tasks[0].record_id) + END_OF_TURN]
    first = [token for piece in pieces for token in loops.encode(piece)]
    assert END_OF_TURN + "\n<tool_call>" in loops.chat.decode(first)
    played = loops.one([first, ANSWER])
    assert played.ours == played.trl
    assert len(played.ours.contexts) == 2
    assert played.episode.calls[0].error is None


# 3. Where TRL differs


NOT_JSON = "Fehler: Aufruf ist kein gültiges JSON"
UNCLOSED = "Fehler: Aufruf ist nicht abgeschlossen"
UNRECORDABLE = (
    "Fehler: Aufruf enthält eine unmögliche Zahl, ein ungültiges Zeichen oder zu viele Ebenen"
)
KEYS = "Fehler: Aufruf braucht genau name und arguments, gefunden: "
NO_SUCH_ID = "Fehler: unbekannte Kennung"
ARGUMENTS = "Fehler: lookup braucht genau das Argument record_id"
OTHER: dict[str, tuple[str, str, str | None]] = {
    # The text of a failure: GRPOTrainer._tool_call_loop answers str({"error": str(exception)}).
    "unknown tool": ('{"name": "reset", "arguments": {}}', "Fehler: unbekanntes Werkzeug", "{'error': 'Tool reset not found.'}"),
    "argument missing": (
        '{"name": "lookup", "arguments": {}}', ARGUMENTS,
        """{'error': "Environment.lookup() missing 1 required positional argument: 'record_id'"}""",
    ),
    "argument too many": (
        '{"name": "lookup", "arguments": {"record_id": "BBBBB", "x": 1}}', ARGUMENTS,
        """{'error': "Environment.lookup() got an unexpected keyword argument 'x'"}""",
    ),
    # trl.chat_template_utils.parse_response falls back to plain text where the call cannot be read: for TRL there was no call.
    "no JSON": ("lookup('BBBBB')", NOT_JSON, None),
    "one brace too many": ('{"name": "lookup", "arguments": {"record_id": "BBBBB"}}}', NOT_JSON, None),
    "line break in a string": ('{"name": "lookup", "arguments": {"record_id": "BBBBB\n"}}', NOT_JSON, None),
    "a list": ('[{"name": "lookup", "arguments": {"record_id": "BBBBB"}}]', "Fehler: Aufruf ist kein JSON-Objekt", None),
    "no name": ('{"arguments": {"record_id": "BBBBB"}}', KEYS + "arguments", None),
    # transformers' chat_parsing `_json` is json.loads, and TRL's _validate_tool_calls looks only at the name: these are calls for TRL.
    "key twice": (
        '{"name": "reset", "name": "lookup", "arguments": {"record_id": "BBBBB"}}', "Fehler: Aufruf nennt einen Schlüssel mehrmals",
        NO_SUCH_ID,
    ),
    "key too many": (
        '{"id": 1, "name": "lookup", "arguments": {"record_id": "BBBBB"}}', KEYS + "name und arguments und anderes", NO_SUCH_ID,
    ),
    "nested argument": (
        '{"name": "lookup", "arguments": {"record_id": ["BBBBB"]}}', "Fehler: arguments darf keine Listen oder Objekte enthalten",
        "Fehler: record_id muss ein Text sein",
    ),
    "NaN": ('{"name": "lookup", "arguments": {"record_id": NaN}}', UNRECORDABLE, "Fehler: record_id muss ein Text sein"),
    "lone surrogate": (r'{"name": "lookup", "arguments": {"record_id": "\ud800"}}', UNRECORDABLE, NO_SUCH_ID),
    "arguments missing": (
        '{"name": "lookup"}', KEYS + "name", """{'error': "Environment.lookup() missing 1 required positional argument: 'record_id'"}""",
    ),
    # In transformers' ResponseParser._watchlist only </tool_call> ends a call; for us a thinking block is private wherever it stands.
    "thinking inside a string": ('{"name": "lookup", "arguments": {"record_id": "<think>"}}', UNCLOSED, NO_SUCH_ID),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER)
def test_trl_answers_a_bad_call_otherwise(loops: Loops, name: str) -> None:
    """We answer every bad call in German and count it. TRL answers some in its own words, takes some, and ends the episode at others."""
    body, ours, trl = OTHER[name]
    turn, last = loops.ids([thought(call(body)), ANSWER])
    played = loops.one([turn, last])
    for stream, observation in ((played.ours, ours), (played.trl, trl)):
        external = [] if observation is None else loops.encode(OPEN + observation + CLOSE)
        tail = last if external else []
        assert stream.completion == turn + external + tail
        assert stream.mask == [1] * len(turn) + [0] * len(external) + [1] * len(tail)
    assert played.episode.outcome.tool_errors == 1


def test_trl_runs_every_call_of_a_turn(loops: Loops) -> None:
    """`GRPOTrainer._tool_call_loop` runs the calls of one message one after another; our prompt asks for one, so the second is an error."""
    turn, last = loops.ids([PRODUCT + calculator_call("2 + 2"), ANSWER])
    played = loops.one([turn, last])
    assert (
        played.ours.completion
        == turn + loops.encode(f"{OPEN}132{BETWEEN}Fehler: nur ein Aufruf pro Zug{CLOSE}") + last
    )
    assert played.trl.completion == turn + loops.encode(f"{OPEN}132{BETWEEN}4{CLOSE}") + last
    assert [call.error for call in played.episode.calls] == [None, "second_call"]


def test_trl_drops_a_good_call_beside_a_bad_one(loops: Loops) -> None:
    """`parse_response` falls back to plain text for the whole turn."""
    turn, last = loops.ids([PRODUCT + call("?"), ANSWER])
    played = loops.one([turn, last])
    assert (
        played.ours.completion
        == turn + loops.encode(f"{OPEN}132{BETWEEN}Fehler: nur ein Aufruf pro Zug{CLOSE}") + last
    )
    assert played.trl.completion == turn


def test_trl_sees_no_call_where_one_never_closes(loops: Loops) -> None:
    """transformers' `ResponseParser.feed` closes the call behind the end-of-turn token, which is no JSON."""
    turn, last = loops.ids([PRODUCT.removesuffix("</tool_call>"), ANSWER])
    played = loops.one([turn, last])
    assert played.ours.completion == turn + loops.encode(OPEN + UNCLOSED + CLOSE) + last
    assert played.trl.completion == turn


@pytest.mark.parametrize("cut", [PRODUCT, PRODUCT.removesuffix("</tool_call>")])
def test_trl_runs_the_call_of_a_turn_that_the_budget_cut(loops: Loops, cut: str) -> None:
    """`GRPOTrainer._tool_call_loop` parses a cut turn like any other. The ids are ours, since no observation fits; the environment's
    state is not: it has seen a call. We end the episode at the cut, unparsed."""
    played = loops.one([loops.encode(cut), ANSWER], budget=len(loops.encode(cut)))
    assert played.ours == played.trl
    assert (played.episode.calls, played.episode.outcome.end) == ([], "token_cap")
    assert loops.trainer.environments[0]._errors == [None]


@pytest.mark.parametrize(
    "said",
    [
        f"hm {PRODUCT} hm</think>",
        f"<think>a<think>b</think>{PRODUCT}</think>",
        f"{PRODUCT}<think>hm</think>",
        f"{PRODUCT}</think></think>",
    ],
)
def test_trl_runs_a_call_before_the_last_end_of_thinking(loops: Loops, said: str) -> None:
    """trl's `qwen3_template` opens thinking at <think> and ends it at the next </think>; Qwen3's chat template, and we, at the last one."""
    turn, last = loops.ids([said, ANSWER])
    played = loops.one([turn, last])
    assert played.ours.completion == turn
    assert played.trl.completion == turn + loops.encode(f"{OPEN}132{CLOSE}") + last


def test_trl_goes_on_behind_an_end_of_text(loops: Loops) -> None:
    """`GRPOTrainer._tool_call_loop` never asks how a turn ended; `_generate_single_turn` stops at either of Qwen3's two stop tokens."""
    end = loops.encode(END_OF_TEXT)
    assert set(end) <= set(loops.trainer.eos_token_ids)
    turn, (last,) = loops.encode(PRODUCT) + end, loops.ids([ANSWER])
    played = loops.one([turn, last])
    assert (played.ours.completion, played.episode.outcome.end) == (turn, "malformed")
    assert played.trl.completion == turn + loops.encode(f"{OPEN}132{CLOSE}") + last


def test_trl_dies_of_deep_nesting(loops: Loops) -> None:
    """`parse_response` catches ValueError and TypeError, not the RecursionError of `json.loads`: one sampled turn ends the training."""
    turn, last = loops.ids([call("[" * 1400), ANSWER])
    assert len(turn) < 768, "a sampler can do that within the pilot's budget"
    ((episode, stream), *_) = play(
        loops.tasks[:1],
        [[turn, last]],
        loops.chat,
        loops.protocol.model_copy(update={"budget": AMPLE}),
    )
    assert stream.completion == turn + loops.encode(OPEN + UNRECORDABLE + CLOSE) + last
    assert episode.outcome.tool_errors == 1
    with pytest.raises(RecursionError):
        loops.one([turn, last])


def test_budgets_agree_but_where_nothing_is_left_behind_an_observation(loops: Loops) -> None:
    """Every budget from one token to more than enough.

    TRL gives each turn the whole cap and cuts the stream afterwards; a scripted or sampled turn that is cut earlier has the same ids.
    `GRPOTrainer._tool_call_loop` keeps an observation while the stream is not *longer* than `max_completion_length`, so at equality it
    trains on a stream that ends in framing, and its next turn is cut to nothing. We keep an observation only if a token can follow.
    """
    script = loops.ids(SAME["expert"][1](loops.tasks[0]))
    whole = loops.one(script).ours
    full = {len(context) - len(whole.prompt) for context in whole.contexts[1:]}
    other = set()
    for budget in range(1, len(whole.completion) + 3):
        played = loops.one(script, budget)
        if (played.ours.completion, played.ours.mask) != (played.trl.completion, played.trl.mask):
            other.add(budget)
            kept = len(played.ours.completion)
            assert played.episode.outcome.end == "observation_cap"
            assert played.trl.completion == whole.completion[:budget]
            assert played.trl.completion[:kept] == played.ours.completion
            assert played.trl.mask == [*played.ours.mask, *[0] * (budget - kept)]
    assert other == full
    assert len(full) == 2


def test_trl_stops_at_the_model_s_context_too(
    loops: Loops, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`GRPOTrainer._tool_call_loop` also drops an observation at `max_position_embeddings`; we leave that to the configuration."""
    script = loops.ids(SAME["expert"][1](loops.tasks[0]))
    whole = loops.one(script)
    assert whole.ours == whole.trl
    monkeypatch.setattr(
        loops.trainer.model.config, "max_position_embeddings", len(whole.ours.contexts[2])
    )
    capped = loops.one(script)
    assert capped.ours == whole.ours
    assert capped.trl.contexts == whole.ours.contexts[:2]


# 4. The boundary check over TRL's own batch (tests/training/test_grpo.py has the other corruptions)


@pytest.fixture
def checked(
    loops: Loops, speller: Speller, study: Study, tmp_path: Path
) -> tuple[grpo.Recorder, Tensors]:
    """A recorder that holds our episodes, and the batch that TRL's own loop made of the same turns."""
    rng = Random("boundary")
    scripts = [
        [speller.turn(text, rng) for text in script(task)]
        for task, (_, script) in zip(loops.tasks, SAME.values(), strict=False)
    ]
    episodes = [replace(played.episode, reward=0.0) for played in loops.play(scripts)]
    values = {name: getattr(study.training, name) for name in TrainingSettings.model_fields}
    settings = TrainingSettings(**values | {"group_size": 2, "batch_size": len(scripts)})
    rollout = Rollout(ScriptedEngine(lambda _: [], frozenset()), loops.chat, loops.protocol)
    recorder = grpo.Recorder(
        rollout, loops.tasks, lambda _: 0.0, "pilot/seed-1", 1, tmp_path, settings
    )
    recorder.batch = episodes
    return recorder, {**loops.batch, "episode": torch.arange(len(scripts))}


def test_what_trl_s_own_loop_would_train_on_passes(checked: tuple[grpo.Recorder, Tensors]) -> None:
    recorder, inputs = checked
    recorder.check(inputs)
    assert len(list(trajectory.read(recorder.work / grpo.EPISODES))) == len(SAME)


EXPERT = 0
"""Row of the expert; not the longest, so that padding follows it."""


def rewritten(inputs: Tensors, ids: Ids, mask: Ids) -> None:
    """Give the expert's row another completion."""
    width = inputs["completion_ids"].shape[1]
    assert len(ids) == len(mask) < width
    for name, values, pad in (
        ("completion_ids", ids, 0),
        ("tool_mask", mask, 1),
        ("completion_mask", [1] * len(ids), 0),
    ):
        inputs[name][EXPERT] = torch.tensor(values + [pad] * (width - len(values)))


def rerendered_turn(episode: Trajectory, inputs: Tensors, chat: ChatProtocol) -> None:
    """The sampled text tokenized anew, as TRL 0.29 did."""
    first = chat.tokenizer.encode(chat.decode(episode.sampled[0].ids))
    rest = len(episode.sampled[0].ids)
    rewritten(
        inputs, first + episode.completion_ids[rest:], [1] * len(first) + episode.loss_mask[rest:]
    )


def rerendered_mask(episode: Trajectory, inputs: Tensors, chat: ChatProtocol) -> None:
    """Ids as sampled, but the mask of the text tokenized anew: an observation's first tokens get 1."""
    first = len(chat.tokenizer.encode(chat.decode(episode.sampled[0].ids)))
    shift = len(episode.sampled[0].ids) - first
    assert shift > 0
    rewritten(inputs, episode.completion_ids, episode.loss_mask[shift:] + [1] * shift)


def framing_dropped(episode: Trajectory, inputs: Tensors, chat: ChatProtocol) -> None:
    at = len(episode.sampled[0].ids)
    assert episode.segments[2].kind == "framing"
    rewritten(
        inputs,
        episode.completion_ids[:at] + episode.completion_ids[at + 1 :],
        episode.loss_mask[:at] + episode.loss_mask[at + 1 :],
    )


def framing_changed(episode: Trajectory, inputs: Tensors, chat: ChatProtocol) -> None:
    inputs["completion_ids"][EXPERT, len(episode.sampled[0].ids)] += 1


def turns_swapped(episode: Trajectory, inputs: Tensors, chat: ChatProtocol) -> None:
    """The same multiset of ids under the same mask."""
    one, two = (segment.ids for segment in episode.sampled[:2])
    ids = episode.completion_ids
    middle = ids[len(one) : ids.index(two[0], len(one))]
    rewritten(
        inputs, two + middle + one + ids[len(one) + len(middle) + len(two) :], episode.loss_mask
    )


def padding_kept(episode: Trajectory, inputs: Tensors, chat: ChatProtocol) -> None:
    inputs["completion_mask"][EXPERT, len(episode.completion_ids)] = 1


def prompt_padding_kept(episode: Trajectory, inputs: Tensors, chat: ChatProtocol) -> None:
    inputs["prompt_ids"] = torch.nn.functional.pad(
        inputs["prompt_ids"], (1, 0), value=chat.tokenizer.pad_token_id
    )
    inputs["prompt_mask"] = torch.nn.functional.pad(inputs["prompt_mask"], (1, 0), value=1)


Corruption = Callable[[Trajectory, Tensors, ChatProtocol], None]
CORRUPTIONS: list[tuple[Corruption, str]] = [
    (rerendered_turn, "completion ids"),
    (rerendered_mask, "loss mask"),
    (framing_dropped, "completion ids"),
    (framing_changed, "completion ids"),
    (turns_swapped, "completion ids"),
    (padding_kept, "completion ids"),
    (prompt_padding_kept, "prompt ids"),
]


@pytest.mark.parametrize(
    ("corrupt", "field"), CORRUPTIONS, ids=lambda value: getattr(value, "__name__", "")
)
def test_one_wrong_token_stops_the_run(
    checked: tuple[grpo.Recorder, Tensors], qwen_chat: ChatProtocol, corrupt: Corruption, field: str
) -> None:
    recorder, inputs = checked
    corrupt(recorder.batch[EXPERT], inputs, qwen_chat)
    with pytest.raises(grpo.BoundaryError, match=f"TRL's {field} differ"):
        recorder.check(inputs)
    assert not (recorder.work / grpo.EPISODES).exists()

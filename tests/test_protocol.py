"""Protocol: a parser that no text breaks, and external tokens that equal what TRL's own tool loop appends."""

import copy
import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import ByT5Tokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from trl import GRPOTrainer
from trl.chat_template_utils import get_training_chat_template

from agentrl.environment import Request
from agentrl.protocol import END_OF_TEXT, END_OF_TURN, ChatProtocol, ProtocolError, Turn, outside_thinking, parse_turn, turn_body
from agentrl.tasks import Task

LOOKUP = '{"name": "lookup", "arguments": {"record_id": "LNFWW"}}'
CALL = f"<tool_call>\n{LOOKUP}\n</tool_call>"
PARSED = Request("lookup", {"record_id": "LNFWW"})
BROKEN = Request(error="unparseable")
OBSERVATIONS = ['{"menge": 7, "einzelpreis": 59}', "413", "-0.5", "Fehler: Ausdruck ist länger als 80 Zeichen", "Äßü {}\n x"]
PIECES = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "<answer>",
    "</answer>",
    "413",
    "\n",
    LOOKUP,
    END_OF_TURN,
    "x",
]
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters()))
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
PROTOCOLS = pytest.mark.parametrize("which", ["chat", "qwen_chat"])


@pytest.fixture
def any_chat(request: pytest.FixtureRequest, which: str) -> ChatProtocol:
    return request.getfixturevalue(which)


def calls(text: str) -> tuple[Request, ...]:
    return parse_turn(text).calls


def call(arguments: str) -> str:
    return f'<tool_call>{{"name": "lookup", "arguments": {arguments}}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        ("", Turn((), None, False)),
        (CALL + END_OF_TURN, Turn((PARSED,), None, False)),
        (f"<think>\nhm\n</think>\n\n{CALL}", Turn((PARSED,), None, False)),
        (f"hm\n</think>\n\n{CALL}", Turn((PARSED,), None, False)),
        (f"<think>{CALL}</think>", Turn((), None, False)),
        (f"{CALL}</think>", Turn((), None, False)),
        (f"<think>{CALL}", Turn((), None, False)),
        (f"<think>a</think>{CALL}<think>{CALL}</think>", Turn((PARSED,), None, False)),
        (f"{CALL}{CALL}", Turn((PARSED, Request("lookup", {"record_id": "LNFWW"}, "second_call")), None, False)),
        (f"<tool_call>{LOOKUP}", Turn((BROKEN,), None, False)),
        (f"<tool_call>{CALL}", Turn((BROKEN,), None, False)),
        (f"<tool_call>{LOOKUP}<think></think></tool_call>", Turn((BROKEN,), None, False)),
        (f"<tool_<think></think>call>{LOOKUP}</tool_call>", Turn((), None, False)),
        (f"<tool_call>{LOOKUP}{END_OF_TURN}", Turn((BROKEN,), None, False)),
        (f"<tool_call>{LOOKUP} <answer>413</answer>", Turn((BROKEN,), 413, False)),
        ("<answer>413</answer>" + END_OF_TURN, Turn((), 413, False)),
        ("<answer>413</answer>\n" + END_OF_TEXT, Turn((), 413, False)),
        ("<think><answer>1</answer></think><answer>413</answer>", Turn((), 413, False)),
        ("<answer>-7</answer>", Turn((), -7, False)),
        ("<answer>0</answer>", Turn((), 0, False)),
        ("<answer>4<think>x</think>13</answer>", Turn((), None, False)),
        ("<answer>413</answer><think>oder doch nicht", Turn((), None, False)),
        (f"<answer>413</answer>{END_OF_TURN} und mehr", Turn((), None, True)),
        (f"<answer>413</answer>{END_OF_TURN}{END_OF_TURN}", Turn((), None, True)),
        (f"{CALL}{END_OF_TURN}\n<tool_response>413</tool_response>{END_OF_TURN}", Turn((PARSED,), None, True)),
        ("<tool_response>", Turn((), None, True)),
        ("</tool_response>", Turn((), None, True)),
        ("<think><tool_response>413</tool_response></think>", Turn((), None, True)),
        ("<|im_start|>user", Turn((), None, True)),
    ],
)
def test_turns(text: str, turn: Turn) -> None:
    assert parse_turn(text) == turn


@pytest.mark.parametrize(
    "written", ["", " 413", "0413", "+413", "-", "4 13", "1.413", "1,413", "413.0", "413 €", "4e2", "vier", "٤١٣", "9" * 19, "--1"]
)
def test_other_answers_are_none(written: str) -> None:
    assert parse_turn(f"<answer>{written}</answer>").answer is None


@pytest.mark.parametrize(
    "text",
    [
        "413",
        "<answer>413",
        "413</answer>",
        "<answer>412</answer><answer>413</answer>",
        "<answer><answer>413</answer>",
        "<answer>413</answer>.",
    ],
)
def test_other_ends_are_none(text: str) -> None:
    assert parse_turn(text).answer is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "null",
        "[]",
        '"lookup"',
        "lookup('LNFWW')",
        "{'name': 'lookup', 'arguments': {}}",
        '{"name": "lookup"}',
        '{"name": "lookup", "arguments": {}, "id": 1}',
        '{"name": "lookup", "parameters": {}}',
        '{"name": 1, "arguments": {}}',
        '{"name": "lookup", "arguments": null}',
        '{"name": "lookup", "arguments": "{}"}',
        '{"name": "lookup", "arguments": []}',
        '{"name": "reset", "name": "lookup", "arguments": {}}',
        '{"name": "lookup", "arguments": {"record_id": "A", "record_id": "LNFWW"}}',
        LOOKUP + LOOKUP,
        LOOKUP + ",",
        "[" * 100_000,
        '{"a":' * 100_000,
        f"{LOOKUP}\ufffc",
    ],
)
def test_other_contents_are_unparseable(content: str) -> None:
    assert calls(f"<tool_call>\n{content}\n</tool_call>") == (BROKEN,)


@pytest.mark.parametrize(
    "value",
    [
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "-1e999",
        "9" * 5000,
        r'"\ud800"',
        '["LNFWW"]',
        '{"x": 1}',
        "[" * 300 + "]" * 300,
        "[" * 50_000 + "]" * 50_000,
        "tru",
    ],
)
def test_what_a_record_cannot_hold_is_no_argument(value: str) -> None:
    assert calls(call(f'{{"record_id": {value}}}')) == (BROKEN,)


@pytest.mark.parametrize("value", ["null", "true", "1", "1.5", '""', r'"\ud83d\ude00"', "1" * 400])
def test_other_scalars_are_arguments_for_the_tool_to_judge(value: str) -> None:
    assert calls(call(f'{{"record_id": {value}}}')) == (Request("lookup", {"record_id": json.loads(value)}),)


@given(st.one_of(st.text(), st.text(st.characters()), st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=5))).map("".join)))
def test_no_text_breaks_the_parser(text: str) -> None:
    turn = parse_turn(text)
    assert [request.error for request in turn.calls[1:]] == ["second_call"] * len(turn.calls[1:])
    assert all(request.error or request.name is not None for request in turn.calls)
    assert len(turn.calls) <= text.count("<tool_call>")
    assert turn.answer is None or f"<answer>{turn.answer}</answer>" in text.replace("<answer>-0<", "<answer>0<")
    assert turn.invented or "<tool_response>" not in text
    assert parse_turn(turn_body(text)).calls == turn.calls or text.endswith(END_OF_TURN * 2) or END_OF_TURN in turn_body(text)


@given(JSON)
def test_any_json_is_a_call_only_if_flat_and_recordable(value: object) -> None:
    written = json.dumps({"name": "lookup", "arguments": {"record_id": value}}).replace("<", "\\u003c")
    (found,) = calls(f"<tool_call>{written}</tool_call>")
    if found.error is None:
        assert found.arguments == {"record_id": value}
        assert json.loads(json.dumps(found.arguments, allow_nan=False, ensure_ascii=False).encode()) == found.arguments
    else:
        assert not isinstance(value, int | None) or abs(value) > 10**4300


@given(st.lists(st.sampled_from(["<think>", "</think>", "a", "b"])).map("".join))
def test_thinking_leaves_no_opening_tag(text: str) -> None:
    outside = outside_thinking(text, gap="")
    assert "<think>" not in outside
    assert ("a" in outside) <= ("a" in text)


@PROTOCOLS
@pytest.mark.parametrize("observations", [[o] for o in OBSERVATIONS] + [OBSERVATIONS[:2], OBSERVATIONS])
def test_suffix_is_what_trl_appends(any_chat: ChatProtocol, observations: list[str]) -> None:
    """TRL renders with its prefix-preserving variant of the template; the text behind the assistant's turn must not differ."""
    tokenizer = any_chat.tokenizer
    template = get_training_chat_template(tokenizer)
    trainer = SimpleNamespace(
        processing_class=tokenizer, _tokenizer=tokenizer, chat_template=template, chat_template_kwargs={}, _is_vlm=False
    )
    messages = [{"role": "tool", "name": "lookup", "content": observation} for observation in observations]
    expected = GRPOTrainer._get_tool_suffix_ids(trainer, messages)
    assert [token for piece in any_chat.suffix(observations) for token in piece.ids] == list(expected)


@PROTOCOLS
@pytest.mark.parametrize("observations", [["413"], ["ÄßΩ9", "Ω§9"], OBSERVATIONS])
def test_pieces_separate_observations_from_framing(any_chat: ChatProtocol, observations: list[str]) -> None:
    pieces = any_chat.suffix(observations)
    kinds = [piece.kind for piece in pieces]
    assert kinds == ["framing", "observation"] * len(observations) + ["framing"]
    for observation, piece in zip(observations, pieces[1::2], strict=True):
        assert observation in any_chat.decode(piece.ids)
    before, between, after = any_chat.frames
    frames = [before, *[between] * (len(observations) - 1), after]
    for frame, piece in zip(frames, pieces[::2], strict=True):
        assert any_chat.decode(piece.ids) in frame, "a token with a character of an observation counts as framing"
    text = "".join(frame + observation for frame, observation in zip(frames, [*observations, ""], strict=True))
    assert any_chat.decode([token for piece in pieces for token in piece.ids]) == text


@PROTOCOLS
def test_prompt_is_the_template_with_tools_and_open_turn(any_chat: ChatProtocol, task: Task) -> None:
    ids = any_chat.prompt(task.messages())
    templated = any_chat.tokenizer.apply_chat_template(task.messages(), tools=any_chat.tools, add_generation_prompt=True, return_dict=False)
    assert ids == list(templated)
    text = any_chat.decode(ids)
    assert text.endswith("<|im_start|>assistant\n")
    assert text.index('"name": "calculator"') < text.index('"name": "lookup"')
    assert "<tools>" not in any_chat.decode(any_chat.prompt(task.messages(), tools=False))


@PROTOCOLS
def test_stop_ids_are_end_of_turn_and_of_text(any_chat: ChatProtocol) -> None:
    assert any_chat.decode([any_chat.end_of_turn]) == END_OF_TURN
    assert {any_chat.decode([token]) for token in any_chat.stop_ids} == {END_OF_TURN, END_OF_TEXT}


CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
REFUSING = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}{% endfor %}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda qwen3: None, "no chat template"),
        (lambda qwen3: CHATML, "does not render tool answers"),
        (lambda qwen3: REFUSING, r"refuses tool answers \(no tools\)"),
        (lambda qwen3: qwen3.replace("\\n</tool_call>'", "\\n</tool_call>\\n'"), "does not render tool answers"),
        (lambda qwen3: qwen3.replace("tool_response", "observation"), "does not render tool answers"),
        (
            lambda qwen3: qwen3.replace("tool_response>\\n' }}\n        {{- content }}", "tool_response>\\n' }}"),
            "does not render tool answers",
        ),
    ],
)
def test_templates_without_the_turn_structure_are_refused(tokenizer: PreTrainedTokenizerFast, change: object, message: str) -> None:
    other = copy.deepcopy(tokenizer)
    other.chat_template = change(tokenizer.chat_template)
    assert other.chat_template != tokenizer.chat_template
    with pytest.raises(ProtocolError, match=message):
        ChatProtocol(other)


def test_slow_tokenizer_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(ProtocolError, match="a fast tokenizer is needed"):
        ChatProtocol(ByT5Tokenizer(chat_template=tokenizer.chat_template))


def test_end_of_turn_of_several_tokens_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    letters = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[]))
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    other: PreTrainedTokenizerBase = PreTrainedTokenizerFast(tokenizer_object=letters, chat_template=tokenizer.chat_template)
    with pytest.raises(ProtocolError, match=r"<\|im_end\|> must be one token"):
        ChatProtocol(other)

"""Protocol: a parser that no text breaks, and external tokens that equal what TRL's own tool loop appends."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from time import process_time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import ByT5Tokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from trl import GRPOTrainer
from trl.chat_template_utils import get_training_chat_template

from agentrl.rollout.chat import (
    END_OF_TEXT,
    END_OF_TURN,
    ChatProtocol,
    ProtocolError,
    Turn,
    _nested_deeper,
    outside_thinking,
    parse_turn,
    turn_body,
)
from agentrl.tasks.environment import Request
from agentrl.tasks.families import Task

LOOKUP = '{"name": "lookup", "arguments": {"record_id": "LNFWW"}}'
CALL = f"<tool_call>\n{LOOKUP}\n</tool_call>"
PARSED = Request("lookup", {"record_id": "LNFWW"})
UNCLOSED = Request(error="unclosed_call")
NOT_JSON = Request(error="invalid_json")
OBSERVATIONS = [
    '{"menge": 7, "einzelpreis": 59}',
    "413",
    "-0.5",
    "Fehler: Ausdruck ist länger als 80 Zeichen",
    "Äßü {}\n x",
]
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
SHIPPED = Path(__file__).parents[1] / "data/start/chat_template.jinja"
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
        (f"<think>a</think>{CALL}<think>{CALL}</think>", Turn((), None, False)),
        (f"<think>a</think>{CALL}<think>{CALL}", Turn((PARSED,), None, False)),
        (f"<think>a<think>b</think>{CALL}</think>", Turn((), None, False)),
        (f"<think>a<think>b</think>{CALL}</think>{CALL}", Turn((PARSED,), None, False)),
        (f"<think>a<think>b</think>{CALL}", Turn((PARSED,), None, False)),
        (
            f"{CALL}{CALL}",
            Turn((PARSED, Request("lookup", {"record_id": "LNFWW"}, "second_call")), None, False),
        ),
        (
            f"{CALL}<tool_call>?</tool_call>",
            Turn((PARSED, Request(error="second_call")), None, False),
        ),
        (
            f"<tool_call>?</tool_call>{CALL}",
            Turn((NOT_JSON, Request("lookup", {"record_id": "LNFWW"}, "second_call")), None, False),
        ),
        (f"<tool_call>{LOOKUP}", Turn((UNCLOSED,), None, False)),
        (f"<tool_call>{CALL}", Turn((NOT_JSON,), None, False)),
        (f"<tool_call>{LOOKUP}<think>", Turn((UNCLOSED,), None, False)),
        (f"<tool_call>{LOOKUP}<think></think></tool_call>", Turn((), None, False)),
        (f"<tool_<think></think>call>{LOOKUP}</tool_call>", Turn((), None, False)),
        (f"<tool_call>{LOOKUP}{END_OF_TURN}", Turn((UNCLOSED,), None, False)),
        (f"<tool_call>{LOOKUP} <answer>413</answer>", Turn((UNCLOSED,), 413, False)),
        ("<answer>413</answer>" + END_OF_TURN, Turn((), 413, False)),
        ("<answer>413</answer>\n" + END_OF_TEXT, Turn((), 413, False)),
        ("<think><answer>1</answer></think><answer>413</answer>", Turn((), 413, False)),
        ("<answer>-7</answer>", Turn((), -7, False)),
        ("<answer>0</answer>", Turn((), 0, False)),
        ("<answer>4<think>x</think>13</answer>", Turn((), None, False)),
        ("<answer>413</answer><think>oder doch nicht", Turn((), None, False)),
        ("<answer>413</answer><think>oder?</think>", Turn((), None, False)),
        ("<answer>412</answer></think><answer>413</answer>", Turn((), 413, False)),
        (f"<answer>413</answer>{END_OF_TURN} und mehr", Turn((), None, True)),
        (f"<answer>413</answer>{END_OF_TURN}{END_OF_TURN}", Turn((), None, True)),
        (
            f"{CALL}{END_OF_TURN}\n<tool_response>413</tool_response>{END_OF_TURN}",
            Turn((PARSED,), None, True),
        ),
        ("<tool_response>", Turn((), None, True)),
        ("</tool_response>", Turn((), None, True)),
        ("<think><tool_response>413</tool_response></think>", Turn((), None, True)),
        ("<|im_start|>user", Turn((), None, True)),
    ],
)
def test_turns(text: str, turn: Turn) -> None:
    assert parse_turn(text) == turn


@pytest.mark.parametrize(
    "written",
    [
        "",
        " 413",
        "0413",
        "+413",
        "-",
        "4 13",
        "1.413",
        "1,413",
        "413.0",
        "413 €",
        "4e2",
        "vier",
        "٤١٣",
        "9" * 19,
        "--1",
    ],
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


CALLED = '{"name": "lookup", "arguments": {"record_id": %s}}'
MALFORMED = [
    (
        "invalid_json",
        [
            "",
            "lookup('LNFWW')",
            "{'name': 'lookup', 'arguments': {}}",
            LOOKUP + LOOKUP,
            LOOKUP + ",",
            f"{LOOKUP}\ufffc",
        ],
    ),
    (
        "invalid_json",
        [
            '{"name": "lookup", "arguments": {"record_id": "LNFWW}}',
            CALLED % "tru",
            CALLED % '"a\n"',
            "[" * 16,
            "\\",
        ],
    ),
    (
        "repeated_key",
        [
            '{"name": "reset", "name": "lookup", "arguments": {}}',
            CALLED % '"A", "record_id": "LNFWW"',
            '[{"a": 1, "a": 1}]',
        ],
    ),
    (
        "unrecordable",
        [
            CALLED % value
            for value in (
                "NaN",
                "Infinity",
                "-Infinity",
                "1e999",
                "-1e999",
                "9" * 5000,
                r'"\ud800"',
            )
        ],
    ),
    (
        "unrecordable",
        [r'{"name": "\ud800", "arguments": {}}', "NaN", "[" * 17, "[" * 100_000, '{"a":' * 100_000],
    ),
    (
        "unrecordable",
        [
            "[" * 50_000 + "]" * 50_000,
            CALLED % ("[" * 300 + "]" * 300),
            CALLED % ("[" * 990 + "]" * 990),
        ],
    ),
    ("not_an_object", ["null", "[]", '"lookup"', "7", "true", f"[{LOOKUP}]"]),
    (
        "wrong_keys",
        [
            '{"name": "lookup"}',
            '{"name": "lookup", "parameters": {}}',
            '{"arguments": {}}',
            "{}",
            LOOKUP[:-1] + ', "id": 1}',
        ],
    ),
    (
        "name_not_a_string",
        [
            '{"name": 1, "arguments": {}}',
            '{"name": null, "arguments": []}',
            '{"name": ["lookup"], "arguments": {}}',
        ],
    ),
    (
        "arguments_not_an_object",
        [
            f'{{"name": "lookup", "arguments": {value}}}'
            for value in ("null", '"{}"', "[]", "7", '["LNFWW"]')
        ],
    ),
    (
        "nested_arguments",
        [CALLED % value for value in ('["LNFWW"]', '{"x": 1}', "[]", "[" * 14 + "]" * 14)],
    ),
]


@pytest.mark.parametrize(
    ("kind", "content"), [(kind, content) for kind, contents in MALFORMED for content in contents]
)
def test_each_malformed_call_has_the_kind_of_its_mistake(kind: str, content: str) -> None:
    (found,) = calls(f"<tool_call>\n{content}\n</tool_call>")
    assert (found.name, found.arguments, found.error) == (None, None, kind)
    assert calls(f"<tool_call>\n{content}") == (UNCLOSED,)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ('{"name": "lookup", "parameters": {"record_id": "LNFWW"}}', "name und anderes"),
        ('{"name": "lookup"}', "name"),
        ('{"arguments": {}}', "arguments"),
        ('{"<tool_call>": 1, "LNFWW": 413}', "anderes"),
        ('{"id": 1, "name": "lookup", "arguments": {}}', "name und arguments und anderes"),
        ("{}", "nichts"),
    ],
)
def test_wrong_keys_are_told_in_our_words_only(content: str, found: str) -> None:
    (request,) = calls(f"<tool_call>{content}</tool_call>")
    assert request == Request(
        error="wrong_keys", reason=f"Aufruf braucht genau name und arguments, gefunden: {found}"
    )


def deep_down(levels: int, act: Callable[[], object]) -> object:
    return act() if levels == 0 else deep_down(levels - 1, act)


@pytest.mark.parametrize("levels", [1, 14, 15, 16, 17, 200, 900])
def test_the_kind_does_not_depend_on_how_deep_the_caller_stands(levels: int) -> None:
    """Python's reader gives up sooner on a full stack; a record made there must be the one that verify makes elsewhere."""
    text = call('{"record_id": ' + "[" * levels + "]" * levels + "}")
    assert deep_down(700, lambda: calls(text)) == calls(text)


def depth_of(value: object) -> int:
    inner = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    )
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


TRICKY = st.text('{}[]",:\\\\a\n', max_size=8)


@given(
    st.recursive(
        TRICKY | st.none(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TRICKY, inner, max_size=3),
    )
)
def test_nesting_is_that_of_the_data(value: object) -> None:
    """Brackets inside strings do not count, however they and their quotes are escaped."""
    depth = depth_of(value)
    assert not _nested_deeper(json.dumps(value), depth)
    assert depth == 0 or _nested_deeper(json.dumps(value), depth - 1)


@pytest.mark.parametrize("value", ["null", "true", "1", "1.5", '""', r'"\ud83d\ude00"', "1" * 400])
def test_other_scalars_are_arguments_for_the_tool_to_judge(value: str) -> None:
    assert calls(call(f'{{"record_id": {value}}}')) == (
        Request("lookup", {"record_id": json.loads(value)}),
    )


@given(
    st.one_of(
        st.text(),
        st.text(st.characters()),
        st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=5))).map("".join),
    )
)
def test_no_text_breaks_the_parser(text: str) -> None:
    turn = parse_turn(text)
    assert [request.error for request in turn.calls[1:]] == ["second_call"] * len(turn.calls[1:])
    assert all(request.error or request.name is not None for request in turn.calls)
    assert len(turn.calls) <= text.count("<tool_call>")
    assert turn.answer is None or f"<answer>{turn.answer}</answer>" in text.replace(
        "<answer>-0<", "<answer>0<"
    )
    assert turn.invented or "<tool_response>" not in text
    assert (
        parse_turn(turn_body(text)).calls == turn.calls
        or text.endswith(END_OF_TURN * 2)
        or END_OF_TURN in turn_body(text)
    )


@given(JSON)
def test_any_json_is_a_call_only_if_flat_and_recordable(value: object) -> None:
    written = json.dumps({"name": "lookup", "arguments": {"record_id": value}}).replace(
        "<", "\\u003c"
    )
    (found,) = calls(f"<tool_call>{written}</tool_call>")
    if isinstance(value, list | dict):
        assert found.error in ("nested_arguments", "unrecordable", "repeated_key")
    elif found.error is None:
        assert found.arguments == {"record_id": value}
        assert (
            json.loads(json.dumps(found.arguments, allow_nan=False, ensure_ascii=False).encode())
            == found.arguments
        )
    else:
        assert found.error == "unrecordable"
        assert not isinstance(value, int | None) or abs(value) > 10**4300


TAGS = [
    "<think>",
    "</think>",
    "<think",
    "think>",
    "</",
    "a",
    "b",
    "\n",
    CALL,
    "<answer>413</answer>",
]
TAGGED = st.lists(st.sampled_from(TAGS)).map("".join)


def templated(chat: ChatProtocol, text: str) -> str:
    """What the chat template takes for the content of an assistant's turn: it stands behind the one thought that it renders."""
    shown = chat.render(
        [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}],
        tools=False,
        generation=False,
    )
    return shown.removesuffix(f"{END_OF_TURN}\n").rpartition("</think>\n\n")[2]


@pytest.mark.parametrize("shipped", [True, False], ids=["tests/data/start", "demo"])
@given(text=TAGGED)
def test_thinking_ends_where_the_template_says(
    chat: ChatProtocol, shipped: bool, text: str
) -> None:
    """The template's split of the text, but for an open thought behind it, which it shows, and the line breaks that it trims."""
    template = SHIPPED.read_text(encoding="utf-8") if shipped else chat.tokenizer.chat_template
    other = copy.copy(chat)
    other.tokenizer = copy.copy(chat.tokenizer)
    other.tokenizer.chat_template = template
    assert outside_thinking(text).lstrip("\n") == templated(other, text).partition("<think>")[0]
    assert parse_turn(text).calls == parse_turn(templated(other, text)).calls
    assert parse_turn(text).answer == parse_turn(templated(other, text)).answer


@given(TAGGED)
def test_no_tag_of_thinking_is_left_outside(text: str) -> None:
    outside = outside_thinking(text)
    assert "<think>" not in outside
    assert "</think>" not in outside
    assert outside in text
    assert outside_thinking(text, gap="!") in (outside, f"{outside}!")


HOSTILE = 200_000


@pytest.mark.parametrize(
    "text",
    [
        "<think>" * HOSTILE, "</think>" * HOSTILE, "<think></think>" * HOSTILE, "<" * HOSTILE, "<think" * HOSTILE,
        "<tool_call>" * HOSTILE, "</tool_call>" * HOSTILE, "<tool_call></tool_call>" * 20_000, f"{CALL}" * 5_000,
        '<tool_call>"' + '\\"' * HOSTILE, '<tool_call>"' + '\\"' * HOSTILE + "</tool_call>", f'<tool_call>{"{" * HOSTILE}</tool_call>',
        f'<tool_call>"{"[" * HOSTILE}"</tool_call>', f'<tool_call>{"[]," * HOSTILE}</tool_call>',
        "<answer>" * HOSTILE, "<answer>1</answer>" * 50_000, f'<answer>{"9" * HOSTILE}</answer>',
        "<answer>413</answer>" + " " * HOSTILE + ".",
        f'<tool_call>{CALLED % ("9" * HOSTILE)}</tool_call>', "<think>" * HOSTILE + "</think>" * HOSTILE + CALL,
    ],
    ids=range(20),
)  # fmt: skip
def test_hostile_texts_are_read_in_linear_time(text: str) -> None:
    """Far longer than a budget of 768 tokens allows; a parser that is quadratic in them takes minutes."""
    start = process_time()
    parse_turn(text)
    assert process_time() - start < 2


@PROTOCOLS
@pytest.mark.parametrize(
    "observations", [[o] for o in OBSERVATIONS] + [OBSERVATIONS[:2], OBSERVATIONS]
)
def test_suffix_is_what_trl_appends(any_chat: ChatProtocol, observations: list[str]) -> None:
    """TRL renders with its prefix-preserving variant of the template; the text behind the assistant's turn must not differ."""
    tokenizer = any_chat.tokenizer
    template = get_training_chat_template(tokenizer)
    trainer = SimpleNamespace(
        processing_class=tokenizer,
        _tokenizer=tokenizer,
        chat_template=template,
        chat_template_kwargs={},
        _is_vlm=False,
    )
    messages = [
        {"role": "tool", "name": "lookup", "content": observation} for observation in observations
    ]
    expected = GRPOTrainer._get_tool_suffix_ids(trainer, messages)
    assert [token for piece in any_chat.suffix(observations) for token in piece.ids] == list(
        expected
    )


@PROTOCOLS
@pytest.mark.parametrize("observations", [["413"], ["ÄßΩ9", "Ω§9"], OBSERVATIONS])
def test_pieces_separate_observations_from_framing(
    any_chat: ChatProtocol, observations: list[str]
) -> None:
    pieces = any_chat.suffix(observations)
    kinds = [piece.kind for piece in pieces]
    assert kinds == ["framing", "observation"] * len(observations) + ["framing"]
    for observation, piece in zip(observations, pieces[1::2], strict=True):
        assert observation in any_chat.decode(piece.ids)
    before, between, after = any_chat.frames
    frames = [before, *[between] * (len(observations) - 1), after]
    for frame, piece in zip(frames, pieces[::2], strict=True):
        assert any_chat.decode(piece.ids) in frame, (
            "a token with a character of an observation counts as framing"
        )
    text = "".join(
        frame + observation for frame, observation in zip(frames, [*observations, ""], strict=True)
    )
    assert any_chat.decode([token for piece in pieces for token in piece.ids]) == text


@PROTOCOLS
def test_prompt_is_the_template_with_tools_and_open_turn(
    any_chat: ChatProtocol, task: Task
) -> None:
    ids = any_chat.prompt(task.messages())
    templated = any_chat.tokenizer.apply_chat_template(
        task.messages(), tools=any_chat.tools, add_generation_prompt=True, return_dict=False
    )
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
        (
            lambda qwen3: qwen3.replace("\\n</tool_call>'", "\\n</tool_call>\\n'"),
            "does not render tool answers",
        ),
        (
            lambda qwen3: qwen3.replace("tool_response", "observation"),
            "does not render tool answers",
        ),
        (
            lambda qwen3: qwen3.replace(
                "tool_response>\\n' }}\n        {{- content }}", "tool_response>\\n' }}"
            ),
            "does not render tool answers",
        ),
    ],
)
def test_templates_without_the_turn_structure_are_refused(
    tokenizer: PreTrainedTokenizerFast, change: object, message: str
) -> None:
    other = copy.deepcopy(tokenizer)
    other.chat_template = change(tokenizer.chat_template)
    assert other.chat_template != tokenizer.chat_template
    with pytest.raises(ProtocolError, match=message):
        ChatProtocol(other)


def test_slow_tokenizer_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(ProtocolError, match="a fast tokenizer is needed"):
        ChatProtocol(ByT5Tokenizer(chat_template=tokenizer.chat_template))


def test_end_of_turn_of_several_tokens_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    letters = Tokenizer(
        models.BPE(
            vocab={
                letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))
            },
            merges=[],
        )
    )
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    other: PreTrainedTokenizerBase = PreTrainedTokenizerFast(
        tokenizer_object=letters, chat_template=tokenizer.chat_template
    )
    with pytest.raises(ProtocolError, match=r"<\|im_end\|> must be one token"):
        ChatProtocol(other)

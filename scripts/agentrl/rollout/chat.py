"""Qwen3's tool protocol in token ids: the prompt, the parser of sampled turns, and the suffix that carries observations.

There is one parser for sampled text and one place that renders external tokens; training, evaluation, demonstrations and
verification all use them. The suffix equals what TRL's own tool loop appends (`GRPOTrainer._get_tool_suffix_ids`): the template's
text behind the assistant's end-of-turn token, tokenized as one piece.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import get_json_schema

from agentrl.evidence.errors import StudyError
from agentrl.tasks.environment import TOOLS, Environment, Request

END_OF_TURN = "<|im_end|>"
END_OF_TEXT = "<|endoftext|>"
_MARKER = "\N{BLACK FLORETTE}"
"""Stands in for an observation while the template is taken apart; survives every template that copies content verbatim."""
_CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|$)", re.DOTALL)
_ANSWER = re.compile(r"<answer>(-?(?:0|[1-9][0-9]*))</answer>\s*$")
_EXTERNAL = ("<tool_response>", "</tool_response>", "<|im_start|>", END_OF_TURN)
_GAP = "\N{OBJECT REPLACEMENT CHARACTER}"
"""Stands where a thought begins that never closes: no space, so what stands before it is not the turn's last word."""
MAX_ANSWER_DIGITS = 18
"""Longer numbers are no answers; Python would also refuse to convert some thousands of digits."""


MAX_NESTING = 16
"""Deeper JSON is not read: two levels are enough for a call, and how deep Python can read depends on the stack it is called from."""
MAX_INTEGER_DIGITS = 4300
"""Characters of the longest integer that Python converts (`sys.int_info.default_max_str_digits`)."""
CALL_KEYS = ("name", "arguments")
"""What Qwen3's template asks a call to be made of."""


class ProtocolError(StudyError, ValueError):
    """The tokenizer or its chat template cannot carry the protocol; the message says what is missing."""


@dataclass(frozen=True)
class Turn:
    """One sampled assistant turn, parsed."""

    calls: tuple[Request, ...]
    """Calls outside thinking, in order; from the second on they are tool errors."""
    answer: int | None
    """Integer of the one `<answer>` tag that ends the turn, else None."""
    invented: bool
    """Whether the policy wrote text that only the environment may write."""


@dataclass(frozen=True)
class Piece:
    """A run of external token ids behind a sampled turn."""

    kind: str
    """`framing` or `observation`; a token that holds any character of an observation belongs to the observation."""
    ids: tuple[int, ...]


def tool_schemas() -> list[dict[str, Any]]:
    """JSON schemas of the environment's tools, from its signatures and docstrings, in alphabetical order."""
    environment = Environment()
    return [get_json_schema(getattr(environment, name)) for name in TOOLS]


def parse_turn(text: str) -> Turn:
    """Parse one finished assistant turn. Thinking is private (`outside_thinking`): neither calls nor answers in it count."""
    body = turn_body(text)
    content = outside_thinking(body, gap=_GAP)
    requests = [parse_call(match[1], closed=bool(match[2])) for match in _CALL.finditer(content)]
    calls = [
        r if i == 0 else Request(r.name, r.arguments, "second_call") for i, r in enumerate(requests)
    ]
    return Turn(tuple(calls), parse_answer(content), any(tag in body for tag in _EXTERNAL))


def turn_body(text: str) -> str:
    """Decoded turn without its stop token. One spelled out of ordinary tokens earlier in the turn is text like any other."""
    for stop in (END_OF_TURN, END_OF_TEXT):
        if text.endswith(stop):
            return text.removesuffix(stop)
    return text


def outside_thinking(text: str, gap: str = "") -> str:
    """What a turn says, without its thinking: the one definition of where thinking ends, that of Qwen3's chat template.

    The template takes what follows the last `</think>` (`content.split('</think>')[-1]`), so everything before it is private: nested
    thoughts, text between two thoughts, and calls or answers before a thought that closes later. A `<think>` behind it that never closes
    (the template passes it on as it is) swallows the rest; `gap` stands in its place.
    """
    said, opened, _ = text.rpartition("</think>")[2].partition("<think>")
    return said + gap if opened else said


def parse_call(written: str, closed: bool) -> Request:
    """One `<tool_call>` block: JSON of one object with exactly `name`, a text, and `arguments`, an object of plain values.

    Anything else is an error of the first kind that applies, in the order below. Names and arguments that were not accepted are dropped:
    a record could not hold all of them, and no observation may repeat what a policy wrote.
    """
    if not closed:
        return Request(error="unclosed_call")
    if _nested_deeper(written, MAX_NESTING):
        return Request(error="unrecordable")
    repeated: list[bool] = []

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        repeated.append(len(dict(found)) != len(found))
        return dict(found)

    try:
        data = json.loads(written, object_pairs_hook=pairs, parse_int=_integer)
    except json.JSONDecodeError:
        return Request(error="invalid_json")
    if any(repeated):
        return Request(error="repeated_key")
    return _request(data) if _recordable(data) else Request(error="unrecordable")


def _request(data: Any) -> Request:
    """The call that JSON data describe, or why they describe none."""
    if not isinstance(data, dict):
        return Request(error="not_an_object")
    if set(data) != set(CALL_KEYS):
        found = [key for key in CALL_KEYS if key in data] + ["anderes"] * bool(
            set(data) - set(CALL_KEYS)
        )
        wanted = " und ".join(CALL_KEYS)
        return Request(
            error="wrong_keys",
            reason=f"Aufruf braucht genau {wanted}, gefunden: {' und '.join(found) or 'nichts'}",
        )
    name, arguments = (data[key] for key in CALL_KEYS)
    if not isinstance(name, str):
        return Request(error="name_not_a_string")
    if not isinstance(arguments, dict):
        return Request(error="arguments_not_an_object")
    if any(isinstance(value, dict | list) for value in arguments.values()):
        return Request(error="nested_arguments")
    return Request(name, arguments)


def _nested_deeper(written: str, levels: int) -> bool:
    """Whether brackets outside JSON strings open more than `levels` deep; for text that is no JSON, up to where a reader would give up."""
    depth, quoted, escaped = 0, False, False
    for char in written:
        if quoted:
            quoted = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            quoted = True
        else:
            depth += (char in "{[") - (char in "}]")
            if depth > levels:
                return True
    return False


def _integer(digits: str) -> int | float:
    """An integer; infinity, which no record can hold, where Python would refuse to convert so many digits."""
    return int(digits) if len(digits) <= MAX_INTEGER_DIGITS else math.inf


def _recordable(data: Any) -> bool:
    """Whether strict JSON in UTF-8 can hold the data: no infinity, no NaN, no lone surrogate."""
    try:
        json.dumps(data, allow_nan=False, ensure_ascii=False).encode()
    except ValueError:
        return False
    return True


def parse_answer(content: str) -> int | None:
    """The integer of `<answer>INTEGER</answer>` if it is the only such tag and nothing follows it, else None."""
    match = _ANSWER.search(content)
    if (
        match is None
        or content.count("<answer>") != 1
        or len(match[1].lstrip("-")) > MAX_ANSWER_DIGITS
    ):
        return None
    return int(match[1])


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerBase:
    """Tokenizer of a checkpoint folder; nothing is fetched."""
    return AutoTokenizer.from_pretrained(
        str(folder), padding_side="left", local_files_only=True, trust_remote_code=False
    )


class ChatProtocol:
    """The protocol bound to one tokenizer.

    Args:
        tokenizer: a fast tokenizer whose chat template renders tools and tool answers the way Qwen3's does.

    Raises:
        ProtocolError: no template, a slow tokenizer, or a template that departs from the turn structure the rollout relies on.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not tokenizer.is_fast:
            raise ProtocolError(
                f"{tokenizer.name_or_path}: a fast tokenizer is needed (token offsets mark the observations)"
            )
        if not tokenizer.chat_template:
            raise ProtocolError(
                f"{tokenizer.name_or_path}: no chat template; expected Qwen3's (chat_template.jinja beside the tokenizer)"
            )
        self.tokenizer = tokenizer
        self.tools = tool_schemas()
        self.end_of_turn = self._single(END_OF_TURN)
        self.stop_ids = frozenset({self.end_of_turn, self._single(END_OF_TEXT)})
        self.frames = self._frames()
        """Text before, between and after observations."""

    def prompt(self, messages: Sequence[dict[str, str]], tools: bool = True) -> list[int]:
        """Token ids of a prompt that ends where the assistant's turn begins, thinking on."""
        text = self.render(messages, tools)
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of sampled ids, special tokens kept."""
        return str(
            self.tokenizer.decode(
                list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )

    def suffix(self, observations: Sequence[str]) -> list[Piece]:
        """External ids between a turn that called tools and the next turn, one observation per call of the turn."""
        before, between, after = self.frames
        spans, text = [], before
        for index, observation in enumerate(observations):
            text += between if index else ""
            spans.append((len(text), len(text) + len(observation)))
            text += observation
        text += after
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        kinds = [_kind(offset, spans) for offset in encoded["offset_mapping"]]
        return _runs(kinds, encoded["input_ids"])

    def render(
        self, messages: Sequence[dict[str, Any]], tools: bool = True, generation: bool = True
    ) -> str:
        """The chat template's text for a dialogue."""
        return str(
            self.tokenizer.apply_chat_template(
                list(messages),
                tools=self.tools if tools else None,
                add_generation_prompt=generation,
                enable_thinking=True,
                tokenize=False,
            )
        )

    def _frames(self) -> tuple[str, str, str]:
        """Take the template apart rather than repeat it."""
        call = {"type": "function", "function": {"name": TOOLS[0], "arguments": {}}}
        dialogue = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]
        answers = [{"role": "tool", "name": TOOLS[0], "content": _MARKER}] * 2
        try:
            text = self.render([*dialogue, *answers])
        except TemplateError as error:
            raise ProtocolError(
                f"{self.tokenizer.name_or_path}: the chat template refuses tool answers ({error}); use Qwen3's"
            ) from None
        turn_end, tail = "</tool_call>" + END_OF_TURN, text[text.rfind("</tool_call>") :]
        frames = tail.removeprefix(turn_end).split(_MARKER)
        framed = (
            len(frames) == 3
            and "<tool_response>" in frames[0]
            and "</tool_response>" in frames[2]
            and "assistant" in frames[2]
        )
        if not (tail.startswith(turn_end) and framed):
            raise ProtocolError(
                f"{self.tokenizer.name_or_path}: the chat template does not render tool answers as Qwen3's does "
                f"(expected <tool_response> blocks behind {turn_end}); use Qwen3's chat template"
            )
        return frames[0], frames[1], frames[2]

    def _single(self, token: str) -> int:
        ids = self.tokenizer.encode(token, add_special_tokens=False)
        if len(ids) != 1:
            raise ProtocolError(
                f"{self.tokenizer.name_or_path}: {token} must be one token, found ids {ids}; use a Qwen3 tokenizer"
            )
        return int(ids[0])


def _kind(offset: tuple[int, int], spans: Sequence[tuple[int, int]]) -> str:
    inside = any(offset[0] < end and start < offset[1] for start, end in spans)
    return "observation" if inside else "framing"


def _runs(kinds: Sequence[str], ids: Sequence[int]) -> list[Piece]:
    pieces: list[Piece] = []
    for kind, token in zip(kinds, ids, strict=True):
        if pieces and pieces[-1].kind == kind:
            pieces[-1] = Piece(kind, (*pieces[-1].ids, token))
        else:
            pieces.append(Piece(kind, (token,)))
    return pieces

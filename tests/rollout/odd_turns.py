"""Assistant turns as a model could sample them: valid calls in odd JSON, mangled ones, and ids that no tokenizer would choose.

`Speller` cuts a text at random bytes and tokenizes each piece on its own: its ids decode to the text, but encoding the text gives others.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from qwen3_tokenizer import ADDED, SPECIAL, _byte_letters

from agentrl.rollout.chat import END_OF_TURN, ChatProtocol

ADDED_TOKEN = re.compile("(" + "|".join(map(re.escape, (*SPECIAL, *ADDED))) + ")")
PIECES = (1, 1, 2, 3, 4, 6, 9, 14, 60)
"""Bytes of one piece; 60 leaves most words as the tokenizer has them."""
STRAY = "\ue000"
"""Stands for the byte 0xFF, which is no UTF-8: it decodes to U+FFFD, and no text encodes to it."""
GAPS = ("", "", "", " ", "  ", "\n", "\t", "\r\n", "\n    ")
SHORT = {
    '"': '\\"',
    "\\": "\\\\",
    "/": "\\/",
    "\n": "\\n",
    "\t": "\\t",
    "\r": "\\r",
    "\b": "\\b",
    "\f": "\\f",
}
FAR = "\N{ZERO WIDTH JOINER}\N{SLIGHTLY SMILING FACE}\N{MATHEMATICAL SCRIPT CAPITAL X}\N{COMBINING ACUTE ACCENT}"
SYMBOLS = "aBz09 _-.*/+()'\"\\{}[]:,<>\n\t\b\x7fÄßéµ€№中" + FAR + STRAY
"""A combining accent behind a letter is not NFC, which Qwen3's tokenizer would change."""
UNSPOKEN = ("<|im_start|>", "<|box_start|>", "<|image_pad|>")
"""Special tokens that end no turn; a policy can sample them anywhere."""
SCALARS = ("0", "-0", "7", "1.50", "1e2", "1E+2", "12345678901234567890", "true", "false", "null")
THOUGHTS = (
    "", "Ich schlage nach.", "hm\n\nhm", "Größe? №7 \N{SLIGHTLY SMILING FACE}", '<tool_call>{"name": 1}</tool_call>', "<answer>1</answer>",
    "a < b", "{[",
)  # fmt: skip
MARGINS = ("", "", "\n", "\n\n", " ", "Ich rufe auf:\n", "Äh … ")
Made = tuple[str | None, dict[str, Any] | None]
"""Name and arguments of a call; two Nones where it is mangled."""


@dataclass(frozen=True)
class Said:
    """One sampled turn."""

    text: str
    """What its ids decode to, without the end of the turn."""
    ids: list[int]
    calls: tuple[Made, ...]
    """What `json.loads` makes of each call outside thinking."""


class Speller:
    """Random ids of a text over Qwen3's vocabulary."""

    def __init__(self, chat: ChatProtocol) -> None:
        self.model = chat.tokenizer.backend_tokenizer.model
        self.added = {
            token: chat.tokenizer.convert_tokens_to_ids(token) for token in (*SPECIAL, *ADDED)
        }
        self.letters = _byte_letters()

    def turn(self, text: str, rng: Random) -> list[int]:
        """Ids of one turn; its end is the one token that ends a turn."""
        return [*self.text(text, rng), self.added[END_OF_TURN]]

    def text(self, text: str, rng: Random) -> list[int]:
        """Ids that decode to the text; an added token such as <tool_call> is now and then spelled out of ordinary ones."""
        ids: list[int] = []
        for part in ADDED_TOKEN.split(text):
            whole = part in self.added and rng.random() < 0.9
            ids += (
                [self.added[part]]
                if whole
                else self._pieces(part.encode().replace(STRAY.encode(), b"\xff"), rng)
            )
        return ids

    def _pieces(self, data: bytes, rng: Random) -> list[int]:
        letters, ids, start = "".join(self.letters[byte] for byte in data), [], 0
        while start < len(letters):
            end = start + rng.choice(PIECES)
            ids += [token.id for token in self.model.tokenize(letters[start:end])]
            start = end
        return ids


def calling(record_id: str, speller: Speller, rng: Random, known: bool = False) -> Said:
    """A turn that calls: anything, now and then twice. `known`: one valid call, of a real tool, with the right argument names, and no
    thinking that only closes."""
    written = [
        valid_call(record_id, rng, known) for _ in range(1 if known or rng.random() < 0.97 else 2)
    ]
    mangled = [not known and rng.random() < 0.2 for _ in written]
    bodies = [
        rng.choice(MANGLED)(text) if bad else text
        for text, bad in zip(written, mangled, strict=True)
    ]
    blocks = [
        f"<tool_call>{rng.choice(GAPS)}{body}{rng.choice(GAPS)}</tool_call>" for body in bodies
    ]
    text = thinking(rng, known) + rng.choice(MARGINS).join(["", *blocks, ""])
    if not known and rng.random() < 0.02:  # a call that never closes
        text, mangled[-1] = text.rstrip()[: text.rindex("</tool_call>")], True
    if rng.random() < 0.1 and not mangled[-1]:
        text += "<think>" + rng.choice(THOUGHTS)  # closed, it would make all before it thinking
    calls = tuple(
        (None, None) if bad else _load(call) for call, bad in zip(written, mangled, strict=True)
    )
    return Said(seen(text), speller.turn(text, rng), calls)


def _load(call: str) -> Made:
    data = json.loads(seen(call))
    return data["name"], data["arguments"]


def closing(speller: Speller, rng: Random, known: bool = False) -> Said:
    """A turn without a call: an answer, silence, or a call that stands in thinking. `known`: in thinking that was opened before it."""
    late = (
        ()
        if known
        else (
            "<tool_call>{}</tool_call><think>nur so</think>",
            "<think><think></think><tool_call>{}</tool_call></think>",
        )
    )
    text = rng.choice(
        (
            "<answer>7</answer>",
            "",
            "Fertig.",
            "<think>nur so: <tool_call>{}</tool_call>",
            "</tool_call>",
            STRAY,
            *late,
        )
    )
    text = thinking(rng, known) + text
    return Said(seen(text), speller.turn(text, rng), ())


def seen(text: str) -> str:
    """The text as it decodes."""
    return text.replace(STRAY, "\N{REPLACEMENT CHARACTER}")


def thinking(rng: Random, opened: bool = False) -> str:
    """What stands before the content of a turn; unless `opened`, now and then thinking that only closes."""
    thought = rng.choice(THOUGHTS) + odd_text(rng).replace("<", "")
    lone = () if opened else (f"{thought}</think>",)
    return rng.choice(
        (
            f"<think>\n{thought}\n</think>\n\n",
            f"<think>{thought}</think>",
            "<think></think>",
            "",
            *lone,
        )
    )


def odd_text(rng: Random) -> str:
    """Up to a dozen odd characters."""
    return "".join(rng.choices(SYMBOLS, k=rng.randint(0, 12)))


def valid_call(record_id: str, rng: Random, known: bool) -> str:
    """JSON text of one call that `json.loads` reads and the protocol takes."""
    value = rng.choice(
        (
            record_id,
            record_id,
            odd_text(rng),
            f"{rng.randint(0, 999)}{rng.choice('+-*/')}{rng.randint(0, 999)}",
        )
    )
    tool, argument = rng.choice((("lookup", "record_id"), ("calculator", "expression")))
    spelled = (
        spell_text(value, rng)
        if rng.random() < 0.9
        else rng.choice((*SCALARS, *(f'"{token}"' for token in UNSPOKEN)))
    )
    arguments = [(argument, spelled)]
    if not known and rng.random() < 0.2:
        arguments += [
            (odd_text(rng) + str(i), spell_text(odd_text(rng), rng))
            for i in range(rng.randint(1, 3))
        ]
    if not known and rng.random() < 0.1:
        tool, arguments = odd_text(rng) or "reset", arguments[1:]
    return spell_object(
        [("name", spell_text(tool, rng)), ("arguments", spell_object(arguments, rng))], rng
    )


def spell_object(items: Sequence[tuple[str, str]], rng: Random) -> str:
    """A JSON object of keys and written values, in any order, with any spacing."""
    order = rng.sample(items, len(items))
    body = ",".join(
        "".join((_gap(rng), spell_text(key, rng), _gap(rng), ":", _gap(rng), value, _gap(rng)))
        for key, value in order
    )
    return "{" + (body or _gap(rng)) + "}"


def spell_text(text: str, rng: Random) -> str:
    """A JSON string with any escapes; `<` is always escaped, so that no tag arises."""
    return '"' + "".join(_spell(char, rng) for char in text) + '"'


def _gap(rng: Random) -> str:
    return rng.choice(GAPS)


def _spell(char: str, rng: Random) -> str:
    if char not in '"\\<' and char >= " " and rng.random() < 0.8:
        return char
    if char in SHORT and rng.random() < 0.5:
        return SHORT[char]
    if char == STRAY:
        return char
    units = char.encode("utf-16-be").hex()
    units = units.upper() if rng.random() < 0.5 else units
    return "".join("\\u" + units[i : i + 4] for i in range(0, len(units), 4))


MANGLED: tuple[Callable[[str], str], ...] = (
    lambda call: call[:-1],
    lambda call: call + "}",
    lambda call: call[:-1] + ",}",
    lambda call: call + call,
    lambda call: f"[{call}]",
    lambda call: f"{call}//",
    lambda call: f"<tool_call>{call}",
    lambda call: call.replace('"', "'", 1),
    lambda call: call.replace(":", "=", 1) if ":" in call else "",
    lambda call: call[:-1] + ',"id":1}',
    lambda call: call[:-1] + ',"name":"lookup"}',
    lambda call: '{"name":"lookup"}',
    lambda call: '{"name":"lookup","parameters":{"record_id":"A"}}',
    lambda call: '{"name":null,"arguments":{}}',
    lambda call: '{"name":"lookup","arguments":"{}"}',
    lambda call: '{"name":"lookup","arguments":{"record_id":NaN}}',
    lambda call: '{"name":"lookup","arguments":{"record_id":1e999}}',
    lambda call: '{"name":"lookup","arguments":{"record_id":["A"]}}',
    lambda call: '{"name":"lookup","arguments":{"record_id":"\\ud83d"}}',
    lambda call: '{"name":"lookup","arguments":{"record_id":"\\x41"}}',
    lambda call: '{"name":"lookup","arguments":{"record_id":"A\n"}}',
    lambda call: '{"name":"lookup","arguments":{"record_id":"A","record_id":"B"}}',
    lambda call: "",
    lambda call: "lookup('A')",
)
"""Ways to spoil a call; what they make is no JSON, not one object, or nothing a tool takes."""

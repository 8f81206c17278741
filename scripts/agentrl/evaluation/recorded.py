"""A retention baseline recorded elsewhere, e.g. by the SFT run that made the start policy: `retention-baseline/1`, one JSON file.

    {"format": "retention-baseline/1",
     "checkpoint": {"config.json": SHA256, "model.safetensors": SHA256, ...},   every file of the checkpoint but the tokenizer's
     "tokenizer":  {"tokenizer.json": SHA256, "chat_template.jinja": SHA256, ...},  every tokenizer file
     "system": ..., "prompt": "... {question} ...", "max_tokens": 768,
     "decoding": {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.0, "seed": 42},
     "engine": "transformers",
     "answers": [{"item": "mgsm-de-002", "ids": [151667, ...]}, ...]}

`ids` are the sampled token ids, stop id included, padding removed. An answer may add `logprobs` (one per id) and `prompt_ids`. All of it
is compared with this study's start policy, freeze and items, and whatever differs is refused by name. Scores are no part of the format:
this study's own rule reads them from the ids. That the checkpoint gave these ids under these settings is the file's own account.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from agentrl.evaluation.retention import Answer, Item, messages, score, select
from agentrl.evaluation.settings import Retention, is_recorded
from agentrl.evidence.difference import first_difference
from agentrl.evidence.errors import StudyError
from agentrl.evidence.files import read_json
from agentrl.evidence.section import ConfigError, Positive, Section, validate
from agentrl.rollout.chat import ChatProtocol
from agentrl.rollout.settings import Decoding

FORMAT = "retention-baseline/1"
NAME = "recorded.json"
"""The file's copy beside the answers."""
POLICY = "baseline"
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class RecordedError(StudyError, ValueError):
    """A recorded baseline is not one of this study's start policy under its protocol; the message names the first difference."""


class RecordedAnswer(Section):
    """One item's output."""

    item: str
    ids: Annotated[tuple[TokenId, ...], Field(min_length=1)]
    """Sampled, stop id included."""
    logprobs: tuple[float, ...] | None = None
    prompt_ids: tuple[TokenId, ...] | None = None
    """If given, compared: it proves question and chat template beyond the item's id."""


class Recorded(Section):
    """The file."""

    format: Literal["retention-baseline/1"]
    checkpoint: dict[str, Digest]
    tokenizer: dict[str, Digest]
    system: str
    prompt: str
    decoding: Decoding
    max_tokens: Positive
    engine: str
    """Name of the engine that sampled; must be the one that evaluates this study's candidates."""
    answers: Annotated[tuple[RecordedAnswer, ...], Field(min_length=1)]


def read(path: str | Path) -> Recorded:
    """Parse and validate a file. Raises `ManifestError` or `ConfigError` naming file and key."""
    return validate(read_json(path), Recorded, str(path))


def item_ids(path: str | Path) -> list[str]:
    """Item ids that a file names, in its order: a recorded baseline's, or one a line."""
    if is_recorded(str(path)):
        return [answer.item for answer in read(path).answers]
    return [
        line.strip()
        for line in Path(path).read_text(encoding="utf-8-sig").splitlines()
        if line.strip()
    ]


def named(items: Sequence[Item], path: str | Path, section: Retention) -> list[Item]:
    """Exactly the items that a file names, in its order. Raises `RecordedError` or `RetentionError`."""
    ids = item_ids(path)
    try:
        wanted = validate({**_plain(section), "ids": ids}, Retention, str(path))
    except ConfigError as error:
        raise RecordedError(
            f"{path}: cannot choose the items: {str(error).splitlines()[-1].strip()}"
        ) from None
    return select(list(items), wanted, str(path))


class Import:
    """A recorded baseline against the study that wants it.

    Args:
        path: the file.
        start: the start policy's manifest.
        frozen: content of freeze/retention.json.
        items: this study's frozen items.
        chat: the protocol over the start's tokenizer.
    """

    def __init__(
        self,
        path: str | Path,
        start: Mapping[str, Any],
        frozen: Mapping[str, Any],
        items: Sequence[Item],
        chat: ChatProtocol,
    ) -> None:
        self.path, self.content = path, read(path)
        self.start, self.frozen, self.items, self.chat = start, frozen, items, chat
        self.section = validate(
            frozen["config"]["retention"], Retention, "freeze/retention.json, section retention"
        )

    def answers(self, engine: str) -> list[Answer]:
        """The study's own records of the recorded outputs.

        Args:
            engine: name of the engine that evaluates candidates.

        Raises:
            RecordedError: at the first thing that is not this study's.
        """
        self._equal("engine", engine, self.content.engine)
        self._equal(
            "checkpoint", checkpoint_files(self.start, self.frozen), self.content.checkpoint
        )
        self._equal("tokenizer", self.frozen["folders"]["tokenizer"], self.content.tokenizer)
        for key in ("system", "prompt", "decoding", "max_tokens"):
            self._equal(key, _plain(self.section)[key], _plain(self.content)[key])
        wanted = [item.id for item in self.items]
        given = [answer.item for answer in self.content.answers]
        for number, item in enumerate(wanted):
            self._equal(
                f"answers.{number}.item",
                item,
                given[number] if number < len(given) else "the end of the file",
            )
        self._equal("answers", f"{len(wanted)} items", f"{len(given)} items")
        return [
            self._answer(n, item, answer)
            for n, (item, answer) in enumerate(zip(self.items, self.content.answers, strict=True))
        ]

    def _answer(self, number: int, item: Item, given: RecordedAnswer) -> Answer:
        where, ids, limit = (
            f"answers.{number} ({item.id})",
            list(given.ids),
            self.section.max_tokens,
        )
        prompt = self.chat.prompt(messages(self.section, item.question), tools=False)
        if given.prompt_ids is not None:
            self._equal(f"{where}: prompt_ids", prompt, list(given.prompt_ids))
        stops = [place for place, token in enumerate(ids) if token in self.chat.stop_ids]
        if (
            stops not in ([], [len(ids) - 1])
            or len(ids) > limit
            or (not stops and len(ids) < limit)
        ):
            expected = (
                f"one output that ends with a stop id or fills {limit} tokens, without padding"
            )
            self._refuse(f"{where}: ids", expected, f"{len(ids)} ids, stop ids at {stops}")
        if given.logprobs is not None:
            self._equal(f"{where}: logprobs", f"{len(ids)} values", f"{len(given.logprobs)} values")
        logprobs = None if given.logprobs is None else list(given.logprobs)
        finish = "stop" if stops else "length"
        return score(
            item,
            POLICY,
            self.start["steps"],
            self.section.decoding.seed,
            prompt,
            ids,
            logprobs,
            finish,
            self.chat.decode(ids),
        )

    def _equal(self, what: str, expected: Any, found: Any) -> None:
        if (place := first_difference(expected, found, what)) is not None:
            self._refuse(*place)

    def _refuse(self, what: str, expected: object, found: object) -> None:
        raise RecordedError(
            f"{self.path}: {what} is not this study's (expected {expected!r}, found {found!r}); "
            "record the baseline under this study's protocol, or set baselines.retention to null and evaluate the start policy anew"
        )


def checkpoint_files(start: Mapping[str, Any], frozen: Mapping[str, Any]) -> dict[str, str]:
    """The start checkpoint's files but the tokenizer's, which the freeze lists, with their sha256."""
    files = {
        name.removeprefix("model/"): digest
        for name, digest in start["outputs"].items()
        if name.startswith("model/")
    }
    return {
        name: digest for name, digest in files.items() if name not in frozen["folders"]["tokenizer"]
    }


def _plain(section: Section) -> dict[str, Any]:
    return section.model_dump(mode="json")

"""Sections `evaluation` and `retention`: trials and batches, the frozen mathematics items and their prompt."""

from typing import Literal

from pydantic import model_validator

from agentrl.evidence.section import Positive, Section, Seed
from agentrl.rollout.settings import Decoding


class EvaluationShape(Section):
    """Agent evaluation, the same for every policy."""

    trials: Positive
    """Episodes of every task, each on a random stream of its own."""
    batch_size: Positive
    """Episodes at once; an engine with a queue of its own takes more."""


class RetentionPrompt(Section):
    """The frozen prompt of the retention items."""

    system: str
    """System message."""
    prompt: str
    """User message; `{question}` is replaced by the item's question."""

    @model_validator(mode="after")
    def _one_question(self) -> "RetentionPrompt":
        if (found := self.prompt.count("{question}")) != 1:
            raise ValueError(
                f"prompt must contain {{question}} exactly once, found {found} times in {self.prompt!r}"
            )
        return self


MGSM_ITEMS = 250
"""German items of MGSM, at the pinned commit (`retention.MGSM_SHA256`)."""


class Retention(RetentionPrompt):
    """Mathematics without tools: frozen items, own prompt, own token limit and decoding."""

    source: Literal["mgsm", "word-problems"]
    """`mgsm`: MGSM German; `word-problems`: generated ones in its format, for the demo."""
    path: str | None = None
    """Local copy of mgsm_de.tsv; null fetches it once from the pinned commit. Both are checked by sha256."""
    items: Positive
    """How many items are frozen."""
    ids: tuple[str, ...] | None = None
    """The frozen items themselves; null chooses `items` of them by `seed`."""
    seed: Seed
    """Chooses the items where neither `ids` nor a file names them."""
    max_tokens: Positive
    """Most tokens of an answer."""
    batch_size: Positive
    """Items asked at once; an engine with a queue of its own takes more."""
    decoding: Decoding
    """Sampling of the answers, frozen with the items."""

    @model_validator(mode="after")
    def _consistent(self) -> "Retention":
        if self.source == "mgsm" and self.items > MGSM_ITEMS:
            raise ValueError(f"items is {self.items}, mgsm has {MGSM_ITEMS} German items")
        if self.ids is not None and len(self.ids) != self.items:
            raise ValueError(f"ids names {len(self.ids)} items, items says {self.items}")
        if self.ids is not None and len(set(self.ids)) != len(self.ids):
            raise ValueError(
                f"ids repeat: {sorted({i for i in self.ids if self.ids.count(i) > 1})}"
            )
        return self


def is_recorded(path: str) -> bool:
    """Whether a configured path names a recorded retention baseline; told by its name, so that a plan does not depend on what exists."""
    return path.endswith(".json")

"""What verification found: the first break of each kind, with file, record and field, and counts of what was checked."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentrl.evidence.files import ManifestError


@dataclass(frozen=True)
class Break:
    """One claim that does not follow from the evidence."""

    kind: str
    """What was broken, e.g. `hash`, `mask`, `observation`, `reward`."""
    file: str
    """Relative to the study's folder."""
    record: str
    """Episode, answer or step inside the file; empty where the file as a whole is meant."""
    field: str
    expected: str
    found: str

    def __str__(self) -> str:
        where = f"{self.file}, {self.record}" if self.record else self.file
        return f"[{self.kind}] {where}, field {self.field}: expected {self.expected}, found {self.found}"


class Findings:
    """Collects breaks and counts; keeps the first break of each kind and how many there were.

    Args:
        root: the study's folder; files are named relative to it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.first: dict[str, Break] = {}
        self.breaks: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.stages: dict[str, Counter[str]] = {}
        """Folder below the study -> what of its evidence was derived anew: episodes or answers, calls, tokens."""
        self.notes: list[str] = []
        """What could not be checked here, in plain words."""

    def derived(self, stage: Path, counts: Mapping[str, int]) -> None:
        """Count what was derived anew, in all and for its stage."""
        self.counts.update(counts)
        self.stages.setdefault(stage.relative_to(self.root).as_posix(), Counter()).update(counts)

    def add(
        self, kind: str, file: Path, record: str, field: str, expected: object, found: object
    ) -> None:
        """Record a break."""
        self.breaks[kind] += 1
        name = (
            file.relative_to(self.root).as_posix() if file.is_relative_to(self.root) else str(file)
        )
        self.first.setdefault(
            kind, Break(kind, name, record, field, _short(expected), _short(found))
        )

    def equal(
        self, kind: str, file: Path, record: str, field: str, expected: object, found: object
    ) -> bool:
        """Record a break unless the two are equal; whether they are."""
        if expected != found:
            self.add(kind, file, record, field, expected, found)
        return bool(expected == found)

    @contextmanager
    def reading(self, file: Path) -> Iterator[None]:
        """A file that cannot be read or has another shape than its stage writes is a break, not a crash."""
        try:
            yield
        except (
            ManifestError,
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            IndexError,
        ) as error:
            self.add(
                "unreadable",
                file,
                "",
                "content",
                "a file as its stage writes it",
                f"{type(error).__name__}: {error}",
            )

    @property
    def passed(self) -> bool:
        """Whether nothing broke."""
        return not self.first

    def as_json(self) -> dict[str, Any]:
        """Plain data for `--json` and for the verify rule."""
        breaks = [asdict(b) | {"occurrences": self.breaks[b.kind]} for b in self.first.values()]
        stages = {
            stage: dict(sorted(counts.items())) for stage, counts in sorted(self.stages.items())
        }
        checked = dict(sorted(self.counts.items()))
        return {
            "passed": self.passed,
            "checked": checked,
            "stages": stages,
            "breaks": breaks,
            "notes": self.notes,
        }


def _short(value: object, limit: int = 160) -> str:
    """The value in one line; a long one loses its middle: an error begins with a path and ends with what is wrong."""
    text = str(value).replace("\n", "\\n")
    half = (limit - 3) // 2
    return text if len(text) <= limit else f"{text[:half]}...{text[-half:]}"

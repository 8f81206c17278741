"""Seeded German tasks: families of questions whose facts stay private to the environment.

A family's wording function never receives the facts, so a question cannot show them. Within one section

1. every split has its own wording templates (`data/{family}.json`) and its own derived seeds;
2. all (first, second) fact pairs are shuffled once and dealt to fixed shares of the splits (`SHARES`), so no pair occurs twice
   and no split depends on the size of another;
3. record ids are dealt to the splits by a hash of the id itself, so no two splits share one, whatever their seeds.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from string import Formatter
from typing import Any, Protocol, get_origin

from agentrl.evidence.errors import StudyError
from agentrl.tasks.numerals import mentions

DATA = Path(__file__).parent / "data"
SPLITS = ("train", "dev", "test")
BASE = "base"
SHARES = ("train", "train", "dev", "test")
"""One round of dealing the shuffled pairs: half go to train, a quarter each to dev and test."""
CONSONANTS = "BCDFGHJKLMNPQRSTVWXZ"
ID_LENGTH = 5
ID_PATTERN = re.compile(f"[{CONSONANTS}]{{{ID_LENGTH}}}")

Pair = tuple[int, int]
Words = Callable[[Random], dict[str, str]]


class Range(Protocol):
    """Whole numbers from `min` to `max`, both included."""

    min: int
    max: int


class BaseSection(Protocol):
    """What `base_tasks` reads of the study's configuration; quantities are pieces, prices whole euros."""

    family: str
    scaffold: str
    quantity: Range
    unit_price: Range


class TaskSection(BaseSection, Protocol):
    """What `generate` reads: the same and the seed of the splits, but no split's size."""

    seed: int


class TaskFileError(StudyError, ValueError):
    """A task file that cannot be trusted; names file, line, value, expectation and remedy."""

    def __init__(self, path: Path, line: int, value: object, expected: str) -> None:
        """`line` counts from 1."""
        shown = repr(value)
        shown = shown if len(shown) <= 120 else shown[:117] + "..."
        remedy = "Do not repair the file by hand; delete it and generate the tasks again."
        super().__init__(f"{path}, line {line}: found {shown}, expected {expected}. {remedy}")


@dataclass(frozen=True)
class Task:
    """One question with its private facts."""

    id: str
    """Split and running number from 1, at least four digits: `train-0001`."""
    split: str
    """`train`, `dev`, `test`, or `base` for wordings that belong to no split."""
    family: str
    """Name in `FAMILIES`."""
    scaffold: str
    """How much of the solution the prompt gives away: a level in the family's `scaffolds`."""
    template: str
    """Wording template, numbered from 1: `order_total/dev/03`."""
    record_id: str
    """Opaque id of five consonants: letters only, so it cannot show a digit of a fact."""
    question: str
    """German text that contains the record id and no fact."""
    facts: dict[str, int]
    """Private: exactly two positive integers. Only the environment may read them."""
    answer: int
    """Private: the product of the two facts."""

    def messages(self) -> list[dict[str, str]]:
        """Return the public prompt: a system message and a user message, as chat-template dictionaries."""
        rules, level = _load("scaffold.json"), FAMILIES[self.family].scaffolds[self.scaffold]
        given = {"{first}": level.first, "{then}": level.then}
        lines = [part for line in rules["user"] for part in given.get(line, (line,))]
        text = "\n".join(lines).format(question=self.question, lookup=lookup_call(self.record_id))
        return [{"role": "system", "content": rules["system"]}, {"role": "user", "content": text}]


@dataclass(frozen=True)
class Scaffold:
    """One level of help in a family's prompt; the rules that hold at every level stand in `data/scaffold.json`."""

    first: tuple[str, ...]
    """Lines behind the question, about the first action; `{lookup}` is the exact call."""
    then: tuple[str, ...]
    """Lines about what follows it."""
    limit: str
    """English sentence without its full stop, for the summary: what a success at this level does not show."""


@dataclass(frozen=True)
class Family:
    """One kind of question."""

    name: str
    """Key of the registry and first part of every template id."""
    facts: tuple[str, str]
    """Names of the two private facts, in the order of the generated pairs."""
    words: Words
    """Draws the words that fill a template; it never sees a fact."""
    source: Path
    """JSON file with the wording templates of each split and the `scaffolds` of the prompt."""

    @property
    def scaffolds(self) -> dict[str, Scaffold]:
        """The levels of help that the prompt can give, by name."""
        levels = _load(self.source)["scaffolds"]
        return {
            name: Scaffold(tuple(level["first"]), tuple(level["then"]), level["limit"])
            for name, level in levels.items()
        }

    def templates(self, split: str) -> list[str]:
        """Return the split's wordings; ValueError if one does not name the record id exactly once."""
        wordings = _load(self.source)[split]
        for number, text in enumerate(wordings, 1):
            if [name for _, name, _, _ in Formatter().parse(text)].count("id") != 1:
                raise ValueError(
                    f"{self.source}: template {number} of {split!r} needs {{id}} exactly once: {text!r}"
                )
        return wordings


FAMILIES: dict[str, Family] = {}


def family(
    name: str, facts: tuple[str, str], source: Path | None = None
) -> Callable[[Words], Words]:
    """Register the decorated wording function; `source` defaults to `data/{name}.json`. ValueError if the name is taken."""

    def register(words: Words) -> Words:
        if name in FAMILIES:
            raise ValueError(f"family {name!r} is already registered; choose another name")
        FAMILIES[name] = Family(name, facts, words, source or DATA / f"{name}.json")
        return words

    return register


@family("order_total", facts=("menge", "einzelpreis"))
def order_total(rng: Random) -> dict[str, str]:
    """Draw goods, customer and city for the total of an order; capitalised names start a sentence."""
    goods, city, customer = (
        rng.choice(_load(f"{kind}.json")) for kind in ("goods", "cities", "customers")
    )
    words = customer_forms(customer)
    words |= {name.capitalize(): text[0].upper() + text[1:] for name, text in words.items()}
    words |= {
        "ware": goods["singular"],
        "waren": goods["plural"],
        "waren_dat": goods["dative_plural"],
    }
    return words | {
        "stadt": city,
        "ort": f"{'aus' if customer['gender'] == 'person' else 'in'} {city}",
    }


ARTICLES = {
    "m": ("der ", "den ", "dem "),
    "f": ("die ", "die ", "der "),
    "n": ("das ", "das ", "dem "),
}


def customer_forms(customer: dict[str, str]) -> dict[str, str]:
    """Decline a customer: nominative, accusative, dative, and dative after `von` (`vom Hotel`)."""
    name = customer["name"]
    oblique = customer.get("oblique", name)
    nominative, accusative, dative = ARTICLES.get(customer["gender"], ("", "", ""))
    return {
        "kunde": nominative + name,
        "kunde_akk": accusative + oblique,
        "kunde_dat": dative + oblique,
        "von_kunde": f"vom {oblique}" if dative == "dem " else f"von {dative}{oblique}",
    }


def lookup_call(record_id: str) -> str:
    """Return the exact text of the first tool call, as the prompt shows it."""
    call = {"name": "lookup", "arguments": {"record_id": record_id}}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def generate(section: TaskSection, split: str, count: int) -> list[Task]:
    """Return the split's first `count` tasks. ValueError for an unknown split, and for what `check_family` or `check_share` refuses."""
    if split not in SPLITS:
        raise ValueError(
            f"split {split!r} is not one of {', '.join(SPLITS)}; for demo training use base_tasks"
        )
    seed = f"{section.family}/{section.seed}/{split}"
    return _tasks(
        check_family(section), section.scaffold, split, seed, deal_pairs(section, split, count)
    )


def base_tasks(section: BaseSection, count: int, seed: int) -> list[Task]:
    """Return `count` tasks in wordings and with ids of no split, whatever the section's seed; their pairs repeat freely.

    ValueError for what `check_family` refuses, and for a range that is empty or not positive.
    """
    quantities, prices = _ranges(section)
    stream = f"{section.family}/{BASE}/{seed}"
    rng = Random(f"{stream}/pairs")
    pairs = [(rng.choice(quantities), rng.choice(prices)) for _ in range(count)]
    return _tasks(check_family(section), section.scaffold, BASE, stream, pairs)


def deal_pairs(section: TaskSection, split: str, count: int) -> list[Pair]:
    """Return the first `count` distinct pairs of the split's share of all pairs. ValueError for what `check_share` refuses."""
    check_share(section, split, count)
    pairs = list(product(*_ranges(section)))
    Random(f"{section.family}/{section.seed}/pairs").shuffle(pairs)
    return [pair for place, pair in enumerate(pairs) if SHARES[place % len(SHARES)] == split][
        :count
    ]


def check_share(section: BaseSection, split: str, count: int) -> None:
    """ValueError if the split's share holds fewer than `count` pairs, or a range is empty or not positive."""
    quantities, prices = _ranges(section)
    pairs = len(quantities) * len(prices)
    rounds, rest = divmod(pairs, len(SHARES))
    share = rounds * SHARES.count(split) + SHARES[:rest].count(split)
    if not 0 <= count <= share:
        raise ValueError(
            f"tasks.splits.{split}: expected 0 to {share}, found {count}; the split's share holds {share} of the {pairs} pairs of "
            "tasks.quantity and tasks.unit_price: widen a range or ask for less"
        )


def _ranges(section: BaseSection) -> tuple[range, range]:
    for name in ("quantity", "unit_price"):
        bounds = getattr(section, name)
        if not 1 <= bounds.min <= bounds.max:
            raise ValueError(
                f"tasks.{name}: expected 1 <= min <= max, found min {bounds.min}, max {bounds.max}"
            )
    low, high = section.quantity, section.unit_price
    return range(low.min, low.max + 1), range(high.min, high.max + 1)


def check_family(section: BaseSection) -> Family:
    """Return the section's family. ValueError for an unknown one, and for a scaffold that it does not have; each names what there is."""
    if section.family not in FAMILIES:
        raise ValueError(
            f"tasks.family: {section.family!r} is not one of {', '.join(sorted(FAMILIES))}"
        )
    kind = FAMILIES[section.family]
    if section.scaffold not in kind.scaffolds:
        raise ValueError(
            f"tasks.scaffold: {section.scaffold!r} is not a level of family {kind.name}: {', '.join(kind.scaffolds)}"
        )
    return kind


def _tasks(kind: Family, scaffold: str, split: str, seed: str, pairs: Sequence[Pair]) -> list[Task]:
    ids, wordings = record_ids(split, seed), _wordings(kind, split, seed)
    tasks = []
    for number, pair in enumerate(pairs, 1):
        record_id, (template, text) = next(ids), next(wordings)
        question = text.format(id=record_id, **kind.words(Random(f"{seed}/words/{number}")))
        name, wording = f"{split}-{number:04d}", f"{kind.name}/{split}/{template:02d}"
        facts = dict(zip(kind.facts, pair, strict=True))
        task = Task(
            name,
            split,
            kind.name,
            scaffold,
            wording,
            record_id,
            question,
            facts,
            answer=pair[0] * pair[1],
        )
        if any(contains_fact(message["content"], task) for message in task.messages()):
            raise ValueError(
                f"{kind.source}: {task.template} shows a fact: {task.question!r}; reword it"
            )
        tasks.append(task)
    return tasks


def _wordings(kind: Family, split: str, seed: str) -> Iterator[tuple[int, str]]:
    """Yield numbered templates in rounds, each round in a new order, so that all occur equally often."""
    rng = Random(f"{seed}/templates")
    numbered = list(enumerate(kind.templates(split), 1))
    while True:
        yield from rng.sample(numbered, len(numbered))


def record_ids(split: str, seed: str) -> Iterator[str]:
    """Yield distinct record ids of one split; each of the four splits owns about 800,000 of 3.2 million."""
    owners = (*SPLITS, BASE)
    rng, seen = Random(f"{seed}/ids"), set()
    while True:
        record_id = "".join(rng.choices(CONSONANTS, k=ID_LENGTH))
        owner = owners[hashlib.sha256(record_id.encode()).digest()[0] % len(owners)]
        if owner == split and record_id not in seen:
            seen.add(record_id)
            yield record_id


def contains_fact(text: str, task: Task) -> bool:
    """Whether the text shows a fact or the answer, in digits or as a German number word."""
    return mentions(text, {*task.facts.values(), task.answer})


def write_tasks(path: Path, tasks: Sequence[Task]) -> None:
    """Write one JSON object a line, keys in field order, UTF-8; makes the folder, replaces the file in one step."""
    path = Path(path)
    lines = "".join(json.dumps(asdict(task), ensure_ascii=False) + "\n" for task in tasks)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.tmp")
    scratch.write_bytes(lines.encode())
    scratch.replace(path)


def read_tasks(path: Path) -> list[Task]:
    """Read what `write_tasks` wrote; TaskFileError at the first line that is not a sound task."""
    *lines, rest = Path(path).read_bytes().split(b"\n")
    if rest or not lines:
        raise TaskFileError(
            path, len(lines) + 1, rest, "a complete last line that ends with a line feed"
        )
    tasks: list[Task] = []
    seen: set[str] = set()
    for number, line in enumerate(lines, 1):
        task = _parse(path, number, line)
        for key in (task.id, task.record_id):
            if key in seen:
                raise TaskFileError(path, number, key, "an id that occurs on no earlier line")
        seen |= {task.id, task.record_id}
        tasks.append(task)
    return tasks


def _parse(path: Path, number: int, line: bytes) -> Task:
    try:
        row = json.loads(line.decode(), object_pairs_hook=_distinct)
    except ValueError as error:
        raise TaskFileError(path, number, line, f"one JSON object in UTF-8 ({error})") from error
    for value, sound, expected in _checks(row):
        if not sound:
            raise TaskFileError(path, number, value, expected)
    return Task(**row)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        raise ValueError(f"a key occurs twice among {[key for key, _ in pairs]}")
    return row


def _checks(row: Any) -> Iterator[tuple[object, bool, str]]:
    """Yield (value, whether it is sound, what was expected), lazily: a later check may rely on an earlier."""
    keys, names = (
        sorted(row) if isinstance(row, dict) else row,
        [field.name for field in fields(Task)],
    )
    yield (
        keys,
        keys == sorted(names) and isinstance(row, dict),
        f"an object with exactly the keys {', '.join(names)}",
    )
    for field in fields(Task):  # exact types: a bool is no answer
        kind = get_origin(field.type) or field.type
        yield row[field.name], type(row[field.name]) is kind, f"{field.name} as {field.type}"
    task = Task(**row)
    yield task.split, task.split in (*SPLITS, BASE), f"split as one of {', '.join((*SPLITS, BASE))}"
    yield (
        task.id,
        bool(re.fullmatch(rf"{task.split}-\d{{4,}}", task.id)),
        f"id as {task.split}-0001",
    )
    yield task.family, task.family in FAMILIES, f"family as one of {', '.join(sorted(FAMILIES))}"
    levels = FAMILIES[task.family].scaffolds
    yield task.scaffold, task.scaffold in levels, f"scaffold as one of {', '.join(levels)}"
    stem = f"{task.family}/{task.split}/"
    yield (
        task.template,
        bool(re.fullmatch(rf"{stem}\d{{2,}}", task.template)),
        f"template as {stem}01",
    )
    yield (
        task.record_id,
        bool(ID_PATTERN.fullmatch(task.record_id)),
        f"record_id as {ID_LENGTH} consonants",
    )
    yield (
        task.question,
        task.record_id in task.question,
        f"question with the record id {task.record_id}",
    )
    names, values = FAMILIES[task.family].facts, list(task.facts.values())
    positive = all(type(value) is int and value > 0 for value in values)
    yield (
        task.facts,
        tuple(task.facts) == names and positive,
        f"facts as positive integers {' and '.join(names)}",
    )
    yield (
        task.answer,
        task.answer == values[0] * values[1],
        f"answer as the facts' product {values[0] * values[1]}",
    )


@cache
def _load(name: str | Path) -> Any:
    return json.loads((DATA / name).read_text(encoding="utf-8"))

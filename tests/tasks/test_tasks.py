"""Tasks: nothing crosses splits, no prompt shows a fact, the same seed gives the same bytes."""

import json
import re
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.demo.settings import DemoBase, DemoJob, DemoSft
from agentrl.evidence.section import ConfigError, merge, validate
from agentrl.study.config import Splits, validate_study
from agentrl.study.sections import canonical, sections
from agentrl.study.strictyaml import read_yaml
from agentrl.tasks import families, numerals
from agentrl.tasks.families import (
    BASE,
    DATA,
    FAMILIES,
    ID_PATTERN,
    SPLITS,
    Task,
    TaskFileError,
    base_tasks,
    check_share,
    contains_fact,
    customer_forms,
    deal_pairs,
    generate,
    lookup_call,
    read_tasks,
    record_ids,
    write_tasks,
)
from agentrl.tasks.settings import TaskSplit

SEEDS = st.integers(min_value=0, max_value=2**32)
COUNTS = st.integers(min_value=0, max_value=40)
SIZES = (128, 32, 32)
LEVELS = tuple(FAMILIES["order_total"].scaffolds)
ROOT = Path(__file__).parents[2]


def section(
    seed: int = 42,
    quantity: tuple[int, int] = (2, 30),
    unit_price: tuple[int, int] = (2, 60),
    family: str = "order_total",
    scaffold: str = "lookup",
) -> SimpleNamespace:
    """All that `generate` may read of a configuration section."""
    ranges = {
        name: SimpleNamespace(min=low, max=high)
        for name, (low, high) in [("quantity", quantity), ("unit_price", unit_price)]
    }
    return SimpleNamespace(family=family, scaffold=scaffold, seed=seed, **ranges)


def all_splits(
    content: SimpleNamespace, sizes: tuple[int, int, int] = SIZES
) -> dict[str, list[Task]]:
    return {
        split: generate(content, split, size) for split, size in zip(SPLITS, sizes, strict=True)
    }


def prompt(task: Task) -> str:
    return "\n".join(message["content"] for message in task.messages())


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, sizes=st.tuples(COUNTS, COUNTS, COUNTS))
def test_nothing_crosses_splits(seed: int, sizes: tuple[int, int, int]) -> None:
    every = [task for split in all_splits(section(seed), sizes).values() for task in split]
    assert len(every) == sum(sizes)
    base = base_tasks(section(seed), 40, seed)
    for key in ("id", "record_id"):
        assert len({getattr(task, key) for task in every + base}) == len(every) + len(base)
    assert len({tuple(task.facts.values()) for task in every}) == len(every)
    assert all(
        task.template.split("/")[1] == task.id.split("-")[0] == task.split for task in every + base
    )


def test_record_ids_never_collide() -> None:
    drawn = []
    for split in (*SPLITS, BASE):
        drawn += islice(record_ids(split, f"seed of {split}"), 5000)
    assert len(set(drawn)) == 20_000, "by chance alone about 60 of them would collide"
    assert all(ID_PATTERN.fullmatch(record_id) for record_id in drawn)


def test_wordings_of_all_splits_differ_and_all_occur() -> None:
    kind = FAMILIES["order_total"]
    wordings = {split: kind.templates(split) for split in (*SPLITS, BASE)}
    assert [
        len(texts) >= least
        for texts, least in zip(wordings.values(), (10, 10, 10, 60), strict=True)
    ]
    texts = [re.sub(r"\W+", " ", text).casefold() for split in wordings.values() for text in split]
    assert len(set(texts)) == len(texts)
    for split, made in all_splits(section()).items():
        counts = Counter(task.template for task in made)
        assert len(counts) == len(wordings[split])
        assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize("scaffold", LEVELS)
@settings(max_examples=10, deadline=None)
@given(seed=SEEDS)
def test_no_prompt_shows_a_fact(scaffold: str, seed: int) -> None:
    content = section(seed, quantity=(1, 99), unit_price=(1, 99), scaffold=scaffold)
    made = [task for split in all_splits(content, (32, 12, 12)).values() for task in split]
    for task in made + base_tasks(content, 66, seed):
        assert not re.search(r"\d", prompt(task))
        assert not contains_fact(prompt(task), task)
        assert task.answer == task.facts["menge"] * task.facts["einzelpreis"]
        assert all(1 <= value <= 99 for value in task.facts.values())


def test_no_text_contains_a_number_word_or_an_unfilled_slot() -> None:
    words = {
        word for number in range(numerals.MAX_WORD + 1) for word in numerals.number_words(number)
    }
    stems = re.compile(
        "zwei|zwo|drei|vier|fünf|sechs|sieben|neun|zehn|zwölf|hundert|tausend|dutzend|paar|beide"
    )
    made = [
        task
        for level in LEVELS
        for split in all_splits(section(scaffold=level), (160, 120, 120)).values()
        for task in split
    ]
    made += base_tasks(section(), 300, 1)
    for text in {prompt(task).replace(task.record_id, "Q") for task in made}:
        spoken = {word.casefold() for word in re.findall(r"[^\W\d_]+", text)}
        assert not words & spoken
        assert not [word for word in spoken if stems.search(word)]
        assert not re.search(r"\{[a-zK_]+\}|  | [.,;:?]|\.\.", text)


def test_prompt_gives_the_exact_lookup_once_and_the_question_first() -> None:
    for task in generate(section(), "train", 128):
        system, user = task.messages()
        assert (system["role"], user["role"]) == ("system", "user")
        call = f'{{"name": "lookup", "arguments": {{"record_id": "{task.record_id}"}}}}'
        assert user["content"].count(f"\n<tool_call>\n{call}\n</tool_call>\n") == 1
        assert user["content"].startswith(task.question + "\n\n")
        assert task.question.count(task.record_id) == 1
        assert user["content"].count("<answer>ZAHL</answer>") == 1


RULES = [
    "Ein Werkzeugaufruf steht immer außerhalb des geschlossenen Denkblocks, also danach und nie darin.",
    "Schreibe pro Antwort nur einen Aufruf und warte dann auf das Ergebnis des Werkzeugs.",
]
ENDING = [
    "Beende deine letzte Antwort mit <answer>ZAHL</answer>.",
    "ZAHL ist eine ganze Zahl ohne Trennzeichen, und danach folgt nichts mehr.",
]
FIRST = ["Beginne mit genau diesem Aufruf:", "<tool_call>", "{lookup}", "</tool_call>"]
EXPRESSION = "Rufe danach calculator mit dem Produkt der abgerufenen Werte auf: MENGE * EINZELPREIS als expression, nicht das fertige Ergebnis."
PROMPTS = {
    "lookup": (
        FIRST,
        [
            "Lass danach calculator aus den abgerufenen Werten das Ergebnis berechnen; rechne nicht selbst."
        ],
    ),
    "expression": (FIRST, [EXPRESSION]),
    "none": (["Für diese Aufgabe stehen dir Werkzeuge zur Verfügung."], []),
}
"""Level -> what stands before and behind the rules that every level has, by hand."""


def test_each_level_s_prompt_line_by_line() -> None:
    assert tuple(PROMPTS) == LEVELS
    for level, (first, then) in PROMPTS.items():
        task = generate(section(scaffold=level), "dev", 1)[0]
        assert task.scaffold == level
        call = f'{{"name": "lookup", "arguments": {{"record_id": "{task.record_id}"}}}}'
        expected = [
            task.question,
            "",
            *(line.replace("{lookup}", call) for line in first),
            *RULES,
            *then,
            *ENDING,
        ]
        assert task.messages()[1]["content"].split("\n") == expected
        assert task.messages()[0]["content"].startswith(
            "Du bist ein sorgfältiger Assistent für Bestellungen"
        )


def test_only_the_level_differs_and_none_gives_more_away_than_it_says() -> None:
    """The same seed asks the same questions at every level; operator and names of the facts stand at the level `expression` alone."""
    splits = {level: all_splits(section(scaffold=level), (128, 32, 32)) for level in LEVELS}
    for split in SPLITS:
        plain = [[replace(task, scaffold="") for task in splits[level][split]] for level in LEVELS]
        assert plain[0] == plain[1] == plain[2]
    for level in LEVELS:
        for task in splits[level]["train"]:
            given = prompt(task).replace(task.question, "")
            assert ("MENGE" in given, "*" in given, "Produkt" in given, "expression" in given) == (
                level == "expression",
            ) * 4
            assert (lookup_call(task.record_id) in given, "calculator" in given) == (
                level != "none",
            ) * 2
            assert not re.search(r"mal\b|multipli|[×·/+]", re.sub("<.*?>", "", given))


def test_the_prompt_follows_from_the_record_alone(tmp_path: Path) -> None:
    for level in LEVELS:
        write_tasks(tmp_path / level, generate(section(scaffold=level), "dev", 4))
        row = json.loads((tmp_path / level).read_text(encoding="utf-8").split("\n")[0])
        assert list(row)[:4] == ["id", "split", "family", "scaffold"]
        assert row["scaffold"] == level
        assert [task.messages() for task in read_tasks(tmp_path / level)] == [
            task.messages() for task in generate(section(scaffold=level), "dev", 4)
        ]


def test_sentences_are_well_formed() -> None:
    for task in base_tasks(section(), 200, 3) + generate(section(), "train", 128):
        assert re.match(r"[A-ZÄÖÜ]", task.question)
        assert task.question[-1] in ".?"
        assert not re.search(
            r"\b(von|bei) dem\b|\b(von|mit|bei) (das|den|die)\b|[.?!] [a-zäöü]", task.question
        )


def test_declension() -> None:
    hotel = customer_forms({"gender": "n", "name": "Hotel Seeblick"})
    assert list(hotel.values()) == [
        "das Hotel Seeblick",
        "das Hotel Seeblick",
        "dem Hotel Seeblick",
        "vom Hotel Seeblick",
    ]
    brandt = customer_forms({"gender": "person", "name": "Herr Brandt", "oblique": "Herrn Brandt"})
    assert list(brandt.values()) == ["Herr Brandt", *["Herrn Brandt"] * 2, "von Herrn Brandt"]
    for goods in json.loads((DATA / "goods.json").read_text()):
        plural = goods["plural"]
        assert goods["dative_plural"] == (plural if plural[-1] in "ns" else plural + "n")


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    made = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_tasks(tmp_path / name, generate(section(seed), "dev", 32))
        made.append((tmp_path / name).read_bytes())
    assert made[0] == made[1] != made[2]
    assert base_tasks(section(), 20, 1) == base_tasks(section(), 20, 1)
    assert base_tasks(section(), 20, 1) != base_tasks(section(), 20, 2)
    assert (
        deal_pairs(section(1), "dev", 32)
        == deal_pairs(section(1), "dev", 32)
        != deal_pairs(section(2), "dev", 32)
    )


def test_base_tasks_do_not_know_the_sections_seed() -> None:
    content = section()
    expected = base_tasks(content, 40, 1)
    del content.seed
    assert base_tasks(content, 40, 1) == expected


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, split=st.sampled_from(SPLITS), small=COUNTS, large=COUNTS)
def test_a_split_grows_by_appending(seed: int, split: str, small: int, large: int) -> None:
    small, large = sorted((small, large))
    assert generate(section(seed), split, large)[:small] == generate(section(seed), split, small)


WIDTHS = st.integers(min_value=1, max_value=9)


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS, wide=WIDTHS, high=WIDTHS)
def test_shares_are_half_and_quarters_of_all_pairs_and_no_more(
    seed: int, wide: int, high: int
) -> None:
    content, pairs, dealt = section(seed, (2, 1 + wide), (3, 2 + high)), wide * high, []
    for split, fraction in zip(SPLITS, (0.5, 0.25, 0.25), strict=True):
        sizes = [size for size in range(pairs + 2) if accepts(content, split, size)]
        share = len(sizes) - 1
        assert sizes == list(range(share + 1))
        assert abs(share - fraction * pairs) <= 1
        dealt += deal_pairs(content, split, share)
    assert sorted(dealt) == [(q, p) for q in range(2, 2 + wide) for p in range(3, 3 + high)], (
        "every pair once"
    )


def accepts(content: SimpleNamespace, split: str, count: int) -> bool:
    """Whether the split's share holds `count` pairs; the check and the deal must agree."""
    try:
        check_share(content, split, count)
    except ValueError:
        with pytest.raises(ValueError, match=f"tasks.splits.{split}: "):
            deal_pairs(content, split, count)
        return False
    assert len(deal_pairs(content, split, count)) == count
    return True


SHARE = "expected 0 to {0}, found {1}; the split's share holds {0} of the 64 pairs of tasks.quantity and tasks.unit_price: widen a range"


@pytest.mark.parametrize(
    ("change", "split", "count", "message"),
    [
        (
            {"quantity": (2, 9), "unit_price": (2, 9)},
            "train",
            33,
            "tasks.splits.train: " + SHARE.format(32, 33),
        ),
        (
            {"quantity": (2, 9), "unit_price": (2, 9)},
            "test",
            17,
            "tasks.splits.test: " + SHARE.format(16, 17),
        ),
        (
            {"quantity": (2, 9), "unit_price": (2, 9)},
            "dev",
            -1,
            "tasks.splits.dev: " + SHARE.format(16, -1),
        ),
        (
            {"quantity": (9, 2)},
            "dev",
            1,
            "tasks.quantity: expected 1 <= min <= max, found min 9, max 2",
        ),
        (
            {"unit_price": (0, 20)},
            "dev",
            1,
            "tasks.unit_price: expected 1 <= min <= max, found min 0",
        ),
        ({"family": "order_sum"}, "dev", 1, "tasks.family: 'order_sum' is not one of order_total"),
        (
            {"scaffold": "full"},
            "dev",
            1,
            "tasks.scaffold: 'full' is not a level of family order_total: lookup, expression, none",
        ),
        ({}, "base", 1, "'base' is not one of train, dev, test; for demo training use base_tasks"),
    ],
)
def test_refused_sections(change: dict[str, object], split: str, count: int, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        generate(section(**change), split, count)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quantity": (9, 2)}, "tasks.quantity: expected 1 <= min <= max, found min 9, max 2"),
        ({"family": "order_sum"}, "tasks.family: 'order_sum' is not one of order_total"),
        (
            {"scaffold": ""},
            "tasks.scaffold: '' is not a level of family order_total: lookup, expression, none",
        ),
    ],
)
def test_refused_base_sections(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        base_tasks(section(**change), 1, 1)


def study_file(**change: object) -> dict[str, object]:
    return merge(
        read_yaml(ROOT / "config.yaml", ROOT / "profiles/demo/study.yaml"), {"tasks": change}
    )


def test_the_configs_splits_are_the_tasks_splits() -> None:
    assert tuple(Splits.model_fields) == SPLITS


def test_a_jobs_section_is_all_that_its_split_needs() -> None:
    study = validate_study(study_file())
    for split in SPLITS:
        content = json.loads(canonical(sections(study)[f"tasks-{split}"]))
        assert sorted(content) == ["count", "family", "quantity", "scaffold", "seed", "unit_price"]
        job, count = validate(content, TaskSplit), getattr(study.tasks.splits, split)
        assert job.count == count
        assert generate(job, split, job.count) == generate(study.tasks, split, count)


@pytest.mark.parametrize(("name", "model"), [("demo-base", DemoBase), ("demo-sft", DemoSft)])
def test_the_demos_sections_give_the_same_base_tasks_to_every_seed(
    name: str, model: type[DemoJob]
) -> None:
    one, two = (sections(validate_study(study_file(seed=seed)))[name] for seed in (1, 2))
    assert one == two
    assert sorted(one["tasks"]) == ["family", "quantity", "scaffold", "unit_price"]
    job = validate(one, model)
    assert base_tasks(job.tasks, 20, 1) == base_tasks(
        validate_study(study_file(seed=3)).tasks, 20, 1
    )


@pytest.mark.parametrize(("split", "share"), [("train", 32), ("dev", 16), ("test", 16)])
def test_the_config_grants_each_split_its_share(split: str, share: int) -> None:
    ranges = {"quantity": {"min": 2, "max": 9}, "unit_price": {"min": 2, "max": 9}}
    sizes = {"train": 4, "dev": 1, "test": 1}
    assert (
        getattr(
            validate_study(study_file(**ranges, splits=sizes | {split: share})).tasks.splits, split
        )
        == share
    )
    with pytest.raises(
        ConfigError,
        match=re.escape(f"  tasks: tasks.splits.{split}: {SHARE.format(share, share + 1)}"),
    ):
        validate_study(study_file(**ranges, splits=sizes | {split: share + 1}))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Menge 12", True),
        ("je hundertfünf Euro", True),
        ("macht 1.260", True),
        ("112 und 1205", False),
        ("ein Auftrag", False),
    ],
)
def test_quantity_price_and_answer_are_facts(text: str, shown: bool) -> None:
    assert contains_fact(text, order(12, 105)) is shown


def order(quantity: int, unit_price: int) -> Task:
    made = generate(section(), "train", 1)[0]
    return replace(
        made, facts={"menge": quantity, "einzelpreis": unit_price}, answer=quantity * unit_price
    )


def test_a_family_is_one_function_and_its_templates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(families, "FAMILIES", dict(FAMILIES))
    source = tmp_path / "trip.json"
    texts = {
        split: [f"{split}: Wie lang ist die Fahrt {{id}} nach {{ziel}}?"]
        for split in (*SPLITS, "base")
    }
    levels = {"open": {"first": [], "then": ["Rechne TAGE * STRECKE."], "limit": "All is given"}}
    source.write_text(json.dumps({"scaffolds": levels, **texts}))

    @families.family("trip", facts=("tage", "strecke"), source=source)
    def trip(rng: Random) -> dict[str, str]:
        return {"ziel": rng.choice(["Bonn", "Wien"])}

    with pytest.raises(
        ValueError, match=r"tasks\.scaffold: 'lookup' is not a level of family trip: open"
    ):
        generate(section(family="trip"), "dev", 32)
    made = generate(section(family="trip", scaffold="open"), "dev", 32)
    assert list(made[0].facts) == ["tage", "strecke"]
    assert made[0].template == "trip/dev/01"
    assert "\nRechne TAGE * STRECKE.\n" in prompt(made[0])
    write_tasks(tmp_path / "dev.jsonl", made)
    assert read_tasks(tmp_path / "dev.jsonl") == made
    with pytest.raises(ValueError, match="family 'trip' is already registered"):
        families.family("trip", facts=("a", "b"))(trip)


@pytest.mark.parametrize(
    ("text", "message"), [("Fahrt {id} sieben 7", "shows a fact"), ("Fahrt", "{id} exactly once")]
)
def test_bad_templates_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.setattr(families, "FAMILIES", {})
    source = tmp_path / "trip.json"
    source.write_text(
        json.dumps({"scaffolds": {"lookup": {"first": [], "then": [], "limit": ""}}, "dev": [text]})
    )
    families.family("trip", facts=("tage", "strecke"), source=source)(lambda rng: {})
    with pytest.raises(ValueError, match=re.escape(message)):
        generate(section(family="trip", quantity=(7, 7)), "dev", 1)


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "tasks" / "of" / "train.jsonl"
    made = generate(section(), "train", 128)
    write_tasks(path, made)
    assert read_tasks(path) == made
    write_tasks(path, made)
    assert [file.name for file in path.parent.iterdir()] == ["train.jsonl"]
    assert "ü" in path.read_text(encoding="utf-8")


ROW = dict(sorted(vars(order(12, 105)).items()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": 1261}, "found 1261, expected answer as the facts' product 1260"),
        ({"answer": True}, "found True, expected answer as"),
        ({"answer": 1260.0}, "found 1260.0, expected answer as"),
        ({"facts": {"menge": 12}}, "expected facts as positive integers menge and einzelpreis"),
        ({"facts": {"menge": "12", "einzelpreis": 105}}, "expected facts as positive integers"),
        ({"facts": {"menge": True, "einzelpreis": 1260}}, "expected facts as positive integers"),
        ({"facts": {"menge": -12, "einzelpreis": -105}}, "expected facts as positive integers"),
        ({"facts": [12, 105]}, "expected facts as dict[str, int]"),
        (
            {"split": "validation"},
            "found 'validation', expected split as one of train, dev, test, base",
        ),
        ({"id": "dev-0001"}, "expected id as train-0001"),
        ({"id": "train-1"}, "expected id as train-0001"),
        ({"template": "order_total/test/01"}, "expected template as order_total/train/01"),
        ({"family": "order_sum"}, "expected family as one of order_total"),
        (
            {"scaffold": "full"},
            "found 'full', expected scaffold as one of lookup, expression, none",
        ),
        ({"scaffold": None}, "expected scaffold as"),
        ({"scaffold": ...}, "expected an object with exactly the keys id, split, family, scaffold"),
        ({"record_id": "QXVT7"}, "expected record_id as 5 consonants"),
        ({"question": "Was kostet sie?"}, "expected question with the record id"),
        ({"question": None}, "expected question as"),
        ({"hint": "x"}, "expected an object with exactly the keys id, split, family"),
        ({"id": ...}, "expected an object with exactly the keys id, split, family"),
    ],
)
def test_unsound_rows_are_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = tmp_path / "train.jsonl"
    good = json.dumps(
        vars(replace(order(3, 4), id="train-0007", record_id="BCDFG", question="Preis BCDFG?"))
    )
    row = {key: value for key, value in (ROW | change).items() if value is not ...}
    path.write_text(f"{good}\n{json.dumps(row)}\n")
    with pytest.raises(TaskFileError, match=re.escape(message)) as caught:
        read_tasks(path)
    assert f"{path}, line 2: found " in str(caught.value)
    assert "generate the tasks again" in str(caught.value)


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        (lambda text: text[:-1], "line 2: found"),
        (lambda text: text[:-9], "expected a complete last line"),
        (lambda text: text[:-9] + "\n", "line 2: found"),
        (lambda text: "", "line 1: found b'', expected a complete last line"),
        (lambda text: "\n" + text, "line 1: found b'', expected one JSON object"),
        (
            lambda text: text + text,
            "line 3: found 'train-0001', expected an id that occurs on no earlier line",
        ),
        (lambda text: text.replace("train-0002", "train-0001"), "line 2: found 'train-0001'"),
        (lambda text: text.replace('"id":', '"id": "x", "id":'), "a key occurs twice"),
        (lambda text: "[]\n" + text, "line 1: found []"),
    ],
)
def test_broken_files_are_refused(tmp_path: Path, cut: object, message: str) -> None:
    path = tmp_path / "train.jsonl"
    write_tasks(path, generate(section(), "train", 2))
    path.write_text(cut(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(TaskFileError, match=re.escape(message)):
        read_tasks(path)

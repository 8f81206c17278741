"""Word problems: right sums, bounded operands, held-out wordings in a shared vocabulary."""

import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.demo import wordproblems as wp

SEEDS = st.integers(min_value=0, max_value=2**32)
MODES = pytest.mark.parametrize("held_out", [False, True])


@MODES
@settings(max_examples=20, deadline=None)
@given(seed=SEEDS)
def test_every_problem_is_right_bounded_and_asks(held_out: bool, seed: int) -> None:
    items = wp.problems(50, seed, held_out)
    for item in items:
        assert item.answer == (item.a + item.b if item.op == "+" else item.a - item.b) > 0
        assert 2 <= item.b <= 9
        assert (2 <= item.a <= 9) if item.op == "+" else (3 <= item.a <= 18)
        assert sorted(map(int, re.findall(r"\d+", item.question))) == sorted([item.a, item.b])
        assert re.search(r"Wie viele [^.?]+\?$", item.question)
        assert "{" not in item.question
        assert item.as_item() == {"id": item.id, "question": item.question, "answer": item.answer}
    assert len({item.id for item in items}) == len({item.question for item in items}) == 50


@MODES
def test_seed_alone_decides(held_out: bool) -> None:
    assert wp.problems(30, 7, held_out) == wp.problems(80, 7, held_out)[:30]
    assert wp.problems(30, 7, held_out) != wp.problems(30, 8, held_out)


@MODES
def test_operations_and_wordings_all_occur(held_out: bool) -> None:
    items = wp.problems(1000, 1, held_out)
    operations = Counter(item.op for item in items)
    assert min(operations["+"], operations["-"]) > 400
    shapes = {(item.op, _shape(item.question)) for item in items}
    templates = wp.HELD_OUT if held_out else wp.SEEN
    assert len(shapes) == sum(len(texts) for texts in templates.values())


def test_held_out_wordings_are_new_and_their_words_are_not() -> None:
    seen = [text for texts in wp.SEEN.values() for text in texts]
    held = [text for texts in wp.HELD_OUT.values() for text in texts]
    assert (len(set(seen)), len(set(held))) == (len(seen), len(held))
    assert len(seen) >= 20
    assert len(held) >= 8
    assert not set(map(str.casefold, seen)) & set(map(str.casefold, held))
    assert _vocabulary(held) <= _vocabulary(seen)
    shapes = [
        {_shape(item.question) for item in wp.problems(1000, 1, mode)} for mode in (False, True)
    ]
    assert not shapes[0] & shapes[1]


def test_dative_plural() -> None:
    assert [
        wp.dative_plural(word) for word in ("Äpfel", "Karten", "Bonbons", "Aufkleber", "Bälle")
    ] == [
        "Äpfeln",
        "Karten",
        "Bonbons",
        "Aufklebern",
        "Bällen",
    ]


def _vocabulary(texts: list[str]) -> set[str]:
    return {word.casefold() for text in texts for word in re.findall(r"\{?\w+\}?", text)}


def _shape(question: str) -> str:
    """The wording with its slots blanked, gender folded."""
    things = {form for word in wp.OBJECTS for form in (word, wp.dative_plural(word))}
    blanks = {**dict.fromkeys(wp.GIRLS + wp.BOYS, "N"), **dict.fromkeys(things, "D")}
    blanks |= {"sie": "er", "Sie": "Er", "seinen": "ihren"}
    return re.sub(r"\w+", lambda m: "#" if m[0].isdigit() else blanks.get(m[0], m[0]), question)

"""Each number of `config.yaml` says where it comes from, and what is called the recipe's is what the pilot's recipe says."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from raw_studies import MAIN, PILOT_RAW, get

from agentrl.study.strictyaml import parse_yaml

TAGGED = re.compile(r"recipe\b|(derived|ours): \S")
"""How the comment of a number begins."""
RECIPE: dict[str, object] = {
    "tasks.splits.train": 128,
    "tasks.splits.dev": 32,
    "tasks.splits.test": 32,
    "protocol.budget": 768,
    "protocol.max_tool_iterations": 3,
    "decoding.temperature": 0.6,
    "decoding.top_p": 0.95,
    "decoding.top_k": 20,
    "decoding.min_p": 0.0,
    "decoding.seed": 42,
    "reward.lookup": 0.15,
    "reward.calculation": 0.25,
    "reward.strict": 0.60,
    "reward.tool_error": 0.05,
    "training.group_size": 4,
    "training.batch_size": 4,  # one task a step
    "training.learning_rate": 1e-5,
    "training.kl": 0.02,
    "training.lora.r": 16,
    "retention.items": 64,
}
"""Numbers of the pilot's recipe, kept by hand."""
NOT_THE_RECIPES = (
    "tasks.seed",
    "training.seeds.0",
    "training.steps",
    "training.lora.alpha",
    "training.max_grad_norm",
    "retention.seed",
)
"""Numbers that stand in neither of its documents, or otherwise."""


def numbers(node: yaml.Node, path: tuple[str, ...] = ()) -> Iterator[tuple[str, int]]:
    """Key path and line (from 0) of every number."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from numbers(value, (*path, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from numbers(value, (*path, str(index)))
    elif is_number(parse_yaml(node.value, "") if node.style is None else node.value):
        yield ".".join(path), node.start_mark.line


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def comments(text: str) -> dict[int, str]:
    """Line (from 0) -> the comment behind what stands there."""
    ends: dict[int, int] = {}
    for token in yaml.scan(text):
        ends[token.end_mark.line] = max(ends.get(token.end_mark.line, 0), token.end_mark.column)
    rest = {
        line: text.splitlines()[line][end:].strip()
        for line, end in ends.items()
        if line < len(text.splitlines())
    }
    return {
        line: found.removeprefix("#").strip()
        for line, found in rest.items()
        if found.startswith("#")
    }


def sources(text: str) -> dict[str, str]:
    """Key path of every number -> its comment."""
    said = comments(text)
    return {path: said.get(line, "") for path, line in numbers(yaml.compose(text))}


def untagged(text: str) -> list[str]:
    return [path for path, comment in sources(text).items() if not TAGGED.match(comment)]


SHIPPED = sources(MAIN.read_text(encoding="utf-8"))


def test_every_number_says_where_it_comes_from() -> None:
    assert untagged(MAIN.read_text(encoding="utf-8")) == [], (
        "begin each one's comment with `recipe`, `derived: from what` or `ours: why`"
    )


def test_no_number_of_the_file_is_overlooked() -> None:
    def walk(value: Any, path: tuple[str, ...]) -> Iterator[str]:
        pairs = (
            value.items()
            if isinstance(value, dict)
            else enumerate(value)
            if isinstance(value, list)
            else ()
        )
        for key, inner in pairs:
            yield from walk(inner, (*path, str(key)))
        if is_number(value):
            yield ".".join(path)

    assert sorted(SHIPPED) == sorted(walk(PILOT_RAW, ()))
    assert len(SHIPPED) > 40


@pytest.mark.parametrize("key", RECIPE)
def test_the_recipes_numbers_are_the_recipes(key: str) -> None:
    assert get(PILOT_RAW, tuple(key.split("."))) == RECIPE[key]
    assert SHIPPED[key].startswith("recipe"), SHIPPED[key]


@pytest.mark.parametrize("key", NOT_THE_RECIPES)
def test_no_number_of_ours_is_called_the_recipes(key: str) -> None:
    assert SHIPPED[key].startswith(("ours", "derived")), SHIPPED[key]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\n", ["a"]),
        ("a: 1 # pilot\n", ["a"]),
        ("a: 1 # ours\n", ["a"]),
        ("a: 1 # ours:\n", ["a"]),
        ("a: 1 # recipes\n", ["a"]),
        ("a: 1.0e-5 # derived from b\n", ["a"]),
        ("a: # ours: why\n  b: 1\n", ["a.b"]),
        ("a: 'x # ours: why'\nb: [1, 2]\n", ["b.0", "b.1"]),
        ("a: |-\n  # ours: why\nb: -1\n", ["b"]),
        (
            "a: 1 # recipe\nb: 2 # recipe: words\nc: {d: 3} # derived: from b\ne: [0.5] # ours: why\n",
            [],
        ),
        ("a: x # pilot\nb: true\nc: null\nd: '1'\n", []),
    ],
)
def test_a_number_without_a_known_tag_is_found(text: str, expected: list[str]) -> None:
    assert untagged(text) == expected

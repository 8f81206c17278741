"""YAML: read strictly, refused by file and line; Snakemake's stringification undone."""

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from raw_studies import MAIN, PILOT_RAW, get, leaves

from agentrl.evidence.section import ConfigError, merge
from agentrl.study.config import validate_study
from agentrl.study.strictyaml import parse_yaml, read_yaml, retype


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("1.0e-5", 1e-5),
        ("-2E3", -2000.0),
        (".5", 0.5),
        ("3.", 3.0),
        ("0", 0),
        ("-7", -7),
        ("0.10", 0.1),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ('"012"', "012"),
        ("'1e-5'", "1e-5"),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("Off", "Off"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("0x10", "0x10"),
        ("0o17", "0o17"),
        ("2026-01-31", "2026-01-31"),
        ("<<", "<<"),
        (".inf", ".inf"),
        ("7b", "7b"),
    ],
)
def test_scalars_are_yaml_1_2(text: str, value: object) -> None:
    found = parse_yaml(f"key: {text}", "x.yaml")["key"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "x.yaml, line 3: key 'a' stands already on line 1"),
        (
            "a:\n  b: 1\n  c: {d: 1, e: 2, d: 3}\n",
            "x.yaml, line 3: key 'd' stands already on line 3",
        ),
        ("- {a: 1}\n- a: 1\n  a: 1\n", "x.yaml, line 3: key 'a' stands already on line 2"),
        ("a: 1\nb: 012\n", "x.yaml, line 2: 012 has a leading zero"),
        ("a: [1, -007]\n", "x.yaml, line 1: -007 has a leading zero"),
        ("a: 1\n1: 2\n", "x.yaml, line 2: key 1 is not a string"),
        ("true: 2\n", "x.yaml, line 1: key True is not a string"),
        ("? [a, b]\n: 2\n", "x.yaml, line 1: key ['a', 'b'] is not a string"),
        ("a: [1, 2\n", "x.yaml: not YAML"),
        ("a: 1\n---\na: 2\n", "x.yaml: not YAML"),
        ("a: !!python/name:os.system x\n", "x.yaml: not YAML"),
    ],
)
def test_refused_yaml_names_file_line_and_value(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        parse_yaml(text, "x.yaml")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "found NoneType"),
        (b"- 1\n", "found list"),
        (b"text\n", "found str"),
        (b"a: \xff\n", "UTF-8"),
        (None, "No such file"),
    ],
)
def test_unusable_files_are_refused_by_name(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "study.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"study.yaml: .*{message}"):
        read_yaml(MAIN, path)


def test_later_files_win_deeply(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("one: {x: 1, y: {z: 2, list: [1, 2]}}\ntwo: {x: 1}\n")
    (tmp_path / "b.yaml").write_text("one: {y: {list: [3]}}\ntwo: null\nthree: {x: 0}\n")
    merged = read_yaml(tmp_path / "a.yaml", tmp_path / "b.yaml")
    assert merged == {"one": {"x": 1, "y": {"z": 2, "list": [3]}}, "two": None, "three": {"x": 0}}


KEYS = st.text("abc", min_size=1, max_size=2)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "a: b", "ä"])
)
TREES = st.dictionaries(
    KEYS,
    st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    ),
)


@given(below=TREES, above=TREES)
def test_merge_keeps_every_leaf_above_and_its_operands(
    below: dict[str, Any], above: dict[str, Any]
) -> None:
    copies = deepcopy((below, above))
    merged = merge(below, above)
    assert (below, above) == copies
    for path in leaves(above):
        if get(above, path) != {}:
            assert get(merged, path) == get(above, path)
    assert merge(merged, above) == merged
    assert merge({}, above) == above == merge(above, {})


# Undoing Snakemake's stringification

PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("abz_/. ", min_size=1)
)
NESTED = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)
)


@given(value=NESTED.filter(lambda value: value != "~"))
def test_retype_undoes_the_base_loader(value: object) -> None:
    """What Snakemake does to a nested value: `yaml.BaseLoader` leaves every scalar a string."""
    stringified = yaml.load(json.dumps(value), yaml.BaseLoader)  # noqa: S506 - BaseLoader makes strings only
    if isinstance(value, str) and re.fullmatch(r"\.|\s*", value):
        return  # not a plain YAML scalar
    assert retype(stringified) == value


def test_retype_makes_stringified_overrides_valid() -> None:
    command_line = {
        "study": "lr",
        "training": {
            "learning_rate": "1e-5",
            "seeds": ["1", "2"],
            "lora": {"r": "8"},
            "gradient_checkpointing": "false",
        },
        "retention": {"path": "null", "prompt": "{question}\n\nDenke nach: a, b."},
    }
    study = validate_study(merge(PILOT_RAW, retype(command_line)))
    assert (study.training.learning_rate, study.training.seeds, study.training.lora.r) == (
        1e-5,
        (1, 2),
        8,
    )
    assert study.training.gradient_checkpointing is False
    assert study.retention.path is None
    assert study.retention.prompt == command_line["retention"]["prompt"]


def test_retype_refuses_a_leading_zero_by_path() -> None:
    with pytest.raises(ConfigError, match=r"training\.lora\.r.*012"):
        retype({"training": {"lora": {"r": "012"}}})

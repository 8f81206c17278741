"""Configuration: read strictly, refused by key path and value, cut into sections that an edit reruns no more than it must."""

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from agentrl.config import ConfigError, Study, TrainingSettings, canonical, merge, parse_yaml, read_yaml, retype, sections, validate
from agentrl.inference import INFERENTIAL_SEEDS
from agentrl.tasks import FAMILIES

ROOT = Path(__file__).resolve().parents[1]
MAIN, OVERRIDES = ROOT / "config.yaml", ROOT / "profiles/demo/study.yaml"
PILOT_RAW, DEMO_RAW = read_yaml(MAIN), read_yaml(MAIN, OVERRIDES)
Key = tuple[str, ...]


def put(raw: dict[str, Any], path: str | Key, value: object) -> dict[str, Any]:
    """A copy of `raw` with one key set."""
    out = deepcopy(raw)
    *parents, last = path.split(".") if isinstance(path, str) else path
    inner = out
    for name in parents:
        inner = inner.setdefault(name, {})
    inner[last] = value
    return out


def get(raw: dict[str, Any], path: Key) -> Any:
    for name in path:
        raw = raw[name]
    return raw


def is_override(path: Key) -> bool:
    """Whether a key is one of an arm's own training settings: optional, and absent from the shipped files."""
    return path[0] == "arms" and path[2:3] == ("training",)


def leaves(raw: dict[str, Any], path: Key = ()) -> Iterator[Key]:
    for key, value in raw.items():
        yield from leaves(value, (*path, key)) if isinstance(value, dict) and value else iter([(*path, key)])


def cut(raw: dict[str, Any]) -> dict[str, str]:
    """Section name -> the bytes that a job reads."""
    return {name: canonical(content) for name, content in sections(validate(raw)).items()}


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """Names of the sections that come, go or differ."""
    old, new = cut(before), cut(after)
    return {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}


def refusal(raw: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        validate(raw)
    return str(caught.value)


# Reading YAML


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
        ("a:\n  b: 1\n  c: {d: 1, e: 2, d: 3}\n", "x.yaml, line 3: key 'd' stands already on line 3"),
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
    [(b"", "found NoneType"), (b"- 1\n", "found list"), (b"text\n", "found str"), (b"a: \xff\n", "UTF-8"), (None, "No such file")],
)
def test_unusable_files_are_refused_by_name(tmp_path: Path, content: bytes | None, message: str) -> None:
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
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(["", "a: b", "ä"])
TREES = st.dictionaries(KEYS, st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)))


@given(below=TREES, above=TREES)
def test_merge_keeps_every_leaf_above_and_its_operands(below: dict[str, Any], above: dict[str, Any]) -> None:
    copies = deepcopy((below, above))
    merged = merge(below, above)
    assert (below, above) == copies
    for path in leaves(above):
        if get(above, path) != {}:
            assert get(merged, path) == get(above, path)
    assert merge(merged, above) == merged
    assert merge({}, above) == above == merge(above, {})


# Undoing Snakemake's stringification

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text("abz_/. ", min_size=1)
NESTED = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))


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
        "training": {"learning_rate": "1e-5", "seeds": ["1", "2"], "lora": {"r": "8"}, "gradient_checkpointing": "false"},
        "retention": {"path": "null", "prompt": "{question}\n\nDenke nach: a, b."},
    }
    study = validate(merge(PILOT_RAW, retype(command_line)))
    assert (study.training.learning_rate, study.training.seeds, study.training.lora.r) == (1e-5, (1, 2), 8)
    assert study.training.gradient_checkpointing is False
    assert study.retention.path is None
    assert study.retention.prompt == command_line["retention"]["prompt"]


def test_retype_refuses_a_leading_zero_by_path() -> None:
    with pytest.raises(ConfigError, match=r"training\.lora\.r.*012"):
        retype({"training": {"lora": {"r": "012"}}})


# Refusals


REFUSED = [
    ("trainig", {"steps": 3}, ["trainig", "unknown key", '{"steps": 3}']),
    ("training.lora.rank", 16, ["training.lora.rank", "unknown key", "16"]),
    ("arms.pilot.rewrad", "shaped", ["arms.pilot.rewrad", "unknown key", '"shaped"']),
    ("training.steps", "32", ["training.steps", "valid integer", '"32"']),
    ("training.steps", 32.0, ["training.steps", "valid integer", "32.0"]),
    ("training.steps", True, ["training.steps", "valid integer", "true"]),
    ("training.steps", [3], ["training.steps", "valid integer", "[3]"]),
    ("training.steps", {"n": 3}, ["training.steps", "valid integer", '{"n": 3}']),
    ("training.steps", None, ["training.steps", "valid integer", "null"]),
    ("training.steps", 0, ["training.steps", "greater than or equal to 1", "0"]),
    ("training.gradient_checkpointing", "yes", ["training.gradient_checkpointing", "valid boolean", '"yes"']),
    ("training.gradient_checkpointing", 1, ["training.gradient_checkpointing", "valid boolean", "1"]),
    ("training.learning_rate", "1e-5", ["training.learning_rate", "valid number", '"1e-5"']),
    ("training.kl", float("inf"), ["training.kl", "finite", "Infinity"]),
    ("training.kl", float("nan"), ["training.kl", "finite", "NaN"]),
    ("training.seeds", [1, "2"], ["training.seeds.1", "valid integer", '"2"']),
    ("training.seeds", [2**32], ["training.seeds.0", str(2**32 - 1), str(2**32)]),
    ("training.seeds", [3, 4, 3], ["training", "seeds [3, 4, 3] repeat"]),
    ("training.seeds", [], ["training.seeds", "at least 1", "[]"]),
    ("training.loss_type", "ppo", ["training.loss_type", "'dapo'", '"ppo"']),
    ("training.group_size", 3, ["training", "group_size 3", "batch_size 4"]),
    ("training.batch_size", 4 * 129, ["training.batch_size", "129 tasks a step", "tasks.splits.train has 128"]),
    ("study", "my study", ["study", "pattern", '"my study"']),
    ("study", "../x", ["study", "pattern", '"../x"']),
    ("study", 7, ["study", "valid string", "7"]),
    ("tasks.quantity", {"min": 3, "max": 2}, ["tasks.quantity", "min 3", "max 2"]),
    ("tasks.quantity", {"min": 12, "max": 13}, ["tasks.splits.train", "found 128", "178 pairs"]),
    ("tasks.splits.dev", 1959, ["tasks.splits.dev", "found 1959", "7832 pairs"]),
    ("tasks.quantity", {"min": 3}, ["tasks.quantity.max", "missing"]),
    ("model.start", None, ["model.start", "demo_policy", "found model.start null and demo_policy null"]),
    ("demo_policy", DEMO_RAW["demo_policy"], ["model.start", "demo_policy", PILOT_RAW["model"]["start"], "demo_policy set"]),
    ("arms.baseline", {"reward": "shaped"}, ["arms.baseline", "'baseline'"]),
    ("arms.a/b", {"reward": "shaped"}, ["arms.a/b", "pattern", '"a/b"']),
    ("arms", {}, ["arms", "at least 1", "{}"]),
    ("arms.pilot.reward", "dense", ["arms.pilot.reward", "'binary'", '"dense"']),
    ("arms.pilot.training", {"stesp": 3}, ["arms.pilot.training.stesp", "unknown key", "3"]),
    ("arms.pilot.training", {"steps": "3"}, ["arms.pilot.training.steps", "valid integer", '"3"']),
    ("arms.pilot.training", {"learning_rate": 0.0}, ["arms.pilot.training.learning_rate", "greater than 0", "0.0"]),
    ("arms.pilot.training", {"lora": {"rank": 8}}, ["arms.pilot.training.lora.rank", "unknown key", "8"]),
    ("arms.pilot.training", {"seeds": [1]}, ["arms.pilot.training.seeds", "unknown key", "[1]"]),
    ("arms.pilot.training", {"group_size": 3}, ["arms.pilot.training: group_size 3", "batch_size 4"]),
    ("arms.pilot.training", {"batch_size": 516}, ["arms.pilot.training.batch_size takes 129 tasks", "tasks.splits.train has 128"]),
    ("retention.ids", ["1", "2"], ["retention", "ids names 2", "items says 64"]),
    ("retention.ids", [*map(str, range(63)), "7"], ["retention", "ids repeat", "['7']"]),
    ("retention", {**PILOT_RAW["retention"], "ids": [*map(str, range(64))], "ids_from": "x"}, ["retention", "ids_from ('x')", "null"]),
    ("baselines.agent", "results/pilot/", ["baselines.agent", "'results/pilot/'", "this study itself"]),
    ("baselines.agent", "sft.json", ["baselines.agent", "'sft.json'", "folder"]),
    ("baselines.retention", "results/pilot", ["baselines.retention", "'results/pilot'", "this study itself"]),
    ("baselines.retention", 3, ["baselines.retention", "valid string", "3"]),
    ("retention.prompt", "Frage?", ["retention", "{question}", "found 0 times", "Frage?"]),
    ("evaluation.splits", ["train"], ["evaluation.splits.0", "'dev' or 'test'", '"train"']),
    ("decoding.top_p", 1.01, ["decoding.top_p", "less than or equal to 1", "1.01"]),
    ("protocol", None, ["protocol", "object", "null"]),
    ("study", {1, 2}, ["config is not valid", "set is not JSON serializable"]),
]


@pytest.mark.parametrize(("path", "value", "parts"), REFUSED)
def test_refusals_name_key_path_and_value(path: str, value: object, parts: list[str]) -> None:
    message = refusal(put(PILOT_RAW, path, value))
    assert [part for part in parts if part not in message] == []
    assert len(message.splitlines()) <= 2


def test_every_offence_is_named_at_once() -> None:
    broken = put(put(put(PILOT_RAW, "training.steps", -1), "tasks.seed", "x"), "typo", 1)
    assert {line.split(":")[0].strip() for line in refusal(broken).splitlines()[1:]} == {"training.steps", "tasks.seed", "typo"}


def test_a_missing_section_is_named() -> None:
    assert "  decoding: missing" in refusal({key: value for key, value in PILOT_RAW.items() if key != "decoding"})


# The shipped files


@pytest.mark.parametrize("files", [[MAIN], [MAIN, OVERRIDES]], ids=["pilot", "demo"])
def test_shipped_configurations_are_valid(files: list[Path]) -> None:
    study = validate(read_yaml(*files))
    assert study.study == ("demo" if OVERRIDES in files else "pilot")
    assert {arm.reward for arm in study.arms.values()} == {"shaped", "random"}


def test_the_demo_states_only_what_it_changes() -> None:
    demo = parse_yaml(OVERRIDES.read_text(encoding="utf-8"), "demo")
    same = [".".join(path) for path in leaves(demo) if path[0] != "demo_policy" and get(PILOT_RAW, path) == get(demo, path)]
    assert not same, f"{OVERRIDES} repeats config.yaml: {same}"


# Sections


def paths(model: type[BaseModel], raw: dict[str, Any], at: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Every key that the models know, with its annotation: taken from the models, so that none is forgotten."""
    for name, field in model.model_fields.items():
        inner, here = _model(field.annotation), (*at, name)
        raw_inner = raw.get(name, {}) if is_override((*at, name, "")) else raw[name]
        if inner is None:
            yield here, field.annotation
        elif isinstance(inner, dict):
            for key in raw_inner:
                yield from paths(inner["values"], raw_inner[key], (*here, key))
        else:
            yield from paths(inner, raw_inner, here)


def _model(annotation: Any) -> Any:
    """The section inside `Section | None` or `dict[Name, Section]`; None for a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) is dict:
        return {"values": get_args(annotation)[1]}
    found = [_model(part) for part in get_args(annotation) if part is not NoneType and _is_union(annotation)]
    return next((part for part in found if part), None)


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, UnionType, Annotated)


def _options(annotation: Any) -> Iterator[object]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    for part in get_args(annotation):
        yield from _options(part)


def alternatives(annotation: Any, value: Any) -> list[Any]:
    """Other values to try for one key; the first one that makes a valid study is taken."""
    literals = list(_options(annotation))
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        step = 1 if isinstance(value, int) else 0.01
        return [value + step, value - step, value * 2, value / 2]
    if isinstance(value, list):
        return [value[:-1], [*value, 1], [*value, "x"]]
    if isinstance(value, str):
        return literals or [f"{value}x"]
    return [*literals, 1, 2, 8, True, "x", ["x"], [str(number) for number in range(PILOT_RAW["retention"]["items"])]]


WILDCARDS = {"study", "training.seeds", "evaluation.splits", "baselines", "retention.ids_from"}
"""Keys that only decide which jobs there are, where they write, and which files are their inputs: no job but the plan reads them."""
BASE_TASKS = {"tasks.family", "tasks.quantity", "tasks.unit_price"}
DEMO = BASE_TASKS | {"demo_policy.threads", "protocol", "retention.system", "retention.prompt"}
CONTENT: dict[str, set[str]] = {
    **{name: {name} for name in ("model", "protocol", "decoding", "reward", "training", "evaluation", "retention", "statistics")},
    **{f"tasks-{split}": BASE_TASKS | {"tasks.seed", f"tasks.splits.{split}"} for split in ("train", "dev", "test")},
    "preflight": {"preflight", "training.group_size"},
    **{f"arm-{arm}": {f"arms.{arm}"} for arm in ("pilot", "placebo")},
    "plan": {
        "plan",
        "tasks.splits.test",
        "training.seeds",
        "evaluation.trials",
        "arms.pilot.reward",
        "arms.placebo.reward",
        "retention.items",
        "statistics.alpha",
    },
    "demo-base": DEMO | {"demo_policy.architecture", "demo_policy.drill", "demo_policy.base"},
    "demo-sft": DEMO | {"demo_policy.sft", "demo_policy.sft_lora"},
}
"""Section -> the keys whose change, or a change below them, must change it. No other section may change."""


def expected(path: Key, demo: bool) -> set[str]:
    prefixes = {".".join(path[:length]) for length in range(1, len(path) + 1)}
    hit = {name for name, keys in CONTENT.items() if keys & prefixes and (demo or not name.startswith("demo-"))}
    if path == ("evaluation", "splits"):  # dev alone: the plan's items become dev's, which only in the demo are fewer
        return {"plan"} if demo else set()
    return hit & {"plan"} if prefixes & WILDCARDS else hit


EVERY_KEY = dict(paths(Study, DEMO_RAW))


@pytest.mark.parametrize("path", EVERY_KEY, ids=".".join)
def test_every_key_changes_exactly_its_sections(path: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "order_totalx", FAMILIES["order_total"])
    edits = 0
    for raw in (PILOT_RAW, DEMO_RAW):
        if path[0] == "demo_policy" and raw is PILOT_RAW:
            continue
        now = None if is_override(path) else get(raw, path)  # the shipped arms override nothing
        for value in alternatives(EVERY_KEY[path], now):
            edited = put(raw, path, value)
            try:
                validate(edited)
            except ConfigError:
                continue
            if value == now:
                continue
            assert changed(raw, edited) == expected(path, raw is DEMO_RAW), value
            edits += 1
            break
    assert edits, "no other value of this key makes a valid study: extend `alternatives`"


def test_every_key_of_the_files_is_among_the_keys_tried() -> None:
    assert set(leaves(DEMO_RAW)) == {path for path in EVERY_KEY if not is_override(path)}
    settings = {path[1:] for path in EVERY_KEY if path[0] == "training"} - {("seeds",)}
    for arm in DEMO_RAW["arms"]:
        assert {path[3:] for path in EVERY_KEY if is_override(path) and path[1] == arm} == settings, "every setting can be overridden"


def test_another_seed_changes_the_plan_alone() -> None:
    assert changed(PILOT_RAW, put(PILOT_RAW, "training.seeds", [42, 43])) == {"plan"}


def test_another_arm_changes_no_other_section() -> None:
    assert changed(PILOT_RAW, put(PILOT_RAW, "arms.second", {"reward": "shaped"})) == {"arm-second", "plan"}


def test_another_placebo_leaves_the_plan() -> None:
    assert changed(PILOT_RAW, put(PILOT_RAW, "arms.second", {"reward": "random"})) == {"arm-second"}


def test_the_plan_knows_the_judged_design() -> None:
    found = sections(validate(PILOT_RAW))["plan"]
    assert {name: found[name] for name in ("items", "trials", "seeds", "arms", "retention_items", "alpha")} == {
        "items": 32, "trials": 1, "seeds": 1, "arms": 1, "retention_items": 64, "alpha": 0.05,
    }  # fmt: skip
    small = put(put(PILOT_RAW, "evaluation.splits", ["dev"]), "tasks.splits.dev", 20)
    assert sections(validate(small))["plan"]["items"] == 20


def test_a_verdict_from_fewer_seeds_than_the_interval_needs_is_refused() -> None:
    assert INFERENTIAL_SEEDS == 5
    assert "statistics.seeds_for_verdict" in refusal(put(PILOT_RAW, "statistics.seeds_for_verdict", INFERENTIAL_SEEDS - 1))


def test_an_arm_trains_with_the_settings_below_its_overrides() -> None:
    study = validate(put(PILOT_RAW, "arms.short", {"reward": "binary", "training": {"steps": 4, "kl": 0, "lora": {"r": 8}}}))
    assert sections(study)["arm-short"] == {"reward": "binary", "training": {"steps": 4, "kl": 0.0, "lora": {"r": 8}}}
    base, short = (study.arms[arm].settings(study.training) for arm in ("pilot", "short"))
    assert base == validate(sections(study)["training"], TrainingSettings)
    assert short == base.model_copy(update={"steps": 4, "kl": 0.0, "lora": base.lora.model_copy(update={"r": 8})})


@pytest.mark.parametrize("raw", [PILOT_RAW, DEMO_RAW], ids=["pilot", "demo"])
@given(data=st.data())
def test_sections_are_the_same_bytes_in_any_key_order(raw: dict[str, Any], data: st.DataObject) -> None:
    def shuffled(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: shuffled(value[key]) for key in data.draw(st.permutations(list(value)))}

    assert cut(shuffled(raw)) == cut(raw)


def test_canonical_sorts_at_every_depth() -> None:
    assert canonical({"b": [{"d": 1, "c": "ä"}], "a": None}) == '{"a":null,"b":[{"c":"ä","d":1}]}'


def test_the_sections_are_these() -> None:
    assert cut(DEMO_RAW).keys() == CONTENT.keys()
    assert cut(PILOT_RAW).keys() == {name for name in CONTENT if not name.startswith("demo-")}


def test_equal_numbers_are_equal_bytes() -> None:
    assert cut(put(PILOT_RAW, "training.kl", 1)) == cut(put(PILOT_RAW, "training.kl", 1.0))
    assert cut(put(PILOT_RAW, "training.learning_rate", 0.00001)) == cut(put(PILOT_RAW, "training.learning_rate", 1e-5))


@pytest.mark.parametrize("raw", [PILOT_RAW, DEMO_RAW], ids=["pilot", "demo"])
def test_sections_are_plain_json(raw: dict[str, Any]) -> None:
    for content in cut(raw).values():
        assert canonical(json.loads(content)) == content
        assert "\n" not in content


def test_canonical_refuses_what_json_cannot_say() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical({"kl": float("nan")})

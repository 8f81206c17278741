"""Sections: an edit of the configuration changes what it must, and no other section's bytes."""

import json
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from raw_studies import DEMO_RAW, PILOT_RAW, Key, get, leaves, put

from agentrl.evidence.section import ConfigError, validate
from agentrl.study.config import Study, validate_study
from agentrl.study.sections import canonical, sections
from agentrl.tasks.families import FAMILIES
from agentrl.training.settings import TrainingSettings


def is_override(path: Key) -> bool:
    """Whether a key is one of an arm's own training settings or its warm-up: optional, and absent from the shipped files."""
    return path[0] == "arms" and path[2:3] in (("training",), ("warmup",))


def cut(raw: dict[str, Any]) -> dict[str, str]:
    """Section name -> the bytes that a job reads."""
    return {name: canonical(content) for name, content in sections(validate_study(raw)).items()}


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """Names of the sections that come, go or differ."""
    old, new = cut(before), cut(after)
    return {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}


def paths(model: type[BaseModel], raw: dict[str, Any], at: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Every key that the models know, with its annotation: taken from the models, so that none is forgotten."""
    for name, field in model.model_fields.items():
        inner, here = _model(field.annotation), (*at, name)
        raw_inner = raw.get(name, {}) if is_override((*at, name, "")) else raw[name]
        if inner is None or here[2:] == ("warmup",):  # none of a warm-up's keys stands alone
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
    found = [
        _model(part)
        for part in get_args(annotation)
        if part is not NoneType and _is_union(annotation)
    ]
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
        return literals or [f"{value}x", *LEVELS]
    warmup = {"steps": 2, "batch_size": 2, "learning_rate": 1e-3}
    return [
        *literals,
        1,
        2,
        8,
        0.5,
        True,
        "x",
        ["x"],
        warmup,
        [str(number) for number in range(PILOT_RAW["retention"]["items"])],
    ]


LEVELS = sorted({level for family in FAMILIES.values() for level in family.scaffolds})
"""Values of `tasks.scaffold`: names that a family knows, not the configuration."""
WILDCARDS = {
    "study",
    "finished",
    "training.seeds",
    "evaluation.splits",
    "evaluation.select",
    "baselines",
    "retention.ids_from",
}
"""Keys that only decide which jobs there are, where they write, and which files are their inputs: no job but the plan reads them."""
BASE_TASKS = {"tasks.family", "tasks.scaffold", "tasks.quantity", "tasks.unit_price"}
DEMO = BASE_TASKS | {"demo_policy.threads", "protocol", "retention.system", "retention.prompt"}
CONTENT: dict[str, set[str]] = {
    **{
        name: {name}
        for name in (
            "model",
            "protocol",
            "decoding",
            "reward",
            "training",
            "evaluation",
            "retention",
            "statistics",
        )
    },
    **{
        f"tasks-{split}": BASE_TASKS | {"tasks.seed", f"tasks.splits.{split}"}
        for split in ("train", "dev", "test")
    },
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
    hit = {
        name
        for name, keys in CONTENT.items()
        if keys & prefixes and (demo or not name.startswith("demo-"))
    }
    if path == (
        "evaluation",
        "splits",
    ):  # dev alone: the plan's items become dev's, which only in the demo are fewer
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
                validate_study(edited)
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
        assert {
            path[3:] for path in EVERY_KEY if path[:3] == ("arms", arm, "training")
        } == settings, "every setting can be overridden"


def test_another_seed_changes_the_plan_alone() -> None:
    assert changed(PILOT_RAW, put(PILOT_RAW, "training.seeds", [42, 43])) == {"plan"}


def test_another_arm_changes_no_other_section() -> None:
    assert changed(PILOT_RAW, put(PILOT_RAW, "arms.second", {"reward": "shaped"})) == {
        "arm-second",
        "plan",
    }


def test_another_placebo_leaves_the_plan() -> None:
    assert changed(PILOT_RAW, put(PILOT_RAW, "arms.second", {"reward": "random"})) == {"arm-second"}


def test_with_a_choice_on_dev_the_plan_knows_one_judged_arm() -> None:
    two = put(PILOT_RAW, "arms.second", {"reward": "shaped"})
    assert sections(validate_study(two))["plan"]["arms"] == 2
    selecting = put(two, "evaluation.select", "dev")
    assert sections(validate_study(selecting))["plan"]["arms"] == 1
    assert changed(two, selecting) == {"plan"}


def test_the_plan_knows_the_judged_design() -> None:
    found = sections(validate_study(PILOT_RAW))["plan"]
    assert {name: found[name] for name in ("items", "trials", "seeds", "arms", "retention_items", "alpha")} == {
        "items": 32, "trials": 1, "seeds": 1, "arms": 1, "retention_items": 64, "alpha": 0.05,
    }  # fmt: skip
    small = put(put(PILOT_RAW, "evaluation.splits", ["dev"]), "tasks.splits.dev", 20)
    assert sections(validate_study(small))["plan"]["items"] == 20


def test_an_arm_trains_with_the_settings_below_its_overrides() -> None:
    study = validate_study(
        put(
            PILOT_RAW,
            "arms.short",
            {"reward": "binary", "training": {"steps": 4, "kl": 0, "lora": {"r": 8}}},
        )
    )
    assert sections(study)["arm-short"] == {
        "reward": "binary",
        "training": {"steps": 4, "kl": 0.0, "lora": {"r": 8}},
        "warmup": None,
    }
    base, short = (study.arms[arm].settings(study.training) for arm in ("pilot", "short"))
    assert base == validate(sections(study)["training"], TrainingSettings)
    assert short == base.model_copy(
        update={"steps": 4, "kl": 0.0, "lora": base.lora.model_copy(update={"r": 8})}
    )


@pytest.mark.parametrize("raw", [PILOT_RAW, DEMO_RAW], ids=["pilot", "demo"])
@given(data=st.data())
def test_sections_are_the_same_bytes_in_any_key_order(
    raw: dict[str, Any], data: st.DataObject
) -> None:
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
    assert cut(put(PILOT_RAW, "training.learning_rate", 0.00001)) == cut(
        put(PILOT_RAW, "training.learning_rate", 1e-5)
    )


@pytest.mark.parametrize("raw", [PILOT_RAW, DEMO_RAW], ids=["pilot", "demo"])
def test_sections_are_plain_json(raw: dict[str, Any]) -> None:
    for content in cut(raw).values():
        assert canonical(json.loads(content)) == content
        assert "\n" not in content


def test_canonical_refuses_what_json_cannot_say() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical({"kl": float("nan")})

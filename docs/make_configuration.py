"""Make `docs/configuration.md`, every key of the configuration, from the settings models: `python docs/make_configuration.py`.

A field's description is the string that stands below it in its class. `tests/study/test_configuration_reference.py` fails where the page is
not what this makes, or where a field has none.
"""

import ast
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, get_origin

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from agentrl.evidence.section import Section
from agentrl.study.config import Study
from agentrl.study.strictyaml import read_yaml
from agentrl.training.settings import TrainingOverrides

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "configuration.md"
HEAD = """# Configuration

Every key of `config.yaml`. Made by `python docs/make_configuration.py` from the settings models (`scripts/agentrl/*/settings.py`,
`scripts/agentrl/study/config.py`); edit those, not this page.

- The default is what stands in [config.yaml](../config.yaml). Its comments tag each number: `recipe`, the pilot's own value;
  `derived`, from what; `ours`, why.
- A profile's `configfile`, then `--config` on the command line, override it key by key. Mappings are merged, so neither can remove an arm.
- Everything is checked before any job: unknown keys, wrong types and impossible combinations are refused by key path.
- YAML is read strictly. A duplicate key, a key that is no string, an integer with a leading zero: refused by line. `1e-5` is a number,
  `yes` a string.
- A seed is a whole number from 0 to 4294967295. Shares and differences are fractions, not per cent.
"""
DEMO = "Its defaults are those of `profiles/demo/study.yaml`; in `config.yaml` it is null."
MOST_SEED = 2**32 - 1
BOUNDS = {
    "exclusiveMinimum": "above {}",
    "minimum": "from {}",
    "exclusiveMaximum": "below {}",
    "maximum": "to {}",
    "minItems": "{} or more",
}
TYPES = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "null": "null",
}


def page() -> str:
    """The whole page."""
    demo = read_yaml(ROOT / "profiles" / "demo" / "study.yaml")["demo_policy"]
    defaults = {**read_yaml(ROOT / "config.yaml"), "demo_policy": demo}
    texts, parts = descriptions(Study), [HEAD]
    top = [name for name in Study.model_fields if inner(Study, name) is None]
    parts.append(
        table("Top level", "", [row(Study, name, name, {"": defaults[name]}) for name in top])
    )
    for name in Study.model_fields:
        model = inner(Study, name)
        if model is not None:
            many = (
                get_origin(Study.model_fields[name].annotation) is dict
            )  # its keys are names that a user gives
            intro = "\n".join([texts[name], *([DEMO] if name == "demo_policy" else [])])
            found = rows(
                model,
                f"{name}.{{name}}" if many else name,
                defaults[name] if many else {"": defaults[name]},
            )
            parts.append(table(f"`{name}`", intro, list(found)))
    return "\n".join(parts)


def table(title: str, intro: str, found: list[str]) -> str:
    """One section of the page."""
    head = ["| key | type | bounds | default | what it is |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([f"## {title}", "", *([intro, ""] if intro else []), *head, *found, ""])


def rows(model: type[Section], path: str, defaults: Mapping[str, Any]) -> Iterator[str]:
    """Table rows of a section and of those inside it; `defaults` by the name whose they are, which is empty but for `arms`."""
    for name in model.model_fields:
        here, section = f"{path}.{name}", inner(model, name)
        below = {whose: value[name] for whose, value in defaults.items() if value and name in value}
        if section is None:
            yield row(model, name, here, below)
        else:
            kind = "any keys of `training`" if section is TrainingOverrides else "section"
            yield f"| `{here}` | {kind} |  |  | {descriptions(model)[name]} |"
            yield from () if section is TrainingOverrides else rows(section, here, below)


def row(model: type[Section], name: str, path: str, defaults: Mapping[str, Any]) -> str:
    """One key as a table row."""
    kind, bounds = typed(model.model_json_schema()["properties"][name])
    shown = ", ".join(f"{whose} `{written(value)}`".strip() for whose, value in defaults.items())
    return f"| `{path}` | {kind} | {bounds} | {shown} | {descriptions(model)[name]} |"


def written(value: Any) -> str:
    """A default as YAML has it: text without quotes unless it needs them, everything else as JSON."""
    return (
        value
        if isinstance(value, str) and "\n" not in value
        else json.dumps(value, ensure_ascii=False)
    )


def typed(schema: Mapping[str, Any]) -> tuple[str, str]:
    """Type and bounds of a key, in words, from its JSON schema."""
    if "anyOf" in schema:
        kinds, bounds = zip(*map(typed, schema["anyOf"]), strict=True)
        return " or ".join(kinds), ", ".join(filter(None, bounds))
    if "enum" in schema or "const" in schema:
        return "one of " + ", ".join(
            f"`{value}`" for value in schema.get("enum", [schema.get("const")])
        ), ""
    if schema["type"] == "array":
        kind, bounds = typed(schema["items"])
        return f"list: {kind}", ", ".join(filter(None, [bounds, limits(schema)]))
    if schema.get("maximum") == MOST_SEED:
        return "seed", ""
    return TYPES[schema["type"]], limits(schema)


def limits(schema: Mapping[str, Any]) -> str:
    """Bounds of one schema, in words."""
    found = [text.format(f"{schema[name]:g}") for name, text in BOUNDS.items() if name in schema]
    return " ".join([*found, *(["letters, digits, `_`, `-`"] if "pattern" in schema else [])])


def inner(model: type[Section], name: str) -> type[Section] | None:
    """The section that a field holds, as it is, optional, or as the values of a mapping; None for a plain value."""
    kind = model.model_fields[name].annotation
    return next(
        (
            part
            for part in (kind, *get_args(kind))
            if inspect.isclass(part) and issubclass(part, Section)
        ),
        None,
    )


def descriptions(model: type[Section]) -> dict[str, str]:
    """Field -> the string below it, of a class and those that it extends."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if (
            issubclass(base, Section)
            and base is not Section
            and base.__module__.startswith("agentrl.")
        ):
            found |= _described(base)
    return found


def _described(model: type[Section]) -> dict[str, str]:
    body = ast.parse(inspect.getsource(model)).body[0].body  # type: ignore[attr-defined]
    found: dict[str, str] = {}
    for field, below in pairwise(body):
        text = below.value if isinstance(below, ast.Expr) else None
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Constant)
        ):
            found[field.target.id] = " ".join(str(text.value).split())
    return found


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")

"""Reading YAML strictly: what YAML 1.1 would silently reinterpret is refused with its line.

Duplicate keys, keys that are no strings and integers that look octal are errors; `1e-5` is a number, `yes` a string.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from agentrl.evidence.section import ConfigError, merge


class _StrictLoader(yaml.SafeLoader):
    """YAML 1.2 core scalars; refuses duplicate keys, keys that are no strings and integers with leading zeros."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - pyyaml's own class-level table

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[str, int] = {}
        for key_node, _ in node.value:
            key, line = self.construct_object(key_node, deep=True), key_node.start_mark.line + 1
            if not isinstance(key, str):  # JSON would make 1 and "1" the same key
                raise ConfigError(f"line {line}: key {key!r} is not a string; quote it")
            if key in seen:
                raise ConfigError(
                    f"line {line}: key {key!r} stands already on line {seen[key]}; keep one of them"
                )
            seen[key] = line
        return super().construct_mapping(node, deep)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        value = super().construct_scalar(node)
        plain = isinstance(node, yaml.ScalarNode) and node.style is None
        if plain and re.fullmatch(r"[-+]?0\d+", str(value)):
            line = node.start_mark.line + 1
            raise ConfigError(
                f"line {line}: {value} has a leading zero; write a decimal integer, or quote it as a string"
            )
        return value


_SCALARS = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+",
}
for _tag, _pattern in _SCALARS.items():
    _StrictLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), None
    )


def parse_yaml(text: str, origin: str) -> Any:
    """Parse YAML strictly; `ConfigError` names `origin` and the line."""
    try:
        return yaml.load(text, _StrictLoader)  # noqa: S506 - a SafeLoader
    except ConfigError as error:
        raise ConfigError(f"{origin}, {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{origin}: not YAML: {error}") from None


def read_yaml(*paths: str | Path) -> dict[str, Any]:
    """Read and deep-merge YAML files, later ones over earlier ones, as Snakemake merges `configfile`s."""
    merged: dict[str, Any] = {}
    for path in map(Path, paths):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{path}: cannot be read ({error}); give an existing YAML file in UTF-8"
            ) from None
        content = parse_yaml(text, str(path))
        if not isinstance(content, dict):
            raise ConfigError(
                f"{path}: expected a mapping of sections at the top, found {type(content).__name__}"
            )
        merged = merge(merged, content)
    return merged


def retype(value: Any, path: str = "") -> Any:
    """Undo Snakemake's stringification: `--config` and a profile's `config:` turn nested scalars into strings.

    For such overrides only: a file's `"012"` is a string because its quotes say so.
    """
    if isinstance(value, Mapping):
        return {key: retype(item, f"{path}.{key}" if path else key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [retype(item, path) for item in value]
    scalar = isinstance(value, str) and any(
        re.fullmatch(pattern, value) for pattern in _SCALARS.values()
    )
    return parse_yaml(value, f"--config {path}") if scalar else value

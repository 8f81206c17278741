"""Which source files a command rests on, and what they mean: its own file and everything of this package it imports.

Snakemake tracks a script by mtime and an imported module not at all, so a rule reads a file of `code_params(...)` (`rules/code.smk`).
A module counts by its syntax tree: comments, layout and the formatter's line length are not part of it, so they rerun nothing. Docstrings
are: those of the tools stand in the prompt. What the tree cannot show is named in `UNSEEN`: data files and templates read at run time.
"""

import ast
import hashlib
import inspect
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parents[2]
PACKAGE = "agentrl"
UNSEEN: dict[str, tuple[str, ...]] = {
    "agentrl/tasks/families.py": ("agentrl/tasks/data/*.json",),
    "agentrl/report/summary.py": ("agentrl/report/templates/*",),
}
"""Files a module reads or imports at run time, as globs under scripts/."""
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_DIGITS = 16
"""Of a digest in a rule's params: enough to tell two versions of a file apart."""


@cache
def closure(command: str) -> tuple[str, ...]:
    """Source files of one command, sorted, relative to scripts/. Raises FileNotFoundError for an unknown command."""
    found: set[str] = set()
    pending = [command]
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += _dependencies(name)
    return tuple(sorted(found))


@cache
def code_digest(command: str) -> str:
    """Canonical JSON of file -> sha256 of its bytes over a command's closure: for the record, where it is compared with the commit."""
    return json.dumps(
        {
            name: hashlib.sha256((SCRIPTS / name).read_bytes()).hexdigest()
            for name in closure(command)
        }
    )


def code_params(command: str) -> list[str]:
    """`file digest` of each file of a command's closure, for the `params` of `rules/code.smk`.

    One value per file, because Snakemake names the values that differ: `snakemake -n` then says which file changed.
    """
    return [f"{name} {meaning(name)[:_DIGITS]}" for name in closure(command)]


@cache
def meaning(name: str) -> str:
    """Hex digest of what a file below scripts/ says: a module's syntax tree, the data of a JSON file, else its bytes."""
    path = SCRIPTS / name
    if path.suffix == ".py":
        said = "\0".join(_said(_tree(name)))
    elif path.suffix == ".json":
        said = json.dumps(json.loads(path.read_text(encoding="utf-8")), ensure_ascii=False)
    else:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()


def _said(node: ast.AST) -> Iterator[str]:
    """A syntax tree as words. Not `ast.dump`: its text changes with the version of Python where fields are added, empty ones are no matter.

    Docstrings without their indentation, as `inspect.getdoc` gives them to whoever reads them.
    """
    yield type(node).__name__
    docstring = _docstring(node) if isinstance(node, _DOCUMENTED) else None
    for field, value in ast.iter_fields(node):
        if value is None or value == []:
            continue
        yield field
        for part in value if isinstance(value, list) else [value]:
            if docstring is not None and part is docstring:
                yield inspect.cleandoc(docstring.value.value)
            elif isinstance(part, ast.AST):
                yield from _said(part)
            else:
                yield repr(part)
        yield "."


def _docstring(node: Any) -> Any:
    """The statement that is a node's docstring, or None."""
    first = node.body[0] if node.body else None
    text = first.value if isinstance(first, ast.Expr) else None
    return first if isinstance(text, ast.Constant) and isinstance(text.value, str) else None


@cache
def _tree(name: str) -> ast.Module:
    return ast.parse((SCRIPTS / name).read_text(encoding="utf-8"))


@cache
def _dependencies(name: str) -> tuple[str, ...]:
    unseen = [file for pattern in UNSEEN.get(name, ()) for file in sorted(SCRIPTS.glob(pattern))]
    modules = _imports(_tree(name)) if name.endswith(".py") else ()
    return tuple(file.relative_to(SCRIPTS).as_posix() for file in [*modules, *unseen])


def _imports(tree: ast.Module) -> Iterator[Path]:
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(alias.name)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from _files(node.module)
            for alias in node.names:
                yield from _files(f"{node.module}.{alias.name}")


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Every statement below a node. Not `ast.walk`: it visits expressions too, which took half of a plan's time."""
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        inner = getattr(node, block, ())
        for statement in (
            inner if isinstance(inner, list) else ()
        ):  # a lambda's body is an expression
            yield statement
            yield from _statements(statement)


def _files(module: str) -> Iterator[Path]:
    """The module's file and the packages above it, whose `__init__` runs too."""
    parts = module.split(".")
    if parts[0] != PACKAGE:
        return
    for depth in range(1, len(parts) + 1):
        base = SCRIPTS.joinpath(*parts[:depth])
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            if file.is_file():
                yield file

"""Which source files a command rests on: its own file and everything of this package it imports, followed through the AST.

Snakemake tracks a script by mtime and an imported module not at all, so a rule reads a file of `code_params(...)` (`rules/code.smk`).
What the AST cannot see is named in `UNSEEN`: data files and engines chosen at run time.
"""

import ast
import hashlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1]
PACKAGE = "agentrl"
UNSEEN: dict[str, tuple[str, ...]] = {
    "agentrl/tasks.py": ("agentrl/data/*.json",),
    "agentrl/report.py": ("agentrl/templates/*",),
}
"""Files a module reads or imports at run time, as globs under scripts/."""


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
    """Canonical JSON of file -> sha256 over a command's closure, for the record."""
    return json.dumps({name: hashlib.sha256((SCRIPTS / name).read_bytes()).hexdigest() for name in closure(command)})


def code_params(command: str) -> list[str]:
    """`file sha256` of each file of a command's closure, for the `params` of `rules/code.smk`.

    One value per file, because Snakemake names the values that differ: `snakemake -n` then says which file changed. Sixteen digits tell
    two versions of a file apart; the whole digests stand in the provenance.
    """
    return [f"{name} {digest[:16]}" for name, digest in json.loads(code_digest(command)).items()]


@cache
def _dependencies(name: str) -> tuple[str, ...]:
    path = SCRIPTS / name
    unseen = [file for pattern in UNSEEN.get(name, ()) for file in sorted(SCRIPTS.glob(pattern))]
    modules = _imports(path) if path.suffix == ".py" else ()
    return tuple(file.relative_to(SCRIPTS).as_posix() for file in [*modules, *unseen])


def _imports(path: Path) -> Iterator[Path]:
    for node in _statements(ast.parse(path.read_text(encoding="utf-8"))):
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
        for statement in inner if isinstance(inner, list) else ():  # a lambda's body is an expression
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

"""Sources: a command's digest covers exactly what it rests on, and what it rests on stays easy to see."""

import ast
import importlib.util
import json
import shutil
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType

import pytest

from agentrl.evidence.sources import SCRIPTS, UNSEEN, closure, code_digest, code_params, meaning

COMMANDS = sorted(path.name for path in SCRIPTS.glob("*.py"))
LIBRARY = sorted(
    path
    for path in (SCRIPTS / "agentrl").rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
)
LIGHT = (
    "compare.py",
    "summarize.py",
    "plan.py",
    "generate_tasks.py",
    "write_section.py",
    "show_study.py",
)
"""Commands that must start in a moment."""


def sources_of(scripts: Path) -> ModuleType:
    """The module as another checkout would load it, with caches of its own."""
    spec = importlib.util.spec_from_file_location(
        "elsewhere", scripts / "agentrl/evidence/sources.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of scripts/ to edit."""
    return Path(
        shutil.copytree(SCRIPTS, tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small package with every form of import."""
    files = {
        "x.py": "import json\nfrom agentrl import a\n",
        "agentrl/__init__.py": "",
        "agentrl/evidence/__init__.py": "",
        "agentrl/a.py": "def late():\n    import agentrl.deep.b\n",
        "agentrl/deep/__init__.py": "from agentrl.beside import value\n",
        "agentrl/deep/b.py": "from agentrl.deep.c import name as other\nimport torch.agentrl\n",
        "agentrl/deep/c.py": "from agentrl import deep, a\nname = 1\n",
        "agentrl/beside.py": "value = 1\n",
        "agentrl/unused.py": "import agentrl.beside\n",
        "y.py": "import agentrl.beside as b\n",
    }
    for name, text in files.items():
        path = tmp_path / "scripts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    shutil.copyfile(
        SCRIPTS / "agentrl/evidence/sources.py", tmp_path / "scripts/agentrl/evidence/sources.py"
    )
    return tmp_path / "scripts"


def test_imports_are_followed_through_modules_packages_and_functions(tree: Path) -> None:
    found = sources_of(tree).closure("x.py")
    inside = ("__init__.py", "a.py", "beside.py", "deep/__init__.py", "deep/b.py", "deep/c.py")
    assert found == (*(f"agentrl/{name}" for name in inside), "x.py")
    assert sources_of(tree).closure("y.py") == ("agentrl/__init__.py", "agentrl/beside.py", "y.py")


@pytest.mark.parametrize(
    "text",
    [
        "if True:\n    pass\nelse:\n    {}\n",
        "try:\n    pass\nexcept ImportError:\n    {}\n",
        "try:\n    pass\nfinally:\n    {}\n",
        "with open('x') as f:\n    {}\n",
        "for x in ():\n    pass\nelse:\n    {}\n",
        "match 1:\n    case 1:\n        {}\n",
        "class A:\n    async def f(self):\n        {}\n",
        "key = lambda x: x\n{}\n",
    ],
)
def test_an_import_in_any_statement_is_followed(tree: Path, text: str) -> None:
    (tree / "z.py").write_text(text.format("import agentrl.beside"))
    assert "agentrl/beside.py" in sources_of(tree).closure("z.py")


def test_params_name_each_file_with_the_start_of_its_digest() -> None:
    assert code_params("plan.py") == [f"{name} {meaning(name)[:16]}" for name in closure("plan.py")]


def test_closure_of_a_real_command() -> None:
    found = set(closure("compare.py"))
    wanted = (
        "judgement/comparison.py",
        "judgement/settings.py",
        "statistics/paired.py",
        "rollout/trajectory.py",
        "evidence/stage.py",
    )
    assert {"compare.py", "agentrl/__init__.py", *(f"agentrl/{name}" for name in wanted)} <= found
    strangers = (
        "training/grpo.py",
        "policy/loading.py",
        "policy/merge.py",
        "report/summary.py",
        "tasks/families.py",
        "study/config.py",
    )
    assert not {"summarize.py", *(f"agentrl/{name}" for name in strangers)} & found
    assert not any(name.endswith(".json") for name in found), (
        "a comparison does not rest on the names of cities"
    )
    data = {
        f"agentrl/tasks/data/{path.name}"
        for path in (SCRIPTS / "agentrl/tasks/data").glob("*.json")
    }
    assert data <= set(closure("generate_tasks.py"))
    assert "agentrl/report/templates/summary.md.j2" in closure("summarize.py")
    assert {
        "agentrl/engine/__init__.py",
        "agentrl/engine/transformers.py",
        "agentrl/training/grpo.py",
    } <= set(closure("train.py"))


@pytest.mark.parametrize("command", COMMANDS)
def test_digest_is_canonical_and_names_every_file(command: str) -> None:
    found = json.loads(code_digest(command))
    assert tuple(found) == closure(command)
    assert command in found


def test_no_job_reads_the_whole_study_s_configuration() -> None:
    """Else an edit of one wing's settings would rerun the jobs of all."""
    for name in COMMANDS:
        assert not [file for file in closure(name) if file.startswith("agentrl/study/")], name


SAME = {
    "a comment": lambda text: "# a comment\n" + text + "\n# another\n",
    "blank lines": lambda text: text.replace("json\n", "json\n\n\n"),
    "double quotes": lambda text: text.replace("'x'", '"x"'),
    "parentheses": lambda text: text.replace("return a", "return (a)"),
    "a call over several lines": lambda text: text.replace(
        "f(a, b)", "f(\n        a,\n        b,\n    )"
    ),
    "a string in two parts": lambda text: text.replace('"one two"', '("one " "two")'),
    "a deeper docstring": lambda text: text.replace(
        "    Second line.", "        Second line."
    ).replace('    """First', '    """First'),
}
OTHER = {
    "a word of a docstring": lambda text: text.replace("Second", "Another"),
    "a name": lambda text: text.replace("a, b", "a, c"),
    "a number": lambda text: text.replace("1", "2"),
    "an annotation": lambda text: text.replace("-> str", "-> int"),
    "a statement more": lambda text: text + "X = 1\n",
    "an import": lambda text: text.replace("import json", "import json, os"),
}
MODULE = '''import json
def f(a, b=1) -> str:
    """First line.

    Second line.
    """
    f(a, b)
    g("one two", 'x')
    return a
'''


@pytest.mark.parametrize("change", SAME)
def test_a_module_means_the_same(tree: Path, change: str) -> None:
    (tree / "agentrl/a.py").write_text(MODULE)
    before = sources_of(tree).meaning("agentrl/a.py")
    (tree / "agentrl/a.py").write_text(SAME[change](MODULE))
    assert SAME[change](MODULE) != MODULE
    assert sources_of(tree).meaning("agentrl/a.py") == before


@pytest.mark.parametrize("change", OTHER)
def test_a_module_means_something_else(tree: Path, change: str) -> None:
    (tree / "agentrl/a.py").write_text(MODULE)
    before = sources_of(tree).meaning("agentrl/a.py")
    (tree / "agentrl/a.py").write_text(OTHER[change](MODULE))
    assert sources_of(tree).meaning("agentrl/a.py") != before


@pytest.mark.parametrize("width", [60, 200])
def test_another_width_of_the_formatter_means_the_same(checkout: Path, width: int) -> None:
    before = {command: sources_of(checkout).code_params(command) for command in COMMANDS}
    ruff = Path(sys.executable).with_name("ruff")
    subprocess.run(
        [ruff, "format", "--quiet", "--isolated", "--line-length", str(width), checkout], check=True
    )
    assert {command: sources_of(checkout).code_params(command) for command in COMMANDS} == before


@pytest.mark.parametrize("command", ["train.py", "summarize.py"])
def test_an_edit_anywhere_in_the_closure_changes_the_digest(checkout: Path, command: str) -> None:
    before = sources_of(checkout).code_digest(command)
    for name in json.loads(before):
        path = checkout / name
        content = path.read_bytes()
        path.write_bytes(content + b"\n")
        after = sources_of(checkout).code_digest(command)
        path.write_bytes(content)
        assert {
            file for file, found in json.loads(after).items() if found != json.loads(before)[file]
        } == {name}


def test_an_edit_elsewhere_does_not(checkout: Path) -> None:
    before = sources_of(checkout).code_digest("compare.py")
    rest = [
        path
        for path in checkout.rglob("*")
        if path.is_file() and path.relative_to(checkout).as_posix() not in json.loads(before)
    ]
    assert len(rest) > 10
    for path in rest:
        path.write_bytes(path.read_bytes() + b"\n")
    (checkout / "agentrl/new.py").touch()
    assert sources_of(checkout).code_digest("compare.py") == before


def test_a_new_data_file_changes_the_digest(checkout: Path) -> None:
    before = sources_of(checkout).code_digest("generate_tasks.py")
    (checkout / "agentrl/tasks/data/new.json").write_text("{}")
    assert sources_of(checkout).code_digest("generate_tasks.py") != before


def test_unknown_command_is_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"evaluate\.py"):
        closure("evaluate.py")


def test_files_that_imports_do_not_show_are_declared() -> None:
    """Every pattern matches, and every file of the library that is no module is matched."""
    matched = {
        module: {path for pattern in patterns for path in SCRIPTS.glob(pattern)}
        for module, patterns in UNSEEN.items()
    }
    assert all((SCRIPTS / module).is_file() for module in matched)
    assert all(matched.values())
    assert {path for path in LIBRARY if path.suffix != ".py"} <= set().union(*matched.values())


@pytest.mark.parametrize(
    "path",
    [*SCRIPTS.glob("*.py"), *(path for path in LIBRARY if path.suffix == ".py")],
    ids=lambda path: path.stem,
)
def test_imports_are_absolute_and_static(path: Path) -> None:
    """What the closure relies on: it does not follow relative imports and cannot see those made from a string."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}:{node.lineno}"
        called = node.func if isinstance(node, ast.Call) else None
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", None)
        assert name not in ("import_module", "__import__"), f"{path}:{node.lineno}"


def test_the_library_never_imports_a_command() -> None:
    for name in COMMANDS:
        assert [file for file in closure(name) if "/" not in file] == [name]


def test_no_command_shadows_a_package() -> None:
    """A command's folder comes first on its path: scripts/statistics.py would break torch."""
    packages = sys.stdlib_module_names | set(packages_distributions())
    assert {"statistics", "torch"} <= packages
    assert not {path.stem for path in SCRIPTS.iterdir()} & packages


def test_light_commands_never_import_torch_and_load_only_their_closure() -> None:
    """In fresh processes, because the closure is compared with what Python really loads."""
    code = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); found = {}\n"
        "for name in sys.argv[2:]:\n"
        "    for old in [m for m in sys.modules if m.split('.')[0] == 'agentrl']: del sys.modules[old]\n"
        "    __import__(name)\n"
        "    found[name] = [m.__file__ for k, m in sys.modules.items() if k.split('.')[0] == 'agentrl']\n"
        "json.dump([found, sorted({m.split('.')[0] for m in sys.modules})], sys.stdout)"
    )
    modules = ("statistics.paired", "judgement.comparison", "report.summary", "training.health")
    names = [name.removesuffix(".py") for name in LIGHT] + [
        f"agentrl.{module}" for module in modules
    ]
    done = subprocess.run(
        [sys.executable, "-c", code, str(SCRIPTS), *names],
        capture_output=True,
        text=True,
        check=True,
    )
    found, packages = json.loads(done.stdout)
    assert not {"torch", "transformers", "trl", "peft", "datasets"} & set(packages)
    for name, files in found.items():
        relative = {Path(file).relative_to(SCRIPTS).as_posix() for file in files}
        command = name.replace(".", "/") + ".py"
        modules = {
            file
            for file in closure(command)
            if file.startswith("agentrl/") and file.endswith(".py")
        }
        assert relative == modules | {"agentrl/__init__.py"}

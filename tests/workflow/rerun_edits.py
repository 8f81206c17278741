"""What the changes of the rerun suite do to a copy of a finished study.

Copies share their files with the study (`rerun_bases.link_tree`), so a file is replaced, never written in place.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from agentrl.study.strictyaml import read_yaml

STUDY = "results/micro"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text, encoding="utf-8")


def append(path: Path, text: str) -> None:
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content + text.encode())


def meant(path: Path) -> None:
    """Another meaning of a source file, which need not run: a comment or an empty line would be none."""
    if path.suffix == ".json":
        said = json.loads(path.read_text(encoding="utf-8"))
        write(
            path,
            json.dumps(
                [*said, "edited"] if isinstance(said, list) else said | {"edited": 1},
                ensure_ascii=False,
            ),
        )
    else:
        append(path, "EDITED = 1\n")


def commented(folder: Path) -> None:
    """A comment in every module below scripts/, and every JSON file laid out anew."""
    for path in sorted((folder / "scripts").rglob("*")):
        if path.suffix == ".py":
            append(path, "\n# a comment\n")
        elif path.suffix == ".json":
            write(path, json.dumps(json.loads(path.read_text(encoding="utf-8"))))


def reformatted(folder: Path) -> None:
    """Every module laid out by the formatter for another width."""
    for path in (folder / "scripts").rglob("*.py"):
        append(path, "")  # a file of its own: the formatter writes in place
    ruff = Path(sys.executable).with_name("ruff")
    subprocess.run(
        [ruff, "format", "--quiet", "--isolated", "--line-length", "90", "scripts"],
        cwd=folder,
        check=True,
    )


def touched(folder: Path, only: tuple[str, ...] = ("",)) -> None:
    """New time stamps, in an order that Snakemake would mind; on copies, for time stamps belong to the shared file."""
    now = time.time()
    found = [
        path
        for name in only
        for path in (
            [folder / name] if (folder / name).is_file() else sorted((folder / name).rglob("*"))
        )
    ]
    for number, path in enumerate(
        path
        for path in found
        if path.is_file() and not path.is_symlink() and ".snakemake" not in path.parts
    ):
        append(path, "")
        os.utime(path, (now - number, now - number))


def moved(folder: Path) -> Path:
    return folder.rename(folder.with_name("moved"))


def cloned(folder: Path) -> Path:
    """`git clone` of the sources, then results and Snakemake's metadata copied over; every time stamp is new."""
    clone = folder.with_name("clone")
    commit(folder)
    git(folder, "clone", "-q", ".", str(clone))
    for name in (STUDY, ".snakemake"):
        shutil.copytree(folder / name, clone / name, symlinks=True, copy_function=shutil.copyfile)
    return clone


def branched(folder: Path) -> None:
    """Edit and commit on a branch, come back: same bytes, new time stamps."""
    commit(folder)
    git(folder, "checkout", "-q", "-b", "away")
    for name in ("scripts/agentrl/training/grpo.py", "rules/train.smk", "config.yaml"):
        append(folder / name, "\n# away\n")
    git(folder, "commit", "-qam", "away")
    git(folder, "checkout", "-q", "-")


def commit(folder: Path) -> None:
    git(folder, "init", "-q")
    write(folder / ".gitignore", "/results/\n/.snakemake/\n__pycache__/\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "start")


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def earlier(folder: Path) -> None:
    """The same study once more, as an earlier one to take baselines from."""
    shutil.copytree(
        folder / STUDY, folder / "results/earlier", symlinks=True, copy_function=os.link
    )


def without_weights(folder: Path) -> None:
    found = list((folder / STUDY / "arms").rglob("*.safetensors"))
    assert len(found) >= 4
    for path in found:
        path.unlink()


def without_placebo(folder: Path) -> None:
    rewrite(folder, lambda raw: {**raw, "arms": {"pilot": raw["arms"]["pilot"]}})


def reordered(folder: Path) -> None:
    def reverse(value: Any) -> Any:
        return (
            {key: reverse(value[key]) for key in reversed(value)}
            if isinstance(value, dict)
            else value
        )

    rewrite(folder, reverse)


def rewrite(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """config.yaml changed and written anew: quotes, comments and layout go, too."""
    text = yaml.safe_dump(
        change(deepcopy(read_yaml(folder / "config.yaml"))), sort_keys=False, allow_unicode=True
    )
    write(folder / "config.yaml", text)


def reshelled(path: Path, rule: str) -> None:
    """Another shell command of one rule."""
    head, keyword, tail = re.split(
        rf"((?:rule|checkpoint) {rule}:)", path.read_text(encoding="utf-8"), maxsplit=1
    )
    before, after = tail.split("shell:", 1)
    changed = re.sub(r'"', '"true; ', after, count=1)
    write(path, f"{head}{keyword}{before}shell:{changed}")


def repinned(folder: Path) -> Path:
    """Other pinned packages: the node is looked at again, and nothing that ran under the old ones is made anew."""
    append(folder / "envs/cpu.txt", "another==1.0\n")
    return folder


def unimportant(folder: Path) -> None:
    path = folder / "rules/train.smk"
    text = path.read_text(encoding="utf-8").replace(
        "        gpu=1,\n", "        gpu=1,\n        mem_mb=4000,\n    threads: 2\n"
    )
    assert "mem_mb" in text
    write(path, text.replace("train/log.txt", "train/output.txt", 1))


def altered(folder: Path) -> None:
    """A manifest with other bytes: its consumers rerun (and refuse it); the stage that wrote it does not."""
    append(folder / STUDY / "policies/baseline/agent-test/manifest.json", "\n")

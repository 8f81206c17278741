"""Changes of code, rules, files and time stamps, with the jobs that they must plan; and the whole suite."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from micro_study import ROOT
from rerun_configs import RESIZED, chosen, combinations, designs, keys
from rerun_edits import (
    STUDY,
    altered,
    append,
    branched,
    cloned,
    commented,
    meant,
    moved,
    reformatted,
    repinned,
    reshelled,
    touched,
    unimportant,
    without_placebo,
    without_weights,
    write,
)
from rerun_expected import COMMANDS, UNDECIDED, Design, code, first_jobs, reads, users, wave
from rerun_studies import CHOSEN, DEMO, MICRO, MICRO_RAW, WARMUP, Change

SCRIPTS = ROOT / "scripts"
SOURCES = ("scripts", "rules", "Snakefile", "config.yaml", "envs")
_LONG_AGO = 1_000_000_000
"""Seconds since 1970: older than any output."""


def sources(imported: Mapping[str, list[str]]) -> Iterator[Change]:
    """Another meaning of each file below scripts/; comments and layout, which mean nothing."""
    for path in sorted(SCRIPTS.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            name = path.relative_to(SCRIPTS).as_posix()
            expected = wave(users(name, imported), MICRO)
            yield Change(
                f"scripts/{name} edited",
                expected,
                edit=lambda f, name=name: meant(f / "scripts" / name),
            )
    yield Change("a comment in every module, every JSON file laid out anew", set(), edit=commented)
    yield Change("every module formatted for another width", set(), edit=reformatted)
    library = (
        "demo/policy.py",
        "demo/demonstrations.py",
        "training/warmup.py",
        "training/supervised.py",
        "training/expert.py",
    )
    for name in (
        "train_demo_base.py",
        "train_demo_sft.py",
        "warm_up.py",
        *(f"agentrl/{file}" for file in library),
    ):
        expected = wave(users(name, imported), DEMO)
        yield Change(
            f"scripts/{name} edited, demo",
            expected,
            edit=lambda f, name=name: meant(f / "scripts" / name),
            base="demo",
        )

    def backdated(folder: Path) -> None:
        path = folder / "scripts/agentrl/training/grpo.py"
        meant(path)
        os.utime(path, (_LONG_AGO, _LONG_AGO))

    yield Change(
        "a module edited, dated before every output",
        wave(users("agentrl/training/grpo.py", imported), MICRO),
        edit=backdated,
    )
    everything = wave(users("agentrl/tasks/families.py", imported), MICRO)
    yield Change(
        "a new data file",
        everything,
        edit=lambda f: write(f / "scripts/agentrl/tasks/data/new.json", "{}"),
    )
    yield Change(
        "a new module that nobody imports",
        set(),
        edit=lambda f: write(f / "scripts/agentrl/new.py", ""),
    )


def rules() -> Iterator[Change]:
    """A comment in each rule file, and each rule's shell command changed."""
    for path in [ROOT / "Snakefile", *sorted((ROOT / "rules").glob("*.smk"))]:
        name = path.relative_to(ROOT).as_posix()
        yield Change(
            f"a comment in {name}",
            set(),
            edit=lambda f, name=name: append(f / name, "\n# a comment\n"),
        )
        for rule, command in COMMANDS.items():
            text = path.read_text(encoding="utf-8")
            if re.search(rf"(rule|checkpoint) {rule}:", text):
                design, base = (
                    (DEMO, "demo") if rule.startswith(("demo_", "warmup")) else (MICRO, "micro")
                )
                design, base = (CHOSEN, "chosen") if rule == "select" else (design, base)
                texts = [] if design.demo else [code(command)]  # a faked rule calls no command
                expected = wave(
                    [*texts, *(job for job in reads(design) if job.split()[0] == rule)], design
                )
                yield Change(
                    f"rule {rule}: shell",
                    expected,
                    edit=lambda f, n=name, r=rule: reshelled(f / n, r),
                    base=base,
                )
    yield Change("rule train: log, threads, resources", set(), edit=unimportant)


def behind_gates(imported: Mapping[str, list[str]]) -> Iterator[Change]:
    """Changes behind training's gates, together with a change of the gates: Snakemake alone would overlook them (`rules/code.smk`)."""
    gates = {"plan": {"wanted_difference": 0.2}, "preflight": {"groups": 3}}
    first = [*first_jobs("plan"), *first_jobs("preflight")]
    modules = (
        "training/grpo.py",
        "policy/merge.py",
        "evaluation/retention.py",
        "judgement/comparison.py",
        "evidence/ledger.py",
    )
    for name in (f"agentrl/{module}" for module in modules):
        expected = wave([*first, *users(name, imported)], MICRO)
        yield Change(
            f"other gates, and {name} edited",
            expected,
            gates,
            edit=lambda f, name=name: meant(f / "scripts" / name),
        )
    for rule, file in (
        ("train", "train"),
        ("merge", "merge"),
        ("statistics", "statistics"),
        ("summary", "report"),
    ):
        expected = wave([*first, code(COMMANDS[rule])], MICRO)
        yield Change(
            f"other gates, and rule {rule}: shell",
            expected,
            gates,
            edit=lambda f, r=rule, n=file: reshelled(f / f"rules/{n}.smk", r),
        )
    expected = wave([*first, *RESIZED], Design(arms=("pilot",)))
    yield Change(
        "other gates, and the arm placebo taken out", expected, gates, edit=without_placebo
    )
    expected = wave([*first, "section design", code("select_arm.py")], Design(chosen=UNDECIDED))
    yield Change(
        "other gates, and dev chooses the arm", expected, gates | {"evaluation": {"select": "dev"}}
    )
    expected = wave([*first, "section arm-pilot", code("warm_up.py")], Design(warmed=("pilot",)))
    yield Change(
        "other gates, and an arm warmed up",
        expected,
        gates | {"arms": {"pilot": {"warmup": WARMUP}}},
    )
    for name in ("agentrl/training/grpo.py", "agentrl/evaluation/agent.py"):
        expected = wave(["gpu_preflight", *users(name, imported)], MICRO)
        yield Change(
            f"other pins, and {name} edited",
            expected,
            edit=lambda f, n=name: meant(repinned(f) / "scripts" / n),
        )
    expected = wave(["gpu_preflight", code("train.py")], MICRO)
    yield Change(
        "other pins, and rule train: shell",
        expected,
        edit=lambda f: reshelled(repinned(f) / "rules/train.smk", "train"),
    )


def files() -> Iterator[Change]:
    """Outputs, time stamps and the start checkpoint."""
    yield Change("nothing", set())
    yield Change("touch of everything", set(), edit=touched)
    yield Change(
        "every source dated after every output", set(), edit=lambda f: touched(f, only=SOURCES)
    )
    yield Change("moved folder", set(), edit=moved)
    yield Change("a fresh clone with copied results and metadata", set(), edit=cloned)
    yield Change("another branch with other code, and back", set(), edit=branched)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        expected = wave({"start"}, MICRO)
        yield Change(
            f"start checkpoint: {name} changed",
            expected,
            edit=lambda f, n=name: append(f / "tests/data/start" / n, "\n"),
        )
    yield Change(
        "start checkpoint: another file beside it",
        set(),
        edit=lambda f: write(f / "tests/data/start/optimizer.pt", ""),
    )
    yield Change(
        "start checkpoint: gone", set(), edit=lambda f: shutil.rmtree(f / "tests/data/start")
    )
    for name, job in DELETED.items():
        yield Change(
            f"{name} deleted", wave({job}, MICRO), edit=lambda f, n=name: (f / STUDY / n).unlink()
        )
    yield Change("weights deleted to save space", set(), edit=without_weights)
    yield Change("envs/cpu.txt: a pin changed", wave({"gpu_preflight"}, MICRO), edit=repinned)
    yield Change(
        "GPU rules under another Python",
        set(),
        environment={"PIPELINE_GPU_PYTHON": "/elsewhere/bin/python"},
    )
    yield Change(
        "the node held to another lock",
        wave({"gpu_preflight"}, MICRO),
        environment={"PIPELINE_GPU_LOCK": "envs/gpu-cu12.txt"},
    )
    for name in (
        "preflight/gpu/report.json",
        "code/train.txt",
        "summary/provenance.json",
        "arms/pilot/seed-3/train/log.txt",
        "policies/baseline/agent-test/status.json",
    ):
        yield Change(f"{name} deleted", set(), edit=lambda f, n=name: (f / STUDY / n).unlink())
    yield Change("evidence altered below a manifest", wave({"statistics"}, MICRO), edit=altered)


DELETED = {
    "config/reward.json": "section reward",
    "tasks/dev/tasks.jsonl": "tasks dev",
    "freeze/train.json": "freeze train",
    "start/manifest.json": "start",
    "arms/pilot/seed-3/train/manifest.json": "train pilot 3",
    "arms/pilot/seed-3/train/steps.jsonl": "train pilot 3",
    "arms/placebo/seed-3/merged/merge.json": "merge placebo 3",
    "policies/baseline/agent-test/episodes.jsonl": "evaluate_agent baseline test",
    "policies/pilot/seed-3/retention/manifest.json": "evaluate_retention pilot/seed-3",
    "statistics/verdict.json": "statistics",
    "plan/power.png": "plan",
    "summary/summary.md": "summary",
    "summary/runs.md": "summary",
}
"""Output -> the job that makes it."""


def imports() -> dict[str, list[str]]:
    """Command -> the files of the library that importing it really loads, in one process that imports torch once."""
    program = (
        "import importlib, json, os, sys; scripts = sys.argv[1]; sys.path.insert(0, scripts); found = {}\n"
        "for name in sys.argv[2:]:\n"
        "    for old in [m for m in sys.modules if m.split('.')[0] == 'agentrl']: del sys.modules[old]\n"
        "    importlib.import_module(name.removesuffix('.py'))\n"
        "    loaded = [m.__file__ for k, m in sys.modules.items() if k.split('.')[0] == 'agentrl']\n"
        "    found[name] = [os.path.relpath(file, scripts) for file in loaded]\n"
        "print(json.dumps(found))"
    )
    command = [sys.executable, "-c", program, str(SCRIPTS), *COMMANDS.values()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = yaml.safe_load(done.stdout.splitlines()[-1])
    return found


def all_changes(imported: Mapping[str, list[str]], demo_raw: dict[str, Any]) -> list[Change]:
    """The whole suite."""
    everywhere = [
        *files(),
        *designs(),
        *chosen(),
        *combinations(),
        *keys(MICRO_RAW, MICRO),
        *keys(demo_raw, DEMO),
    ]
    return [*everywhere, *sources(imported), *rules(), *behind_gates(imported)]

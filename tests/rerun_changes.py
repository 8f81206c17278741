"""Every change of the rerun suite, with the jobs that it must plan: configuration keys, code, rules, time stamps, folders."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from micro_study import ROOT
from raw_studies import get, put
from rerun_edits import (
    STUDY,
    altered,
    append,
    branched,
    cloned,
    earlier,
    moved,
    reordered,
    repinned,
    reshelled,
    touched,
    unimportant,
    without_placebo,
    without_weights,
    write,
)  # fmt: skip
from rerun_expected import COMMANDS, DESIGN_KEYS, UNDECIDED, Design, code, first_jobs, reads, users, wave
from test_sections import EVERY_KEY, alternatives, is_override

from agentrl.config import ConfigError, validate
from agentrl.strictyaml import read_yaml
from agentrl.tasks import FAMILIES

MICRO, DEMO, CHOSEN = Design(), Design(seeds=(21,), demo=True, warmed=("pilot",)), Design(chosen="pilot")
MICRO_RAW = read_yaml(ROOT / "config.yaml", ROOT / "tests/micro.yaml")
SCRIPTS = ROOT / "scripts"
SOURCES = ("scripts", "rules", "Snakefile", "config.yaml", "envs")
WARMUP = {"steps": 2, "batch_size": 2, "learning_rate": 1e-3}
_LONG_AGO = 1_000_000_000
"""Seconds since 1970: older than any output."""


@dataclass(frozen=True)
class Change:
    """One change to a finished study and the jobs it must rerun."""

    name: str
    expected: set[str]
    config: Mapping[str, Any] | None = None
    """Merged over the study's configuration."""
    edit: Callable[[Path], object] | None = None
    """Done to a copy of the project."""
    base: str = "micro"
    """`micro`; `demo`: the faked study that makes its own start policy and warms an arm up; `chosen`: micro, where dev chose the arm."""
    environment: Mapping[str, str] | None = None
    """Variables on top of the environment."""

    def __str__(self) -> str:
        return self.name


def keys(raw: dict[str, Any], design: Design) -> Iterator[Change]:
    """One change of each configuration key, taken from the models: a key without a line in `KEYS` ends in an error."""
    for path in EVERY_KEY:
        key = ".".join(path)
        if key in DESIGN_KEYS or (path[0] == "demo_policy" and not design.demo) or key == "tasks.family":
            continue
        first = first_jobs(key)
        if design.demo and not {"section demo-base", "section demo-sft"} & set(first):
            continue  # compared on the micro study already
        value = other_value(raw, path)
        changed = value_config(path, value)
        warmed = path[2:] == ("warmup",)
        expected = wave([*first, code("warm_up.py")], replace(design, warmed=(path[1],))) if warmed else wave(first, design)
        yield Change(f"{key}: {value!r:.40}", expected, changed, base="demo" if design.demo else "micro")


VALUES: dict[str, Any] = {
    "retention.ids": [f"item-{number}" for number in range(MICRO_RAW["retention"]["items"])],
    "model.start": "tests/data/elsewhere",
    "training.group_size": 2,
}
"""Keys whose other value has to fit the study."""
assert len(FAMILIES) == 1, "a second family exists: let `keys` change tasks.family"


def other_value(raw: dict[str, Any], path: tuple[str, ...]) -> Any:
    """Another value of a key that makes a valid study. Raises ValueError where `VALUES` must name one."""
    now = None if is_override(path) else get(raw, path)
    key = ".".join(path)
    for value in [VALUES[key]] if key in VALUES else alternatives(EVERY_KEY[path], now):
        try:
            validate(put(raw, path, value))
        except ConfigError:
            continue
        if value != now:
            return value
    raise ValueError(f"{key}: no other value of {now!r} makes a valid study; name one in VALUES")


def value_config(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """The configuration that sets one key."""
    for name in reversed(path):
        value = {name: value}
    return value


def designs() -> Iterator[Change]:
    """Keys that say which jobs there are."""
    more_seeds = Design(seeds=(3, 4))
    fresh = {job for job in reads(more_seeds) if job.endswith((" 4", "seed-4")) or "/seed-4 " in job}
    first = ["section plan", *RESIZED, *fresh]
    yield Change("one more seed", wave(first, more_seeds), {"training": {"seeds": [3, 4]}})
    more_arms = Design(arms=("pilot", "placebo", "short"))
    for reward in ("binary", "random"):
        first = ["section arm-short", *RESIZED, *(["section plan"] if reward == "binary" else [])]
        yield Change(f"one more arm, {reward}", wave(first, more_arms), {"arms": {"short": {"reward": reward}}})
    first = ["section arm-short", "section plan", *RESIZED, code("warm_up.py")]
    arm = {"reward": "shaped", "warmup": WARMUP}
    yield Change("one more arm, with a warm-up", wave(first, replace(more_arms, warmed=("short",))), {"arms": {"short": arm}})
    yield Change("another seed", wave(["section design", *fresh], Design(seeds=(4,))), {"training": {"seeds": [4]}})
    yield Change("the arm placebo taken out", wave(RESIZED, Design(arms=("pilot",))), edit=without_placebo)
    yield Change("test split alone", wave(["section design", "plan"], Design(splits=("test",))), {"evaluation": {"splits": ["test"]}})
    yield Change(
        "dev split alone", wave(["section design", "section plan", "plan"], Design(splits=("dev",))), {"evaluation": {"splits": ["dev"]}}
    )
    yield Change("another name of the study", set(reads(MICRO)), {"study": "other"})
    yield Change(
        "an earlier study's agent baseline",
        (wave({"statistics"}, MICRO) | {"code_adopt_baseline", "adopt_agent dev", "adopt_agent test"}),
        {"baselines": {"agent": "results/earlier"}},
        edit=earlier,
    )
    yield Change(
        "an earlier study's retention baseline",
        wave({"statistics"}, MICRO) | {"code_adopt_baseline", "adopt_retention"},
        {"baselines": {"retention": "results/earlier"}},
        edit=earlier,
    )
    imported = wave({"freeze retention"}, MICRO) - {"evaluate_retention baseline"} | {"code_import_retention", "import_retention"}
    yield Change(
        "a recorded retention baseline", imported, {"baselines": {"retention": "sft.json"}}, edit=lambda f: write(f / "sft.json", "{}")
    )
    named = {"retention": {"ids_from": "ids.txt"}}
    yield Change("retention ids from a file", wave({"retention_items"}, MICRO), named, edit=lambda f: write(f / "ids.txt", "1\n"))


RESIZED = ["section design", "plan", "gpu_preflight"]
"""Of a design with more or fewer candidates: the plan says how many jobs come, the node needs room for their checkpoints."""


def chosen() -> Iterator[Change]:
    """The choice on dev: switched on and off, and what changes below and above it."""
    select, passed_over = ["section design", "plan", code("select_arm.py")], f"{STUDY}/policies/placebo/seed-3"
    yield Change("dev chooses the arm", wave(select, Design(chosen=UNDECIDED)), {"evaluation": {"select": "dev"}})
    changes: dict[str, tuple[set[str], dict[str, Any] | None, Callable[[Path], object] | None]] = {
        "nothing": (set(), None, None),
        "touch of everything": (set(), None, touched),
        "no choice any more": (wave(["section design", "plan"], MICRO), {"evaluation": {"select": None}}, None),
        "statistics.margin": (wave(first_jobs("statistics.margin"), CHOSEN), {"statistics": {"margin": 0.1}}, None),
        "training.kl": (wave(first_jobs("training.kl"), CHOSEN), {"training": {"kl": 0.1}}, None),
        "tasks.splits.test": (wave(first_jobs("tasks.splits.test"), CHOSEN), {"tasks": {"splits": {"test": 7}}}, None),
        "selection.json deleted": (wave({"select"}, CHOSEN), None, lambda f: (f / STUDY / "selection/selection.json").unlink()),
        "test of the arm passed over deleted": (set(), None, lambda f: shutil.rmtree(f / passed_over / "agent-test")),
        "dev of the arm passed over deleted": (
            wave({"evaluate_agent placebo/seed-3 dev"}, CHOSEN),
            None,
            lambda f: shutil.rmtree(f / passed_over / "agent-dev"),
        ),
        "the arm placebo taken out": (wave(RESIZED, replace(CHOSEN, arms=("pilot",))), None, without_placebo),
    }
    for name, (expected, config, edit) in changes.items():
        yield Change(f"dev chose: {name}", expected, config, edit, base="chosen")


def combinations() -> Iterator[Change]:
    """Changes of several keys, and of keys whose values stand elsewhere too."""
    lora, training = MICRO_RAW["training"]["lora"], first_jobs("training")
    swaps: dict[str, tuple[dict[str, Any], list[str]]] = {
        "lora.r 16 -> 32 beside another 32": ({"training": {"lora": {"r": 32}}}, training),
        "lora.r and lora.alpha swapped": ({"training": {"lora": {"r": lora["alpha"], "alpha": lora["r"]}}}, training),
        "steps and checkpoint_every swapped": ({"training": {"steps": 1, "checkpoint_every": 3}}, training),
        "temperature and top_p swapped": ({"decoding": {"temperature": 0.95, "top_p": 0.6}}, first_jobs("decoding")),
        "lookup and calculation rewards swapped": ({"reward": {"lookup": 0.25, "calculation": 0.15}}, first_jobs("reward")),
        "seeds of tasks and retention swapped": (
            {"tasks": {"seed": 42}, "retention": {"seed": 7}},
            [*first_jobs("tasks.seed"), *first_jobs("retention.seed")],
        ),
        "sizes of dev and test swapped": (
            {"tasks": {"splits": {"dev": 8, "test": 6}}},
            [*first_jobs("tasks.splits.dev"), *first_jobs("tasks.splits.test")],
        ),
        "quantity and unit_price swapped": (
            {"tasks": {"quantity": {"min": 11, "max": 49}, "unit_price": {"min": 2, "max": 9}}},
            first_jobs("tasks.quantity"),
        ),
        "rewards of both arms swapped": (
            {"arms": {"pilot": {"reward": "random"}, "placebo": {"reward": "shaped"}}},
            ["section arm-pilot", "section arm-placebo", "section design"],
        ),
        "a larger group of one arm": ({"arms": {"pilot": {"training": {"group_size": 8}}}}, ["section arm-pilot", "section preflight"]),
        "one more trial": ({"evaluation": {"trials": 2}}, first_jobs("evaluation.trials")),
    }
    for name, (config, first) in swaps.items():
        yield Change(name, wave(first, MICRO), config)
    same = {"training": {"learning_rate": 1e-3, "kl": 0.020}, "evaluation": {"splits": ["test", "dev"]}}
    yield Change("the same values, written otherwise; splits in another order", set(), same)
    yield Change("config.yaml in another key order, without comments", set(), edit=reordered)
    yield Change("comments in config.yaml", set(), edit=lambda f: append(f / "config.yaml", "\n# a comment\n"))


def sources(imported: Mapping[str, list[str]]) -> Iterator[Change]:
    """A byte more in each file below scripts/."""
    for path in sorted(SCRIPTS.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            name = path.relative_to(SCRIPTS).as_posix()
            expected = wave(users(name, imported), MICRO)
            yield Change(f"scripts/{name} edited", expected, edit=lambda f, name=name: append(f / "scripts" / name, "\n"))
    library = ("demo/policy.py", "demo/demonstrations.py", "warmup.py", "supervised.py", "expert.py")
    for name in ("train_demo_base.py", "train_demo_sft.py", "warm_up.py", *(f"agentrl/{file}" for file in library)):
        expected = wave(users(name, imported), DEMO)
        yield Change(f"scripts/{name} edited, demo", expected, edit=lambda f, name=name: append(f / "scripts" / name, "\n"), base="demo")

    def backdated(folder: Path) -> None:
        path = folder / "scripts/agentrl/grpo.py"
        append(path, "\n")
        os.utime(path, (_LONG_AGO, _LONG_AGO))

    yield Change("a module edited, dated before every output", wave(users("agentrl/grpo.py", imported), MICRO), edit=backdated)
    everything = wave(users("agentrl/tasks.py", imported), MICRO)
    yield Change("a new data file", everything, edit=lambda f: write(f / "scripts/agentrl/data/new.json", "{}"))
    yield Change("a new module that nobody imports", set(), edit=lambda f: write(f / "scripts/agentrl/new.py", ""))


def rules() -> Iterator[Change]:
    """A comment in each rule file, and each rule's shell command changed."""
    for path in [ROOT / "Snakefile", *sorted((ROOT / "rules").glob("*.smk"))]:
        name = path.relative_to(ROOT).as_posix()
        yield Change(f"a comment in {name}", set(), edit=lambda f, name=name: append(f / name, "\n# a comment\n"))
        for rule, command in COMMANDS.items():
            text = path.read_text(encoding="utf-8")
            if re.search(rf"(rule|checkpoint) {rule}:", text):
                design, base = (DEMO, "demo") if rule.startswith(("demo_", "warmup")) else (MICRO, "micro")
                design, base = (CHOSEN, "chosen") if rule == "select" else (design, base)
                texts = [] if design.demo else [code(command)]  # a faked rule calls no command
                expected = wave([*texts, *(job for job in reads(design) if job.split()[0] == rule)], design)
                yield Change(f"rule {rule}: shell", expected, edit=lambda f, n=name, r=rule: reshelled(f / n, r), base=base)
    yield Change("rule train: log, threads, resources", set(), edit=unimportant)


def behind_gates(imported: Mapping[str, list[str]]) -> Iterator[Change]:
    """Changes behind training's gates, together with a change of the gates: Snakemake alone would overlook them (`rules/code.smk`)."""
    gates = {"plan": {"wanted_difference": 0.2}, "preflight": {"groups": 3}}
    first = [*first_jobs("plan"), *first_jobs("preflight")]
    for name in ("agentrl/grpo.py", "agentrl/merge.py", "agentrl/retention.py", "agentrl/comparison.py", "agentrl/ledger.py"):
        expected = wave([*first, *users(name, imported)], MICRO)
        yield Change(f"other gates, and {name} edited", expected, gates, edit=lambda f, name=name: append(f / "scripts" / name, "\n"))
    for rule, file in (("train", "train"), ("merge", "merge"), ("statistics", "statistics"), ("summary", "report")):
        expected = wave([*first, code(COMMANDS[rule])], MICRO)
        yield Change(
            f"other gates, and rule {rule}: shell", expected, gates, edit=lambda f, r=rule, n=file: reshelled(f / f"rules/{n}.smk", r)
        )
    expected = wave([*first, *RESIZED], Design(arms=("pilot",)))
    yield Change("other gates, and the arm placebo taken out", expected, gates, edit=without_placebo)
    expected = wave([*first, "section design", code("select_arm.py")], Design(chosen=UNDECIDED))
    yield Change("other gates, and dev chooses the arm", expected, gates | {"evaluation": {"select": "dev"}})
    expected = wave([*first, "section arm-pilot", code("warm_up.py")], Design(warmed=("pilot",)))
    yield Change("other gates, and an arm warmed up", expected, gates | {"arms": {"pilot": {"warmup": WARMUP}}})
    for name in ("agentrl/grpo.py", "agentrl/evaluation.py"):
        expected = wave(["gpu_preflight", *users(name, imported)], MICRO)
        yield Change(f"other pins, and {name} edited", expected, edit=lambda f, n=name: append(repinned(f) / "scripts" / n, "\n"))
    expected = wave(["gpu_preflight", code("train.py")], MICRO)
    yield Change("other pins, and rule train: shell", expected, edit=lambda f: reshelled(repinned(f) / "rules/train.smk", "train"))


def files() -> Iterator[Change]:
    """Outputs, time stamps and the start checkpoint."""
    yield Change("nothing", set())
    yield Change("touch of everything", set(), edit=touched)
    yield Change("every source dated after every output", set(), edit=lambda f: touched(f, only=SOURCES))
    yield Change("moved folder", set(), edit=moved)
    yield Change("a fresh clone with copied results and metadata", set(), edit=cloned)
    yield Change("another branch with other code, and back", set(), edit=branched)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        expected = wave({"start"}, MICRO)
        yield Change(f"start checkpoint: {name} changed", expected, edit=lambda f, n=name: append(f / "tests/data/start" / n, "\n"))
    yield Change("start checkpoint: another file beside it", set(), edit=lambda f: write(f / "tests/data/start/optimizer.pt", ""))
    yield Change("start checkpoint: gone", set(), edit=lambda f: shutil.rmtree(f / "tests/data/start"))
    for name, job in DELETED.items():
        yield Change(f"{name} deleted", wave({job}, MICRO), edit=lambda f, n=name: (f / STUDY / n).unlink())
    yield Change("weights deleted to save space", set(), edit=without_weights)
    yield Change("envs/cpu.txt: a pin changed", wave({"gpu_preflight"}, MICRO), edit=repinned)
    yield Change("GPU rules under another Python", set(), environment={"PIPELINE_GPU_PYTHON": "/elsewhere/bin/python"})
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
    everywhere = [*files(), *designs(), *chosen(), *combinations(), *keys(MICRO_RAW, MICRO), *keys(demo_raw, DEMO)]
    return [*everywhere, *sources(imported), *rules(), *behind_gates(imported)]

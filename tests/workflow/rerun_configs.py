"""Changes of the configuration, with the jobs that they must plan: each key, the design, the choice on dev, several keys at once."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from raw_studies import get, put
from rerun_edits import STUDY, append, earlier, reordered, touched, without_placebo, write
from rerun_expected import DESIGN_KEYS, UNDECIDED, Design, code, first_jobs, reads, wave
from rerun_studies import CHOSEN, MICRO, MICRO_RAW, WARMUP, Change
from test_sections import EVERY_KEY, alternatives, is_override

from agentrl.evidence.section import ConfigError
from agentrl.study.config import validate_study
from agentrl.tasks.families import FAMILIES


def keys(raw: dict[str, Any], design: Design) -> Iterator[Change]:
    """One change of each configuration key, taken from the models: a key without a line in `KEYS` ends in an error."""
    for path in EVERY_KEY:
        key = ".".join(path)
        if (
            key in DESIGN_KEYS
            or (path[0] == "demo_policy" and not design.demo)
            or key == "tasks.family"
        ):
            continue
        first = first_jobs(key)
        if design.demo and not {"section demo-base", "section demo-sft"} & set(first):
            continue  # compared on the micro study already
        value = other_value(raw, path)
        changed = value_config(path, value)
        warmed = path[2:] == ("warmup",)
        expected = (
            wave([*first, code("warm_up.py")], replace(design, warmed=(path[1],)))
            if warmed
            else wave(first, design)
        )
        yield Change(
            f"{key}: {value!r:.40}", expected, changed, base="demo" if design.demo else "micro"
        )


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
            validate_study(put(raw, path, value))
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
    fresh = {
        job for job in reads(more_seeds) if job.endswith((" 4", "seed-4")) or "/seed-4 " in job
    }
    first = ["section plan", *RESIZED, *fresh]
    yield Change("one more seed", wave(first, more_seeds), {"training": {"seeds": [3, 4]}})
    more_arms = Design(arms=("pilot", "placebo", "short"))
    for reward in ("binary", "random"):
        first = ["section arm-short", *RESIZED, *(["section plan"] if reward == "binary" else [])]
        yield Change(
            f"one more arm, {reward}",
            wave(first, more_arms),
            {"arms": {"short": {"reward": reward}}},
        )
    first = ["section arm-short", "section plan", *RESIZED, code("warm_up.py")]
    arm = {"reward": "shaped", "warmup": WARMUP}
    yield Change(
        "one more arm, with a warm-up",
        wave(first, replace(more_arms, warmed=("short",))),
        {"arms": {"short": arm}},
    )
    yield Change(
        "another seed",
        wave(["section design", *fresh], Design(seeds=(4,))),
        {"training": {"seeds": [4]}},
    )
    yield Change(
        "the arm placebo taken out", wave(RESIZED, Design(arms=("pilot",))), edit=without_placebo
    )
    yield Change(
        "test split alone",
        wave(["section design", "plan"], Design(splits=("test",))),
        {"evaluation": {"splits": ["test"]}},
    )
    yield Change(
        "dev split alone",
        wave(["section design", "section plan", "plan"], Design(splits=("dev",))),
        {"evaluation": {"splits": ["dev"]}},
    )
    yield Change("another name of the study", set(reads(MICRO)), {"study": "other"})
    yield Change(
        "an earlier study's agent baseline",
        (
            wave({"statistics"}, MICRO)
            | {"code_adopt_baseline", "adopt_agent dev", "adopt_agent test"}
        ),
        {"baselines": {"agent": "results/earlier"}},
        edit=earlier,
    )
    yield Change(
        "an earlier study's retention baseline",
        wave({"statistics"}, MICRO) | {"code_adopt_baseline", "adopt_retention"},
        {"baselines": {"retention": "results/earlier"}},
        edit=earlier,
    )
    imported = wave({"freeze retention"}, MICRO) - {"evaluate_retention baseline"} | {
        "code_import_retention",
        "import_retention",
    }
    yield Change(
        "a recorded retention baseline",
        imported,
        {"baselines": {"retention": "sft.json"}},
        edit=lambda f: write(f / "sft.json", "{}"),
    )
    named = {"retention": {"ids_from": "ids.txt"}}
    yield Change(
        "retention ids from a file",
        wave({"retention_items"}, MICRO),
        named,
        edit=lambda f: write(f / "ids.txt", "1\n"),
    )


RESIZED = ["section design", "plan", "gpu_preflight"]
"""Of a design with more or fewer candidates: the plan says how many jobs come, the node needs room for their checkpoints."""


def chosen() -> Iterator[Change]:
    """The choice on dev: switched on and off, and what changes below and above it."""
    select, passed_over = (
        ["section design", "plan", code("select_arm.py")],
        f"{STUDY}/policies/placebo/seed-3",
    )
    yield Change(
        "dev chooses the arm",
        wave(select, Design(chosen=UNDECIDED)),
        {"evaluation": {"select": "dev"}},
    )
    changes: dict[str, tuple[set[str], dict[str, Any] | None, Callable[[Path], object] | None]] = {
        "nothing": (set(), None, None),
        "touch of everything": (set(), None, touched),
        "no choice any more": (
            wave(["section design", "plan"], MICRO),
            {"evaluation": {"select": None}},
            None,
        ),
        "statistics.margin": (
            wave(first_jobs("statistics.margin"), CHOSEN),
            {"statistics": {"margin": 0.1}},
            None,
        ),
        "training.kl": (wave(first_jobs("training.kl"), CHOSEN), {"training": {"kl": 0.1}}, None),
        "tasks.splits.test": (
            wave(first_jobs("tasks.splits.test"), CHOSEN),
            {"tasks": {"splits": {"test": 7}}},
            None,
        ),
        "selection.json deleted": (
            wave({"select"}, CHOSEN),
            None,
            lambda f: (f / STUDY / "selection/selection.json").unlink(),
        ),
        "test of the arm passed over deleted": (
            set(),
            None,
            lambda f: shutil.rmtree(f / passed_over / "agent-test"),
        ),
        "dev of the arm passed over deleted": (
            wave({"evaluate_agent placebo/seed-3 dev"}, CHOSEN),
            None,
            lambda f: shutil.rmtree(f / passed_over / "agent-dev"),
        ),
        "the arm placebo taken out": (
            wave(RESIZED, replace(CHOSEN, arms=("pilot",))),
            None,
            without_placebo,
        ),
    }
    for name, (expected, config, edit) in changes.items():
        yield Change(f"dev chose: {name}", expected, config, edit, base="chosen")


def combinations() -> Iterator[Change]:
    """Changes of several keys, and of keys whose values stand elsewhere too."""
    lora, training = MICRO_RAW["training"]["lora"], first_jobs("training")
    swaps: dict[str, tuple[dict[str, Any], list[str]]] = {
        "lora.r 16 -> 32 beside another 32": ({"training": {"lora": {"r": 32}}}, training),
        "lora.r and lora.alpha swapped": (
            {"training": {"lora": {"r": lora["alpha"], "alpha": lora["r"]}}},
            training,
        ),
        "steps and checkpoint_every swapped": (
            {"training": {"steps": 1, "checkpoint_every": 3}},
            training,
        ),
        "temperature and top_p swapped": (
            {"decoding": {"temperature": 0.95, "top_p": 0.6}},
            first_jobs("decoding"),
        ),
        "lookup and calculation rewards swapped": (
            {"reward": {"lookup": 0.25, "calculation": 0.15}},
            first_jobs("reward"),
        ),
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
        "a larger group of one arm": (
            {"arms": {"pilot": {"training": {"group_size": 8}}}},
            ["section arm-pilot", "section preflight"],
        ),
        "one more trial": ({"evaluation": {"trials": 2}}, first_jobs("evaluation.trials")),
    }
    for name, (config, first) in swaps.items():
        yield Change(name, wave(first, MICRO), config)
    same = {
        "training": {"learning_rate": 1e-3, "kl": 0.020},
        "evaluation": {"splits": ["test", "dev"]},
    }
    yield Change("the same values, written otherwise; splits in another order", set(), same)
    yield Change("config.yaml in another key order, without comments", set(), edit=reordered)
    yield Change(
        "comments in config.yaml",
        set(),
        edit=lambda f: append(f / "config.yaml", "\n# a comment\n"),
    )

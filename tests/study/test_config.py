"""Configuration: what is not one possible study is refused by key path and value."""

from pathlib import Path

import pytest
from raw_studies import DEMO_RAW, MAIN, OVERRIDES, PILOT_RAW, get, leaves, put, refusal

from agentrl.statistics.two_way import INFERENTIAL_SEEDS
from agentrl.study.config import validate_study
from agentrl.study.strictyaml import parse_yaml, read_yaml

REFUSED = [
    ("retention.items", 251, ["retention", "items is 251", "mgsm has 250"]),
    (
        "decoding.temperature",
        0,
        ["decoding.temperature is 0", "greedy ones are all equal", "above 0"],
    ),
    ("trainig", {"steps": 3}, ["trainig", "unknown key", '{"steps": 3}']),
    ("training.lora.rank", 16, ["training.lora.rank", "unknown key", "16"]),
    ("arms.pilot.rewrad", "shaped", ["arms.pilot.rewrad", "unknown key", '"shaped"']),
    ("training.steps", "32", ["training.steps", "valid integer", '"32"']),
    ("training.steps", 32.0, ["training.steps", "valid integer", "32.0"]),
    ("training.steps", True, ["training.steps", "valid integer", "true"]),
    ("training.steps", [3], ["training.steps", "valid integer", "[3]"]),
    ("training.steps", {"n": 3}, ["training.steps", "valid integer", '{"n": 3}']),
    ("training.steps", None, ["training.steps", "valid integer", "null"]),
    ("training.steps", 0, ["training.steps", "greater than or equal to 1", "0"]),
    (
        "training.gradient_checkpointing",
        "yes",
        ["training.gradient_checkpointing", "valid boolean", '"yes"'],
    ),
    (
        "training.gradient_checkpointing",
        1,
        ["training.gradient_checkpointing", "valid boolean", "1"],
    ),
    ("training.learning_rate", "1e-5", ["training.learning_rate", "valid number", '"1e-5"']),
    ("training.kl", float("inf"), ["training.kl", "finite", "Infinity"]),
    ("training.kl", float("nan"), ["training.kl", "finite", "NaN"]),
    ("training.seeds", [1, "2"], ["training.seeds.1", "valid integer", '"2"']),
    ("training.seeds", [2**32], ["training.seeds.0", str(2**32 - 1), str(2**32)]),
    ("training.seeds", [3, 4, 3], ["training", "seeds [3, 4, 3] repeat"]),
    ("training.seeds", [], ["training.seeds", "at least 1", "[]"]),
    ("training.loss_type", "ppo", ["training.loss_type", "'dapo'", '"ppo"']),
    ("training.kl_estimator", "k2", ["training.kl_estimator", "'k3' or 'k3_unbiased'", '"k2"']),
    (
        "training.importance_level",
        "word",
        ["training.importance_level", "'token' or 'sequence'", '"word"'],
    ),
    ("training.clip.low", 1.0, ["training.clip.low", "less than 1", "1.0"]),
    ("training.clip.high", 0.0, ["training.clip.high", "greater than 0", "0.0"]),
    ("training.entropy_quantile", 0.0, ["training.entropy_quantile", "greater than 0", "0.0"]),
    ("training.warmup_steps", 0.5, ["training.warmup_steps", "valid integer", "0.5"]),
    ("training.optimizer.name", "sgd", ["training.optimizer.name", "'adamw_torch'", '"sgd"']),
    ("training.optimizer.beta2", 1.0, ["training.optimizer.beta2", "less than 1", "1.0"]),
    (
        "training.optimizer.betas",
        [0.9, 0.99],
        ["training.optimizer.betas", "unknown key", "[0.9, 0.99]"],
    ),
    ("training.lora.dropout", 1.0, ["training.lora.dropout", "less than 1", "1.0"]),
    ("training.lora.init", "pissa", ["training.lora.init", "'kaiming' or 'gaussian'", '"pissa"']),
    ("training.lora.bias", "all", ["training.lora.bias", "unknown key", '"all"']),
    ("training.group_size", 3, ["training", "group_size 3", "batch_size 4"]),
    (
        "training.batch_size",
        4 * 129,
        ["training.batch_size", "129 tasks a step", "tasks.splits.train has 128"],
    ),
    ("study", "my study", ["study", "pattern", '"my study"']),
    ("study", "../x", ["study", "pattern", '"../x"']),
    ("study", 7, ["study", "valid string", "7"]),
    ("finished", "keep", ["finished", "'replace' or 'refuse'", '"keep"']),
    ("finished", True, ["finished", "'replace' or 'refuse'", "true"]),
    ("tasks.quantity", {"min": 3, "max": 2}, ["tasks.quantity", "min 3", "max 2"]),
    ("tasks.quantity", {"min": 12, "max": 13}, ["tasks.splits.train", "found 128", "178 pairs"]),
    ("tasks.splits.dev", 1959, ["tasks.splits.dev", "found 1959", "7832 pairs"]),
    ("tasks.quantity", {"min": 3}, ["tasks.quantity.max", "missing"]),
    ("tasks.family", "order_sum", ["tasks.family", "'order_sum'", "order_total"]),
    (
        "tasks.scaffold",
        "full",
        ["tasks.scaffold", "'full'", "order_total", "lookup, expression, none"],
    ),
    ("tasks.scaffold", 2, ["tasks.scaffold", "valid string", "2"]),
    (
        "model.start",
        None,
        ["model.start", "demo_policy", "found model.start null and demo_policy null"],
    ),
    (
        "demo_policy",
        DEMO_RAW["demo_policy"],
        ["model.start", "demo_policy", PILOT_RAW["model"]["start"], "demo_policy set"],
    ),
    ("arms.baseline", {"reward": "shaped"}, ["arms.baseline", "'baseline'"]),
    ("arms.a/b", {"reward": "shaped"}, ["arms.a/b", "pattern", '"a/b"']),
    ("arms", {}, ["arms", "at least 1", "{}"]),
    ("arms.pilot.reward", "dense", ["arms.pilot.reward", "'binary'", '"dense"']),
    ("arms.pilot.training", {"stesp": 3}, ["arms.pilot.training.stesp", "unknown key", "3"]),
    ("arms.pilot.training", {"steps": "3"}, ["arms.pilot.training.steps", "valid integer", '"3"']),
    (
        "arms.pilot.training",
        {"learning_rate": 0.0},
        ["arms.pilot.training.learning_rate", "greater than 0", "0.0"],
    ),
    (
        "arms.pilot.training",
        {"lora": {"rank": 8}},
        ["arms.pilot.training.lora.rank", "unknown key", "8"],
    ),
    (
        "arms.pilot.training",
        {"optimizer": {"beta3": 0.9}},
        ["arms.pilot.training.optimizer.beta3", "unknown key", "0.9"],
    ),
    ("arms.pilot.training", {"seeds": [1]}, ["arms.pilot.training.seeds", "unknown key", "[1]"]),
    (
        "arms.pilot.training",
        {"group_size": 3},
        ["arms.pilot.training: group_size 3", "batch_size 4"],
    ),
    (
        "arms.pilot.training",
        {"batch_size": 516},
        ["arms.pilot.training.batch_size takes 129 tasks", "tasks.splits.train has 128"],
    ),
    ("retention.ids", ["1", "2"], ["retention", "ids names 2", "items says 64"]),
    ("retention.ids", [*map(str, range(63)), "7"], ["retention", "ids repeat", "['7']"]),
    (
        "retention",
        {**PILOT_RAW["retention"], "ids": [*map(str, range(64))], "ids_from": "x"},
        ["retention", "ids_from ('x')", "null"],
    ),
    (
        "baselines.agent",
        "results/pilot/",
        ["baselines.agent", "'results/pilot/'", "this study itself"],
    ),
    ("baselines.agent", "sft.json", ["baselines.agent", "'sft.json'", "folder"]),
    (
        "baselines.retention",
        "results/pilot",
        ["baselines.retention", "'results/pilot'", "this study itself"],
    ),
    ("baselines.retention", 3, ["baselines.retention", "valid string", "3"]),
    ("retention.prompt", "Frage?", ["retention", "{question}", "found 0 times", "Frage?"]),
    ("evaluation.splits", ["train"], ["evaluation.splits.0", "'dev' or 'test'", '"train"']),
    ("arms.pilot.warmup", {"steps": 3}, ["arms.pilot.warmup.batch_size", "missing"]),
    ("evaluation.select", "test", ["evaluation.select", "'dev'", '"test"']),
    (
        "evaluation",
        {**PILOT_RAW["evaluation"], "splits": ["test"], "select": "dev"},
        ["evaluation", "must name both", "['test']"],
    ),
    ("decoding.top_p", 1.01, ["decoding.top_p", "less than or equal to 1", "1.01"]),
    ("protocol", None, ["protocol", "object", "null"]),
    ("study", {1, 2}, ["config is not valid", "set is not JSON serializable"]),
]


@pytest.mark.parametrize(("path", "value", "parts"), REFUSED)
def test_refusals_name_key_path_and_value(path: str, value: object, parts: list[str]) -> None:
    message = refusal(put(PILOT_RAW, path, value))
    assert [part for part in parts if part not in message] == []
    assert len(message.splitlines()) <= 3


def test_every_offence_is_named_at_once() -> None:
    broken = put(put(put(PILOT_RAW, "training.steps", -1), "tasks.seed", "x"), "typo", 1)
    assert {line.split(":")[0].strip() for line in refusal(broken).splitlines()[1:]} == {
        "training.steps",
        "tasks.seed",
        "typo",
    }


def test_a_missing_section_is_named() -> None:
    assert "  decoding: missing" in refusal(
        {key: value for key, value in PILOT_RAW.items() if key != "decoding"}
    )


# The shipped files


@pytest.mark.parametrize("files", [[MAIN], [MAIN, OVERRIDES]], ids=["pilot", "demo"])
def test_shipped_configurations_are_valid(files: list[Path]) -> None:
    study = validate_study(read_yaml(*files))
    assert study.study == ("demo" if OVERRIDES in files else "pilot")
    assert {arm.reward for arm in study.arms.values()} == {"shaped", "random"}


def test_the_demo_states_only_what_it_changes() -> None:
    demo = parse_yaml(OVERRIDES.read_text(encoding="utf-8"), "demo")
    same = [
        ".".join(path)
        for path in leaves(demo)
        if path[0] != "demo_policy" and get(PILOT_RAW, path) == get(demo, path)
    ]
    assert not same, f"{OVERRIDES} repeats config.yaml: {same}"


def test_a_verdict_from_fewer_seeds_than_the_interval_needs_is_refused() -> None:
    assert INFERENTIAL_SEEDS == 5
    assert "statistics.seeds_for_verdict" in refusal(
        put(PILOT_RAW, "statistics.seeds_for_verdict", INFERENTIAL_SEEDS - 1)
    )

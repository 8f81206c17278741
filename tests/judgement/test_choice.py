"""The real DAG with a warmed-up arm and a choice on dev: only the chosen arm sees test, and verification follows both."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from micro_study import snakemake

from agentrl.evidence.files import read_json, write_json
from agentrl.rollout.trajectory import read
from agentrl.verify.audit import verify

STUDY = "results/micro"
SETTINGS = (
    "--config",
    "arms={warm: {reward: shaped, warmup: {steps: 8, batch_size: 8, learning_rate: 1.0e-3}}}",
    "evaluation={select: dev}",
)


@pytest.fixture(scope="module")
def chosen(micro: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The micro study with one arm more and a choice on dev; what its arms did on test is not there beforehand."""
    folder = Path(shutil.copytree(micro, tmp_path_factory.mktemp("choice") / "own", symlinks=True))
    for arm in ("pilot", "placebo"):
        shutil.rmtree(folder / STUDY / f"policies/{arm}/seed-3/agent-test")
    done = snakemake(folder, *SETTINGS, "--show-failed-logs")
    assert done.returncode == 0, done.stdout[-6000:]
    ran = {
        name: int(count) for name, count in re.findall(r"^(\w+) +(\d+)$", done.stdout, re.MULTILINE)
    }
    for rule in ("warmup", "train", "merge", "select", "statistics", "verify", "summary"):
        assert ran[rule] == 1, done.stdout
    return folder


def test_a_second_run_does_nothing(chosen: Path) -> None:
    assert "Nothing to be done" in snakemake(chosen, *SETTINGS).stdout


def choice(folder: Path) -> tuple[str, str]:
    """The chosen arm and the one that was passed over."""
    best = read_json(folder / STUDY / "selection/selection.json")["chosen"]
    return best, {"pilot": "warm", "warm": "pilot"}[best]


def test_the_best_arm_on_dev_is_chosen_and_no_other_sees_test(chosen: Path) -> None:
    found, (best, passed_over) = (
        read_json(chosen / STUDY / "selection/selection.json"),
        choice(chosen),
    )
    assert (found["compared"], found["placebos"]) == (2, ["placebo"])
    for arm, numbers in found["arms"].items():
        episodes = list(read(chosen / STUDY / f"policies/{arm}/seed-3/agent-dev/episodes.jsonl"))
        assert numbers["seed_means"] == [sum(e.outcome.strict for e in episodes) / 6]
    assert found["arms"][best]["mean"] >= found["arms"][passed_over]["mean"]
    policies = chosen / STUDY / "policies"
    tested = sorted(
        path.parent.relative_to(policies).as_posix() for path in policies.glob("**/agent-test")
    )
    assert tested == ["baseline", f"{best}/seed-3"]
    roles = read_json(chosen / STUDY / "statistics/manifest.json")["inputs"]
    assert sorted(role for role in roles if role.endswith("agent-test")) == [
        f"{policy}/agent-test" for policy in tested
    ]


def test_verdict_and_summary_judge_the_chosen_arm_only(chosen: Path) -> None:
    verdict, (best, passed_over) = (
        read_json(chosen / STUDY / "statistics/verdict.json"),
        choice(chosen),
    )
    assert (list(verdict["rule"]), verdict["placebos"]) == ([best], {"placebo": "agent-dev"})
    text = (chosen / STUDY / "summary/summary.md").read_text(encoding="utf-8")
    assert f"- Chosen on dev among 2 arms: {best}, " in text
    assert "of the trained policies only its own saw test." in text
    assert re.search(
        rf"^\| {passed_over} \| 1 \| agent-dev \| .* \| not chosen \|$", text, re.MULTILINE
    )
    assert (
        "\n| measure | pilot/seed-3 | placebo/seed-3 | warm/seed-3 |\n| --- | --- | --- | --- |\n| warm-up steps | 0 | 0 | 8 |\n"
        in text
    )


def test_training_began_where_the_warm_up_ended(chosen: Path) -> None:
    """The first group is sampled by the warmed-up policy, and KL against the start policy is not zero at the first step."""
    folder = chosen / STUDY / "arms/warm/seed-3"
    manifests = {
        stage: read_json(folder / stage / "manifest.json") for stage in ("warmup", "train")
    }
    assert (
        manifests["warmup"]["demonstrations"]
        == len(list(read(folder / "warmup/demonstrations.jsonl")))
        == 16
    )
    assert manifests["warmup"]["outputs"].keys() == {
        "adapter/adapter_config.json", "adapter/adapter_model.safetensors", "demonstrations.jsonl",
    }  # fmt: skip
    assert "warmup" in manifests["train"]["inputs"]
    steps = [
        json.loads(line)
        for line in (folder / "train/steps.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert steps[0]["kl"] > 1e-3
    others = [
        json.loads(line)
        for line in (chosen / STUDY / "arms/pilot/seed-3/train/steps.jsonl")
        .read_text("utf-8")
        .splitlines()
    ]
    assert others[0]["kl"] == pytest.approx(0, abs=1e-6)


def test_verification_follows_the_choice_and_the_warm_up(chosen: Path) -> None:
    found = verify(chosen / STUDY)
    assert found.passed, found.as_json()
    assert found.counts["episodes"] > 100


def wrong_choice(study: Path) -> None:
    edit(study / "selection/selection.json", lambda content: content | {"chosen": "placebo"})


def fewer_compared(study: Path) -> None:
    edit(study / "selection/selection.json", lambda content: content | {"compared": 1})


def other_words(study: Path) -> None:
    file = study / "arms/warm/seed-3/warmup/demonstrations.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    record = json.loads(lines[0])
    record["segments"][1]["ids"].pop()
    file.write_text(
        json.dumps(record, separators=(",", ":"), sort_keys=True) + "\n" + "".join(lines[1:]),
        encoding="utf-8",
    )


def edit(file: Path, change: Callable[[dict], dict]) -> None:
    write_json(file, change(read_json(file)))


@pytest.mark.parametrize(
    ("change", "kind", "where", "field"),
    [
        (wrong_choice, "statistics", "selection/selection.json", "chosen"),
        (fewer_compared, "statistics", "selection/selection.json", "compared"),
        (
            other_words,
            "segments",
            "arms/warm/seed-3/warmup/demonstrations.jsonl",
            "segments[1].finish",
        ),
    ],
)
def test_changed_evidence_is_named(
    chosen: Path, tmp_path: Path, change: Callable[[Path], None], kind: str, where: str, field: str
) -> None:
    study = Path(shutil.copytree(chosen / STUDY, tmp_path / "study", symlinks=True))
    change(study)
    found = verify(study).first
    assert kind in found, found
    assert (found[kind].file, found[kind].field) == (where, field)

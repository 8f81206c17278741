"""The demo's own stages, a few steps each: what they make can serve as a start policy, and the same recipe gives the same bytes."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from forked_python import interpreter

from agentrl.demo.demonstrations import demonstrate
from agentrl.demo.policy import examples
from agentrl.demo.settings import DemoBase
from agentrl.evidence.files import write_json
from agentrl.evidence.section import validate
from agentrl.policy.checkpoint import check_policy
from agentrl.rollout.chat import ChatProtocol, load_tokenizer
from agentrl.study.config import Study
from agentrl.study.sections import sections
from agentrl.tasks.families import base_tasks

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def run(command: str, **arguments: Path) -> None:
    words = [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
    done = subprocess.run(
        [interpreter(), str(SCRIPTS / command), *words], text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def short(section: dict[str, Any]) -> dict[str, Any]:
    """The same recipe with two steps of two rows a stage."""
    section = json.loads(json.dumps(section))
    for name in ("stage", "drill"):
        if name in section:
            section[name] |= {"steps": 2, "batch_size": 2}
    return {**section, "threads": 1}


@pytest.fixture(scope="module")
def demo_start(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Base and start of the shortened recipe."""
    folder, found = tmp_path_factory.mktemp("demo"), sections(study)
    for name in ("demo-base", "demo-sft"):
        write_json(folder / f"{name}.json", short(found[name]))
    run("train_demo_base.py", recipe=folder / "demo-base.json", out=folder / "base")
    run(
        "train_demo_sft.py",
        recipe=folder / "demo-sft.json",
        base=folder / "base/manifest.json",
        out=folder / "start",
    )
    return folder


def test_the_start_is_a_policy_with_its_tokenizer_beside_it(demo_start: Path) -> None:
    folder, manifest = check_policy(demo_start / "start/manifest.json")
    ChatProtocol(load_tokenizer(folder))
    ChatProtocol(load_tokenizer(demo_start / "start/tokenizer"))
    assert manifest["steps"] == 0, "no step of GRPO"
    assert manifest["examples"]["demonstrations"] > 1000
    assert (demo_start / "start/tokenizer/tokenizer.json").read_bytes() == (
        folder / "tokenizer.json"
    ).read_bytes()


def test_the_same_recipe_gives_the_same_bytes(demo_start: Path, tmp_path: Path) -> None:
    run(
        "train_demo_sft.py",
        recipe=demo_start / "demo-sft.json",
        base=demo_start / "base/manifest.json",
        out=tmp_path / "start",
    )
    assert (tmp_path / "start/manifest.json").read_bytes() == (
        demo_start / "start/manifest.json"
    ).read_bytes()


def test_sft_changed_the_base(demo_start: Path) -> None:
    weights = [
        (demo_start / name / "model/model.safetensors").read_bytes() for name in ("base", "start")
    ]
    assert weights[0] != weights[1]


def test_demonstrations_depart_as_often_as_the_mixture_says(
    study: Study, chat: ChatProtocol
) -> None:
    recipe = validate(sections(study)["demo-base"], DemoBase)
    tasks = base_tasks(recipe.tasks, 600, seed=5)
    played = demonstrate(tasks, chat, recipe.protocol, recipe.stage.mixture, seed=5)
    mixture = recipe.stage.mixture
    expert = (1 - mixture.guess - mixture.bare_result - mixture.wrong_formula) * (
        1 - mixture.free_answer
    )
    assert sum(t.outcome.strict for t in played) / 600 == pytest.approx(expert, abs=0.06)
    clean = mixture.model_copy(update=dict.fromkeys(type(mixture).model_fields, 0.0))
    assert all(
        t.outcome.strict for t in demonstrate(tasks[:50], chat, recipe.protocol, clean, seed=5)
    )


@pytest.mark.heavy
def test_only_the_policys_own_tokens_are_taught(study: Study, chat: ChatProtocol) -> None:
    recipe = validate(sections(study)["demo-base"], DemoBase)
    rows, contents = examples(recipe, chat)
    assert len(rows) == pytest.approx(sum(contents[k] for k in ("equation_rows",)) + 3600, abs=400)
    assert all(len(row.ids) == len(row.mask) for row in rows)
    taught = [
        chat.decode([t for t, m in zip(row.ids, row.mask, strict=True) if m]) for row in rows[:200]
    ]
    assert not any("<tool_response>" in text or "<|im_start|>" in text for text in taught)
    assert sum("<tool_call>" in text for text in taught) > 50

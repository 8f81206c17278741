"""Checkpoint files: which count, and what a plan compares of a start checkpoint whose path says nothing of its content."""

import json
import os
import shutil
from pathlib import Path

import pytest

from agentrl.evidence.files import write_json
from agentrl.evidence.hashing import hash_files
from agentrl.policy.files import INDEX, files, start_params, weight_files

START = Path(__file__).parents[1] / "data/start"
LOADED = [
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a start checkpoint, as the Snakefile sees it."""
    shutil.copytree(START, tmp_path / "models/start")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def record(project: Path, linked: str) -> Path:
    """The start as `record_start.py` leaves it: a relative link and a manifest."""
    folder = project / "results/x/start"
    folder.mkdir(parents=True)
    (folder / "model").symlink_to(os.path.relpath(project / linked, folder))
    digests = hash_files(project / "models/start", LOADED)
    write_json(
        folder / "manifest.json",
        {
            "outputs": {
                "tokenizer/x": "0",
                **{f"model/{name}": value for name, value in digests.items()},
            }
        },
    )
    return folder


def test_only_what_would_be_loaded_counts(project: Path) -> None:
    for name in ("optimizer.pt", "trainer_state.json", "README.md", "other.safetensors"):
        (project / "models/start" / name).touch()
    assert files(project / "models/start") == LOADED


def test_an_index_names_the_weights(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(
        json.dumps(
            {"weight_map": {"a": "2.safetensors", "b": "1.safetensors", "c": "2.safetensors"}}
        )
    )
    (tmp_path / "1.safetensors").touch()
    assert weight_files(tmp_path) == ["1.safetensors", "2.safetensors"]
    assert files(tmp_path) == ["1.safetensors", INDEX]
    assert weight_files(tmp_path / "nowhere") == []


@pytest.mark.parametrize("name", LOADED)
def test_a_changed_byte_changes_the_value_of_its_file_alone(project: Path, name: str) -> None:
    before = start_params("models/start", project / "results/x/start")
    path = project / "models/start" / name
    path.write_bytes(path.read_bytes() + b" ")
    after = start_params("models/start", project / "results/x/start")
    assert [old.split()[0] for old, new in zip(before, after, strict=True) if old != new] == [name]


def test_a_checkpoint_that_is_gone_counts_as_unchanged(project: Path) -> None:
    recorded = record(project, "models/start")
    before = start_params("models/start", recorded)
    shutil.rmtree(project / "models")
    assert start_params("models/start", recorded) == before
    assert start_params("models/another", recorded) == []


def test_a_hub_id_has_no_values_before_and_after_it_was_recorded(project: Path) -> None:
    assert start_params("owner/name", project / "results/x/start") == []
    assert start_params("owner/name", record(project, "cache/snapshot")) == []

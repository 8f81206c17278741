"""Work folder: the same run resumes, another starts afresh, and nothing is resumed that belongs elsewhere."""

import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.evidence import work
from agentrl.evidence.files import read_json, write_json
from agentrl.evidence.work import KEY, WorkError, WorkFolder


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    """Freeze and arm section."""
    files = [tmp_path / "freeze" / "train.json", tmp_path / "config" / "arm-pilot.json"]
    for file in files:
        write_json(file, {"file": file.name})
    return files


def folder(inputs: list[Path], seed: int = 1) -> WorkFolder:
    return WorkFolder(inputs[0].parents[1] / "work", inputs, seed, "train.py")


def test_the_same_run_finds_what_it_left(inputs: list[Path]) -> None:
    with folder(inputs) as first:
        (first.path / "episodes.jsonl").write_text("evidence")
    with folder(inputs) as second:
        assert second.path == first.path
        assert (second.path / "episodes.jsonl").read_text() == "evidence"
        assert second.resumed == 0


def test_the_key_is_inputs_seed_and_code(inputs: list[Path]) -> None:
    with folder(inputs) as run:
        key = read_json(run.path / KEY)
    assert set(key) == {"train.json", "arm-pilot.json", "seed", "code"}
    assert key == run.key


def test_a_run_resumed_by_another_engine_is_another_run(inputs: list[Path]) -> None:
    paths = []
    for engine in ("vllm", "transformers", "vllm"):
        with WorkFolder(inputs[0].parents[1] / "work", inputs, 1, "train.py", engine=engine) as run:
            paths.append(run.path)
    assert paths[0] == paths[2] != paths[1]


@pytest.mark.parametrize("change", ["freeze", "arm", "seed", "code"])
def test_another_run_works_elsewhere_and_leaves_the_first_alone(
    inputs: list[Path], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    with folder(inputs) as first:
        (first.path / "episodes.jsonl").write_text("evidence")
    if change in ("freeze", "arm"):
        write_json(inputs[change == "arm"], {"file": "edited"})
    if change == "code":
        monkeypatch.setattr(work, "code_digest", lambda command: "{}")
    with folder(inputs, seed=2 if change == "seed" else 1) as second:
        assert second.path.parent == first.path.parent
        assert second.path != first.path
        assert not (second.path / "episodes.jsonl").exists()
        second.remove()
    assert (first.path / "episodes.jsonl").read_text() == "evidence"


def test_moved_inputs_are_the_same_run(inputs: list[Path], tmp_path: Path) -> None:
    moved = [path.rename(tmp_path / path.name) for path in inputs]
    assert (
        WorkFolder(tmp_path, moved, 1, "train.py").path.name
        == WorkFolder(tmp_path, moved[::-1], 1, "train.py").path.name
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", 7), ("train.json", "0" * 64), ("arm-pilot.json", None), ("extra", "x")],
)
def test_a_folder_of_another_freeze_is_refused_by_what_differs(
    inputs: list[Path], name: str, value: object
) -> None:
    with folder(inputs) as run:
        found = {**run.key, name: value}
        write_json(
            run.path / KEY, {key: value for key, value in found.items() if value is not None}
        )
    with pytest.raises(WorkError) as caught:
        folder(inputs).__enter__()
    assert (
        f"{run.path}: work folder of another freeze ({name}: expected {run.key.get(name)}, found {value})"
        in str(caught.value)
    )
    write_json(run.path / KEY, run.key)
    with folder(inputs):  # the refusal has released the lock
        pass


def test_a_folder_in_use_is_waited_for(inputs: list[Path]) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; from agentrl.evidence.work import WorkFolder\n"
        "with WorkFolder(Path(sys.argv[2]), [Path(p) for p in sys.argv[3:]], 1, 'train.py') as run: (run.path / 'second').touch()"
    )
    scripts = Path(work.__file__).parents[2]
    with folder(inputs) as run:
        second = subprocess.Popen([sys.executable, "-c", code, scripts, run.path.parent, *inputs])
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(0.8)
        assert not (run.path / "second").exists()
    assert second.wait(30) == 0
    assert (run.path / "second").exists()


def test_a_finished_run_leaves_nothing(inputs: list[Path]) -> None:
    with folder(inputs) as run:
        (run.path / "checkpoint-1").mkdir()
        run.remove()
    assert not run.path.exists()

"""What the profile computes: the scheduler, the command that starts Python for GPU rules, what a GPU job asks for."""

import os
from pathlib import Path

import pytest

from agentrl.cluster import profile
from agentrl.cluster.profile import ProfileError

SETTINGS = {
    "memory_mb": 32000,
    "minutes": 480,
    "partition": None,
    "account": None,
    "gpus_as": "gpus",
    "gpu_model": None,
    "lock": None,
}


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PATH that has sbatch, and nothing else there."""
    path = tmp_path / "sbatch"
    path.write_text("#!/bin/sh\n", encoding="utf-8")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every executor plugin is installed."""
    monkeypatch.setattr(profile.importlib.util, "find_spec", lambda name: name)


def test_what_is_installed_decides(sbatch: Path, plugins: None) -> None:
    assert profile.choose_scheduler({}) == "slurm"
    assert profile.choose_scheduler({"DET_MASTER": "http://master"}) == "slurm"
    (sbatch / "sbatch").unlink()
    assert profile.choose_scheduler({"DET_MASTER": "http://master"}) == "determined"


def test_the_environment_overrides_what_is_installed(sbatch: Path, plugins: None) -> None:
    assert profile.choose_scheduler({"PIPELINE_SCHEDULER": "determined"}) == "determined"
    assert (
        profile.choose_scheduler({"PIPELINE_SCHEDULER": "slurm", "DET_MASTER": "http://master"})
        == "slurm"
    )


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"PIPELINE_SCHEDULER": "pbs"}, ("PIPELINE_SCHEDULER=pbs", "slurm and determined")),
        ({"PIPELINE_SCHEDULER": ""}, ("no such scheduler", "slurm and determined")),
        ({"PIPELINE_SCHEDULER": "slurm"}, ("sbatch is not on PATH", "login node")),
        ({}, ("no scheduler found", "slurm, determined", "profiles/local")),
    ],
)
def test_a_wrong_or_absent_scheduler_is_refused(
    environment: dict[str, str],
    words: tuple[str, ...],
    plugins: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProfileError) as refused:
        profile.choose_scheduler(environment)
    assert all(word in str(refused.value) for word in words), refused.value


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("-n", True),
        ("--dry-run", True),
        ("--dryrun", True),
        ("-np", True),
        ("--profile gpu", False),
        ("--nolock", False),
        ("-j4", False),
    ],
)
def test_a_dry_run_is_told_by_the_command_line(words: str, expected: bool) -> None:
    assert profile.is_plan(["snakemake", *words.split()]) is expected


def test_an_executor_that_is_not_installed_is_refused(
    sbatch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ProfileError, match=r"executor plugin is not installed under .*pip install -r envs/cpu\.txt"
    ):
        profile.choose_scheduler({})


@pytest.mark.parametrize(
    ("scheduler", "python", "image", "expected"),
    [
        ("slurm", None, None, "python"),
        ("slurm", "/my env/bin/python", None, "'/my env/bin/python'"),
        (
            "slurm",
            None,
            "a.sif",
            f"apptainer exec --nv --bind {os.getcwd()} --bind /data:/d:ro a.sif python",  # noqa: PTH109
        ),
        ("determined", None, "team/image:1", "python"),
    ],
)
def test_python_of_gpu_rules(
    scheduler: str, python: str | None, image: str | None, expected: str
) -> None:
    assert profile.gpu_python(scheduler, python, image, ["/data:/d:ro"]) == expected


def test_interpreter_and_container_exclude_each_other() -> None:
    with pytest.raises(ProfileError, match="exclude each other"):
        profile.gpu_python("slurm", "/bin/python", "a.sif", [])


def test_the_lock_follows_the_device_where_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("envs").mkdir()
    for name in ("cpu.txt", "gpu.txt", "own.txt"):
        Path("envs", name).touch()
    assert (profile.lock_of("cpu", {}), profile.lock_of("cuda", {})) == (
        "envs/cpu.txt",
        "envs/gpu.txt",
    )
    assert profile.lock_of("cuda", {"PIPELINE_GPU_LOCK": "envs/own.txt"}) == "envs/own.txt"


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (
            {"PIPELINE_GPU_LOCK": "envs/none.txt"},
            ("envs/none.txt: no such file", "PIPELINE_GPU_LOCK", "`lock` in the profile"),
        ),
        ({"PIPELINE_GPU_LOCK": ""}, ("'': no such file", "PIPELINE_GPU_LOCK")),
        ({"PIPELINE_GPU_LOCK": "."}, (".: no such file",)),
        ({}, ("envs/gpu.txt: no such file", "default for model.device: cuda")),
    ],
)
def test_a_missing_lock_is_refused_by_name(
    environment: dict[str, str],
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProfileError) as refused:
        profile.lock_of("cuda", environment)
    assert all(word in str(refused.value) for word in words), refused.value


def test_a_profiles_lock_travels_unless_the_user_names_one(
    sbatch: Path, plugins: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIPELINE_GPU_LOCK", "mine")  # so that it is taken back at the end
    monkeypatch.setenv("PIPELINE_GPU_PYTHON", "python")
    monkeypatch.setattr(profile.Plan, "_ask_slurm", staticmethod(lambda partition: None))
    settings = SETTINGS | {
        "python": None,
        "image": None,
        "bind_mounts": [],
        "lock": "envs/gpu-cu12.txt",
    }
    assert profile.Plan(settings).variables == ["PIPELINE_GPU_PYTHON", "PIPELINE_GPU_LOCK"]
    assert os.environ["PIPELINE_GPU_LOCK"] == "mine"
    del os.environ["PIPELINE_GPU_LOCK"]
    assert profile.Plan(settings | {"lock": None}).variables == ["PIPELINE_GPU_PYTHON"]
    profile.Plan(settings)
    assert os.environ["PIPELINE_GPU_LOCK"] == "envs/gpu-cu12.txt"


def test_an_attempt_asks_for_more_than_the_one_before() -> None:
    assert profile.resources(SETTINGS) == {"mem_mb": "32000 * attempt", "runtime": "480 * attempt"}
    named = profile.resources(SETTINGS | {"partition": "gpu", "account": "me", "gpu_model": "h200"})
    assert (named["slurm_partition"], named["slurm_account"], named["gpu_model"]) == (
        "gpu",
        "me",
        "h200",
    )


def test_gres_takes_the_place_of_gpus_for_every_gpu_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "gpu_rules", lambda: ["train"])
    gres = SETTINGS | {"gpus_as": "gres", "gpu_model": "h200"}
    assert "gpu_model" not in profile.resources(gres)
    assert profile.rule_resources(gres) == {"train": {"gpu": 0, "gres": "gpu:h200:1"}}
    assert profile.rule_resources(gres | {"gpu_model": None}) == {
        "train": {"gpu": 0, "gres": "gpu:1"}
    }
    assert profile.rule_resources(SETTINGS) == {}
    with pytest.raises(ProfileError, match="gpus_as is 'gpu'; allowed are gpus and gres"):
        profile.rule_resources(SETTINGS | {"gpus_as": "gpu"})


def test_a_wrong_setting_ends_snakemake_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPELINE_SCHEDULER", "pbs")
    with pytest.raises(SystemExit, match="error: PIPELINE_SCHEDULER=pbs"):
        profile.plan(SETTINGS)

"""The profiles as a user meets them: the literal commands, where each rule runs, under which Python, and what a mistake says."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import micro_study
import pytest
import yaml
import yte

from agentrl.cluster.profile import gpu_rules

ROOT = Path(__file__).resolve().parents[2]
STUDY = "results/micro"
CONFIGURATIONS = {
    "pilot": [],
    "demo": ["--configfile", "config.yaml", "profiles/demo/study.yaml"],
    "micro": ["--configfile", "config.yaml", "tests/micro.yaml"],
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A fresh copy of the project."""
    return micro_study.copy_project(tmp_path / "project")


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder for PATH with what planning needs, and no scheduler."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("which", "sh", "bash", "git"):
        (folder / name).symlink_to(shutil.which(name))
    return folder


@pytest.fixture
def sbatch(bare: Path) -> dict[str, str]:
    """An environment in which sbatch is on PATH, and none of Slurm's other clients."""
    script(bare / "sbatch", "exit 1")
    return {"PATH": str(bare)}


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def snakemake(
    folder: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PIPELINE_", "DET_"))
    }
    command = [sys.executable, "-m", "snakemake", *arguments]
    variables = kept | {"PIPELINE_PLAN": "all"} | environment
    return subprocess.run(
        command,
        cwd=folder,
        env=variables,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=600,
        check=False,
    )


def rules() -> dict[str, str]:
    """Every rule of every rule file, whatever the configuration -> its text."""
    texts = [
        path.read_text(encoding="utf-8") for path in (ROOT / "Snakefile", *ROOT.glob("rules/*.smk"))
    ]
    blocks = [block for text in texts for block in re.split(r"(?m)^(?= *rule \w+:$)", text)]
    return {named[1]: block for block in blocks if (named := re.match(r" *rule (\w+):", block))}


def planned(told: str) -> set[str]:
    """Rules that a dry run would run."""
    return set(re.findall(r"(?m)^rule (\w+):$", told))


def test_a_rule_asks_for_a_gpu_or_stays_here() -> None:
    """Snakemake submits every rule without `localrule`; test_slurm.py sees where each really ran."""
    found = {name: ("gpu=1" in text, "localrule: True" in text) for name, text in rules().items()}
    assert {name for name, (gpu, local) in found.items() if gpu == local} == set(), (
        "submitted without a GPU, or a GPU rule kept here"
    )
    assert {name for name, (gpu, _) in found.items() if gpu} == set(gpu_rules(ROOT / "rules")), (
        "--gres goes to exactly these"
    )
    assert all("{GPU_PYTHON} scripts/" in text for name, text in rules().items() if found[name][0])


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_literal_command_plans(name: str, project: Path, sbatch: dict[str, str]) -> None:
    done = snakemake(project, "-n", "--profile", "gpu", *CONFIGURATIONS[name], **sbatch)
    assert done.returncode == 0, done.stdout
    assert {"section", "gpu_preflight", "train", "evaluate_agent", "summary"} <= planned(
        done.stdout
    )


def test_gres_reaches_every_gpu_rule(project: Path, sbatch: dict[str, str]) -> None:
    path = project / "profiles/gpu/config.yaml"
    path.write_text(
        path.read_text(encoding="utf-8").replace("gpus_as: gpus", "gpus_as: gres"), encoding="utf-8"
    )
    done = snakemake(project, "-n", "--profile", "gpu", **sbatch)
    assert done.returncode == 0, done.stdout
    asked = dict(re.findall(r"(?m)^rule (\w+):$(?:\n    .*)*?\n    resources: (.*)$", done.stdout))
    assert {
        rule for rule, line in asked.items() if "gpu=0" in line and "gres=gpu:1" in line
    } == planned(done.stdout) & set(gpu_rules())


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (
            {"PIPELINE_SCHEDULER": "pbs"},
            "error: PIPELINE_SCHEDULER=pbs: no such scheduler; allowed are slurm and determined",
        ),
        ({"PIPELINE_SCHEDULER": "slurm"}, "error: PIPELINE_SCHEDULER=slurm: sbatch is not on PATH"),
        (
            {},
            "error: no scheduler found: neither sbatch on PATH (slurm) nor DET_MASTER set (determined)",
        ),
    ],
)
def test_a_mistake_is_one_line(
    project: Path, bare: Path, environment: dict[str, str], words: str
) -> None:
    done = snakemake(project, "--profile", "gpu", PATH=str(bare), **environment)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith(words)
    assert len(done.stdout.splitlines()) == 2, "snakemake's own line about the profile, and ours"


@pytest.mark.parametrize(
    "environment",
    [{}, {"PIPELINE_SCHEDULER": "slurm"}, {"PIPELINE_SCHEDULER": "determined"}],
    ids=str,
)
def test_a_plan_needs_no_scheduler(project: Path, bare: Path, environment: dict[str, str]) -> None:
    done = snakemake(project, "-n", "--profile", "gpu", PATH=str(bare), **environment)
    assert done.returncode == 0, done.stdout
    assert {"train", "merge", "summary"} <= planned(done.stdout)


def test_a_run_without_its_scheduler_is_refused_before_the_first_job(
    project: Path, bare: Path
) -> None:
    """Also where no profile has looked."""
    done = snakemake(
        project, "--executor", "slurm", "--jobs", "1", "--config", "study=x", PATH=str(bare)
    )
    assert done.returncode == 1
    assert "sbatch is not on PATH" in done.stdout, done.stdout
    assert not (project / "results/x").exists()


def test_determined_gets_its_settings(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("PIPELINE_SCHEDULER", "determined")
    monkeypatch.setenv("PIPELINE_GPU_PYTHON", "python")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    text = Path("gpu/config.yaml").read_text(encoding="utf-8")
    monkeypatch.setenv(
        "PIPELINE_GPU_LOCK", ""
    )  # so that what the profile sets is taken back at the end
    del os.environ["PIPELINE_GPU_LOCK"]
    settings = {
        "image": "team/image:1",
        "lock": "envs/gpu-cu12.txt",
        "bind_mounts": "[/shared, /data:/d:ro]",
        "pool": "h200",
        "master": "https://m",
    }
    for name, value in settings.items():
        text, edited = re.subn(rf"(?m)^  {name}: \S+", f"  {name}: {value}", text)
        assert edited == 1
    found = yte.process_yaml(text, require_use_yte=True)
    assert {key: value for key, value in found.items() if key.startswith("determined")} == {
        "determined-master": "https://m", "determined-workspace": None, "determined-pool": "h200", "determined-image": "team/image:1",
        "determined-bind-mounts": ["/shared", "/data:/d:ro"],
        "determined-environment-variables": ["PIPELINE_GPU_PYTHON", "PIPELINE_GPU_LOCK"],
    }  # fmt: skip
    assert not [key for key in found if key.startswith("slurm")]
    assert found["executor"] == "determined"


def test_every_profile_keeps_going_and_sees_through_touch() -> None:
    assert not (ROOT / "profiles/default").exists(), (
        "Snakemake would merge it over every other profile"
    )
    assert (ROOT / "gpu").readlink() == Path("profiles/gpu")
    for path in ROOT.glob("profiles/*/config.yaml"):
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert (
            found["keep-going"],
            found["rerun-incomplete"],
            found["max-checksum-file-size"],
        ) == (True, True, 2000000000), path


def test_the_local_profile_runs_one_gpu_rule_at_a_time(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "profiles", tmp_path / "profiles")
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")  # the profile computes
    shell = "echo {name} >> trace; sleep 1; echo {name} >> trace; touch {{output}}"
    job = f"rule {{name}}:\n    output: '{{name}}'\n    resources: gpu=1\n    shell: '{shell}'\n"
    text = "rule all:\n    input: 'a', 'b'\n" + "".join(job.format(name=name) for name in "ab")
    (tmp_path / "Snakefile").write_text(text, encoding="utf-8")
    done = snakemake(tmp_path, "--profile", "profiles/local")
    assert done.returncode == 0, done.stdout
    first, second, third, fourth = (tmp_path / "trace").read_text(encoding="utf-8").split()
    assert (first, third) == (second, fourth)


def test_gpu_rules_run_under_an_interpreter_of_their_own(project: Path) -> None:
    recorder = script(
        project / "recorder", f'echo "$1" >> {project}/recorded; exec {sys.executable} "$@"'
    )
    target = f"{STUDY}/policies/baseline/agent-dev/manifest.json"
    arguments = ["--cores", "2", *CONFIGURATIONS["micro"], "--", target]
    done = snakemake(project, *arguments, PIPELINE_GPU_PYTHON=str(recorder))
    assert done.returncode == 0, done.stdout
    recorded = (project / "recorded").read_text(encoding="utf-8").split()
    assert recorded == ["scripts/gpu_preflight.py", "scripts/evaluate_agent.py"], (
        "light rules ran under snakemake's own"
    )
    for other in ("python", "/no/such/python", "apptainer exec --nv image.sif python"):
        assert (
            "Nothing to be done"
            in snakemake(project, "-n", *arguments, PIPELINE_GPU_PYTHON=other).stdout
        )


def test_gpu_rules_run_in_a_container(project: Path) -> None:
    """The container's front end is a double: it records how it was called and runs the command here."""
    runtime = script(
        project / "bin/apptainer", f'echo "$@" >> {project}/recorded; shift 3; exec "$@"'
    )
    target = f"{STUDY}/preflight/gpu/report.json"
    environment = {
        "PIPELINE_GPU_PYTHON": "apptainer exec --nv image.sif python",
        "PATH": f"{runtime.parent}:/usr/bin:/bin",
    }
    done = snakemake(project, "--cores", "1", *CONFIGURATIONS["micro"], "--", target, **environment)
    assert done.returncode == 0, done.stdout
    (recorded,) = (project / "recorded").read_text(encoding="utf-8").splitlines()
    assert recorded.startswith("exec --nv image.sif python scripts/gpu_preflight.py --section ")


def test_a_node_with_other_versions_is_refused_before_any_model(project: Path) -> None:
    lock = project / "envs/cpu.txt"
    lock.write_text(
        re.sub(r"(?m)^trl==.*$", "trl==9.9.9", lock.read_text(encoding="utf-8")), encoding="utf-8"
    )
    done = snakemake(
        project,
        "--cores",
        "2",
        *CONFIGURATIONS["micro"],
        "--",
        f"{STUDY}/policies/baseline/agent-dev/manifest.json",
    )
    assert done.returncode == 1
    assert re.search(r"error: .*trl \S+ instead of 9\.9\.9", done.stdout), done.stdout
    assert not list(project.glob(f"{STUDY}/policies/**/*")), "no model rule started"
    assert "trl" in (project / STUDY / "preflight/gpu/status.json").read_text(encoding="utf-8")


def test_another_lock_looks_at_the_node_again_and_reruns_no_model(
    micro: Path, tmp_path: Path
) -> None:
    own = Path(shutil.copytree(micro, tmp_path / "own", symlinks=True))
    arguments = ["-n", "--cores", "2", *CONFIGURATIONS["micro"]]
    assert planned(snakemake(own, *arguments, PIPELINE_GPU_LOCK="envs/gpu-cu12.txt").stdout) == {
        "gpu_preflight"
    }
    assert (
        "Nothing to be done" in snakemake(own, *arguments, PIPELINE_GPU_LOCK="envs/cpu.txt").stdout
    ), "the default by its name"
    done = snakemake(own, *arguments, PIPELINE_GPU_LOCK="envs/none.txt")
    assert done.returncode == 1
    assert (
        "envs/none.txt: no such file (PIPELINE_GPU_LOCK, or `lock` in the profile)" in done.stdout
    )


@pytest.mark.parametrize("profile", ["profiles/local", "gpu"])
def test_a_profiles_lock_is_what_the_node_is_held_to(
    profile: str, project: Path, sbatch: dict[str, str]
) -> None:
    def locks() -> list[str]:
        """What the look at the node reads of envs/, by the plan."""
        done = snakemake(project, "-n", "--profile", profile, **sbatch)
        assert done.returncode == 0, done.stdout
        (inputs,) = re.findall(r"(?m)^rule gpu_preflight:\n    input: (.*)$", done.stdout)
        return [name for name in inputs.split(", ") if name.startswith("envs/")]

    assert locks() == ["envs/gpu.txt"], "the study's device decides"
    path = project / profile / "config.yaml"
    text, edited = re.subn(
        r"(?m)^  lock: null", "  lock: envs/gpu-cu12.txt", path.read_text(encoding="utf-8")
    )
    assert edited == 1
    path.write_text(text, encoding="utf-8")
    assert locks() == ["envs/gpu-cu12.txt"]


def test_a_changed_lock_looks_at_the_node_again_and_reruns_no_model(
    micro: Path, tmp_path: Path
) -> None:
    own = Path(shutil.copytree(micro, tmp_path / "own", symlinks=True))
    with open(own / "envs/cpu.txt", "a", encoding="utf-8") as stream:
        stream.write("# another comment\n")
    done = snakemake(own, "-n", "--cores", "2", *CONFIGURATIONS["micro"])
    assert planned(done.stdout) == {"gpu_preflight"}, done.stdout

"""A finished study's folder: refused before the first job where the configuration says so, whatever the plan would make anew."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import micro_study
import pytest

from agentrl.cluster.profile import gpu_rules
from agentrl.evidence.hashing import hash_files
from agentrl.study.finished import RECOMPUTED, refusal

ROOT = Path(__file__).resolve().parents[2]
RULES = {
    name
    for path in (ROOT / "Snakefile", *ROOT.glob("rules/*.smk"))
    for name in re.findall(r"(?m)^ *(?:rule|checkpoint) (\w+):", path.read_text(encoding="utf-8"))
}
SNAKEFILE = f"""
import sys
from pathlib import Path
from types import SimpleNamespace
from snakemake.exceptions import WorkflowError

sys.path.insert(0, "{ROOT / "scripts"}")
R, STUDY = "results/x", SimpleNamespace(finished=config["finished"])
include: "{ROOT / "rules/finished.smk"}"

onstart:
    refuse_to_replace()

rule summary:
    input: f"{{R}}/train/manifest.json"
    output: f"{{R}}/summary/manifest.json"
    params: config.get("margin", 0)
    shell: "cp {{input}} {{output}}"

rule train:
    output: f"{{R}}/train/manifest.json"
    params: config.get("steps", 1)
    shell: "echo {{params}} > {{output}}"
"""
"""A study of two rules, whose summary draws on what one of them makes."""


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A folder like `results/x` of a study that has its summary."""
    (tmp_path / "x/summary").mkdir(parents=True)
    (tmp_path / "x/summary/manifest.json").write_text("{}", encoding="utf-8")
    return tmp_path / "x"


@pytest.mark.parametrize("rule", sorted(RULES - RECOMPUTED))
def test_every_rule_that_makes_evidence_is_refused(finished: Path, rule: str) -> None:
    message = refusal(finished, "refuse", ["section", rule, "statistics"])
    assert message is not None
    assert all(
        part in message for part in (str(finished), f"({rule})", "`study`", "`finished: replace`")
    )
    assert refusal(finished, "replace", [rule]) is None


def test_conclusions_may_be_drawn_again(finished: Path) -> None:
    assert refusal(finished, "refuse", [*RECOMPUTED, "code_train", "code_compare"]) is None
    assert refusal(finished, "refuse", []) is None


def test_an_unfinished_study_goes_on(finished: Path) -> None:
    (finished / "summary/manifest.json").unlink()
    assert refusal(finished, "refuse", ["train"]) is None


def test_what_counts_as_recomputed_are_rules_and_starts_no_model() -> None:
    assert RECOMPUTED <= RULES
    assert RECOMPUTED & set(gpu_rules(ROOT / "rules")) == {"gpu_preflight"}
    assert {
        "train",
        "warmup",
        "merge",
        "evaluate_agent",
        "evaluate_retention",
        "preflight",
        "select",
        "tasks",
    } <= RULES - RECOMPUTED


def snakemake(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "snakemake", "--cores", "1", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
        check=False,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The small study, finished under `finished: refuse`: a first run is nobody's second."""
    (tmp_path / "Snakefile").write_text(SNAKEFILE, encoding="utf-8")
    done = snakemake(tmp_path, "--config", "finished=refuse")
    assert done.returncode == 0, done.stdout
    return tmp_path


def test_snakemake_refuses_before_the_first_job(project: Path) -> None:
    trained, changed = project / "results/x/train/manifest.json", ("--config", "steps=2")
    dry = snakemake(project, "-n", *changed, "finished=refuse")
    assert dry.returncode == 0, dry.stdout
    assert dry.stdout.splitlines()[-1].startswith(
        "This run would be refused: results/x holds a finished study"
    )
    done = snakemake(project, *changed, "finished=refuse")
    assert done.returncode == 1, done.stdout
    assert "results/x holds a finished study" in done.stdout
    assert "(train)" in done.stdout
    assert trained.read_text(encoding="utf-8") == "1\n"
    replaced = snakemake(project, *changed, "finished=replace")
    assert replaced.returncode == 0, replaced.stdout
    assert trained.read_text(encoding="utf-8") == "2\n"


def test_a_finished_micro_study_is_kept(micro: Path, tmp_path: Path) -> None:
    """The real rules: another setting of the training is refused, another margin of the verdict is not."""
    own = Path(shutil.copytree(micro, tmp_path / "own", symlinks=True))
    before = hash_files(own / "results/micro", files(own / "results/micro"))
    trained = ("--config", "training={kl: 0.1}", "finished=refuse")
    dry = micro_study.snakemake(own, "-n", *trained)
    assert (
        "This run would be refused: results/micro holds a finished study"
        in dry.stdout.splitlines()[-1]
    )
    done = micro_study.snakemake(own, *trained)
    assert done.returncode == 1
    assert "(evaluate_agent, evaluate_retention, merge, preflight, train)" in done.stdout
    assert hash_files(own / "results/micro", files(own / "results/micro")) == before
    (own / "scripts/agentrl/training/grpo.py").open("a", encoding="utf-8").write("\nEDITED = 1\n")
    for arguments in (["-n"], []):
        blind = micro_study.snakemake(own, *arguments, "--rerun-triggers", "mtime")
        assert (
            "This run would be refused: --rerun-triggers leaves out code, input, params"
            in blind.stdout.splitlines()[-1]
        )
    blind = micro_study.snakemake(own, "--rerun-triggers", "mtime", "--forcerun", "summary")
    assert blind.returncode == 1
    assert "\n--rerun-triggers leaves out" in blind.stdout
    shutil.copy(
        micro / "scripts/agentrl/training/grpo.py", own / "scripts/agentrl/training/grpo.py"
    )
    judged = micro_study.snakemake(
        own, "-n", "--config", "statistics={margin: 0.1}", "finished=refuse"
    )
    assert "rule statistics:" in judged.stdout
    assert "refused" not in judged.stdout


def files(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def test_another_summary_of_the_same_evidence_is_no_replacement(project: Path) -> None:
    changed = ("--config", "margin=1", "finished=refuse")
    assert "refused" not in snakemake(project, "-n", *changed).stdout
    done = snakemake(project, *changed)
    assert done.returncode == 0, done.stdout
    assert "rule summary" in done.stdout


def test_touch_makes_nothing(project: Path) -> None:
    """The documented way to adopt results that were copied without Snakemake's metadata."""
    done = snakemake(project, "--touch", "--forceall", "--config", "steps=2", "finished=refuse")
    assert done.returncode == 0, done.stdout

"""The profile on a real Slurm of one node: the whole small study, and faults that must neither lose a job nor make two writers.

Bounded, but not part of `make test`: `make test-slurm`. With SLURM_FAULTS=FILE the faults are also written as a table.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import micro_study
import pytest
import slurm_cluster
import slurm_workflow
from slurm_workflow import Workflow

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(slurm_cluster.missing()), reason="; ".join(slurm_cluster.missing())),
]

STUDY = "results/micro"
MICRO = ("--configfile", "config.yaml", "tests/micro.yaml")
SECOND_ATTEMPT = "test ! -e {output}; echo whole > {output}"
CUT_OFF = (
    f"if [ {{resources.tries}} = 1 ]; then echo half > {{output}}; sleep 300; fi; {SECOND_ATTEMPT}"
)
"""The first attempt writes half of its output and hangs; the second finds no trace of it."""
HUNGRY = "python -c 'import time; kept = b\"x\" * (600 << 20); time.sleep(8)'; " + SECOND_ATTEMPT
ONCE = "echo started >> trace; sleep {seconds}; echo whole > {{output}}"

Record = Callable[[str, str, float], None]
Running = tuple[Path, subprocess.Popen[bytes]]
"""A folder and the snakemake in it."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """The cluster, taken down again whatever happens."""
    slurm_cluster.start()
    try:
        yield
    finally:
        slurm_cluster.stop()


@pytest.fixture(scope="module")
def record() -> Iterator[Record]:
    """Collects fault, outcome, seconds; writes the table where SLURM_FAULTS names a file."""
    rows: list[tuple[str, str, float]] = []
    yield lambda *row: rows.append(row)
    if target := os.environ.get("SLURM_FAULTS"):
        lines = ["| fault | what happened | seconds |", "| --- | --- | --- |"]
        lines += [f"| {fault} | {outcome} | {seconds:.0f} |" for fault, outcome, seconds in rows]
        Path(target).write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def faults(cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Workflow:
    """Four jobs with a fault each, in one run that goes on in the background."""
    cancelled, rejected = (CUT_OFF, "runtime=9", "begin"), (SECOND_ATTEMPT, "mem_mb=10**7", "begin")
    workflow = Workflow(
        tmp_path_factory.mktemp("faults"),
        cancelled=cancelled,
        late=CUT_OFF,
        hungry=HUNGRY,
        rejected=rejected,
    )
    workflow.start()
    return workflow


@pytest.fixture(scope="module")
def study(faults: Workflow, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The micro study through Slurm, GPU rules under an interpreter that records what it runs; goes on in the background."""
    folder = micro_study.copy_project(tmp_path_factory.mktemp("slurm-micro"))
    recorder = folder / "recorder"
    recorder.write_text(
        f'#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES $1" >> {folder}/recorded\nexec python "$@"\n',
        encoding="utf-8",
    )
    recorder.chmod(0o755)
    slurm_workflow.settings(folder, memory_mb=1500, minutes=10, python=recorder)
    process = background(folder, slurm_workflow.command(*MICRO))
    yield folder, process
    end(process)


@pytest.fixture(scope="module")
def local(study: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The same study on this machine, beside the other: polling leaves time for it."""
    folder = micro_study.copy_project(tmp_path_factory.mktemp("local-micro"))
    process = background(folder, [sys.executable, "-m", "snakemake", "--cores", "1", *MICRO])
    yield folder, process
    end(process)


@pytest.fixture(scope="module")
def outage(cluster: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Workflow, float]:
    """A job that ends while the controller is away, and when it began. Slurm takes a minute to learn of its end, for other tests to use."""
    began, workflow = (
        time.monotonic(),
        Workflow(tmp_path_factory.mktemp("outage"), slow=ONCE.format(seconds=15)),
    )
    workflow.start()
    workflow.until(lambda: (workflow.folder / "trace").exists())
    slurm_cluster.end("slurmctld")
    time.sleep(30)
    slurm_cluster.start_controller()
    return workflow, began


def background(folder: Path, command: list[str]) -> subprocess.Popen[bytes]:
    with open(folder / "log", "wb") as log:
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def test_a_job_cancelled_in_mid_run_is_tried_again(
    faults: Workflow, local: object, record: Record
) -> None:
    faults.until(lambda: faults.made("cancelled") == "half" or faults.process.poll() is not None)
    began = time.monotonic()
    slurm_cluster.answer("scancel", faults.queue()["cancelled"])
    faults.until(lambda: faults.made("cancelled") == "whole")
    assert "SLURM status is: 'CANCELLED'" in faults.log
    record(
        "scancel in mid-run",
        "half an output removed, second attempt made it whole",
        time.monotonic() - began,
    )


def test_a_killed_snakemake_leaves_no_second_writer(
    study: object, tmp_path: Path, record: Record
) -> None:
    began, workflow = time.monotonic(), Workflow(tmp_path, slow=ONCE.format(seconds=30))
    workflow.start()
    workflow.until(lambda: (tmp_path / "trace").exists())
    workflow.signal(signal.SIGKILL, group=True)
    workflow.wait()
    (number,) = workflow.queue().values()
    assert workflow.run("--unlock").returncode == 0
    refused = workflow.run()
    assert refused.returncode == 1
    assert (
        f"Slurm still has jobs of results/tiny from an earlier snakemake: {number} (slow, RUNNING)"
        in refused.stdout
    )
    assert f"scancel {number}" in refused.stdout
    workflow.until(lambda: not workflow.queue())
    assert "Nothing to be done" not in refused.stdout
    again = workflow.run()
    assert again.returncode == 0, again.stdout
    assert (tmp_path / "trace").read_text(encoding="utf-8") == "started\n", (
        "the job ran once, and its result was taken over"
    )
    told = "restart refused by job number while the job ran; its result taken over after"
    record("kill -9 of snakemake, restart", told, time.monotonic() - began)


def test_another_study_of_the_same_checkout_is_no_orphan(cluster: None, tmp_path: Path) -> None:
    workflow = Workflow(tmp_path, slow=ONCE.format(seconds=120))
    workflow.start()
    workflow.until(lambda: (tmp_path / "trace").exists())
    workflow.signal(signal.SIGKILL, group=True)
    workflow.wait()
    snakefile = tmp_path / "Snakefile"
    snakefile.write_text(
        snakefile.read_text(encoding="utf-8").replace(slurm_workflow.RESULTS, "results/other"),
        encoding="utf-8",
    )
    assert workflow.run("--unlock").returncode == 0
    done = workflow.run("results/other/begin")
    assert done.returncode == 0, done.stdout
    slurm_cluster.answer("scancel", *workflow.queue().values())


def test_ctrl_c_leaves_no_job(cluster: None, tmp_path: Path, record: Record) -> None:
    workflow = Workflow(tmp_path, slow=ONCE.format(seconds=300))
    workflow.start()
    workflow.until(lambda: (tmp_path / "trace").exists())
    began = time.monotonic()
    workflow.signal(signal.SIGINT, group=True)
    assert workflow.wait() != 0
    workflow.until(lambda: not workflow.queue())
    assert not workflow.made("slow")
    record("Ctrl-C (SIGINT)", "job cancelled, none in the queue", time.monotonic() - began)


def test_sigterm_waits_for_running_jobs(cluster: None, tmp_path: Path, record: Record) -> None:
    workflow = Workflow(tmp_path, slow=ONCE.format(seconds=10), after=(SECOND_ATTEMPT, "", "slow"))
    workflow.start()
    workflow.until(lambda: (tmp_path / "trace").exists())
    began = time.monotonic()
    workflow.signal(signal.SIGTERM, group=False)
    assert workflow.wait() != 0
    assert (workflow.made("slow"), workflow.made("after"), workflow.queue()) == ("whole", "", {})
    record(
        "SIGTERM to snakemake",
        "the running job was awaited, no other started",
        time.monotonic() - began,
    )


def test_time_limit_and_memory_are_raised_and_a_rejection_stops_nothing(
    faults: Workflow, record: Record
) -> None:
    assert faults.wait() == 1, "the rejected job fails the run"
    assert {name: faults.made(name) for name in ("cancelled", "late", "hungry", "rejected")} == {
        "cancelled": "whole", "late": "whole", "hungry": "whole", "rejected": "",
    }  # fmt: skip
    told = faults.log
    assert "SLURM status is: 'TIMEOUT'" in told
    assert "SLURM status is: 'OUT_OF_MEMORY'" in told or "SLURM status is: 'FAILED'" in told
    assert (
        "SLURM sbatch failed. The error message was 'sbatch: error: Memory specification can not be satisfied"
        in told
    )
    record(
        "time limit of a minute",
        "half an output removed, second attempt with twice the time",
        faults.seconds_until("'TIMEOUT'"),
    )
    record(
        "out of memory",
        "second attempt with twice the memory succeeded",
        faults.seconds_until("(Rule: hungry)"),
    )
    record(
        "rejected submission",
        "sbatch's words shown, other jobs went on, exit 1",
        faults.seconds_until("SLURM sbatch failed"),
    )


def test_the_study_through_slurm_has_the_local_runs_bytes(study: Running, local: Running) -> None:
    for folder, process in (study, local):
        assert process.wait(800) == 0, (folder / "log").read_text(encoding="utf-8")[-4000:]
    for name in (
        "summary/summary.md",
        "summary/manifest.json",
        "statistics/manifest.json",
        "verify/verify.json",
    ):
        assert (study[0] / STUDY / name).read_bytes() == (local[0] / STUDY / name).read_bytes()


def test_gpu_rules_ran_under_the_profiles_interpreter_with_a_gpu_each(study: Running) -> None:
    folder, process = study
    assert process.wait(800) == 0
    lines = [
        line.split() for line in (folder / "recorded").read_text(encoding="utf-8").splitlines()
    ]
    assert {int(device) for device, _ in lines} <= set(range(slurm_cluster.GPUS))
    commands = sorted(command for _, command in lines)
    evaluations = ["scripts/evaluate_agent.py"] * 6 + ["scripts/evaluate_retention.py"] * 3
    once = ["scripts/gpu_preflight.py", "scripts/preflight.py"]
    assert commands == sorted(
        [*evaluations, *once, *["scripts/merge_adapter.py", "scripts/train.py"] * 2]
    )


def test_only_gpu_rules_were_submitted(study: Running) -> None:
    folder, process = study
    assert process.wait(800) == 0
    told = (folder / "log").read_text(encoding="utf-8")
    submitted, local = (
        set(re.findall(rf"(?m)^{kind} (\w+):$", told)) for kind in ("rule", "localrule")
    )
    assert submitted == {
        "gpu_preflight",
        "preflight",
        "train",
        "merge",
        "evaluate_agent",
        "evaluate_retention",
    }
    assert local >= {
        "section",
        "start",
        "tasks",
        "freeze",
        "plan",
        "admit",
        "statistics",
        "verify",
        "summary",
        "all",
    }


def test_another_interpreter_reruns_nothing(study: Running) -> None:
    folder, process = study
    assert process.wait(800) == 0
    slurm_workflow.settings(folder, memory_mb=1500, minutes=10, python="/usr/bin/other-python")
    done = slurm_workflow.run(folder, "-n", *MICRO)
    assert "Nothing to be done" in done.stdout


def test_a_lost_node_is_an_error_and_the_job_is_tried_again(
    cluster: None, tmp_path: Path, record: Record
) -> None:
    began, workflow = time.monotonic(), Workflow(tmp_path, slow=CUT_OFF)
    workflow.start()
    workflow.until(lambda: workflow.made("slow") == "half")
    node = slurm_cluster.answer("sinfo", "-h", "-o", "%N").strip().splitlines()[0]
    slurm_cluster.answer("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    workflow.until(lambda: "Trying to restart" in workflow.log)
    slurm_cluster.answer("scontrol", "update", f"nodename={node}", "state=resume")
    assert workflow.wait() == 0, workflow.log
    assert "NODE_FAIL" in workflow.log
    assert workflow.made("slow") == "whole"
    record(
        "node down",
        "NODE_FAIL, half an output removed, second attempt on the node that came back",
        time.monotonic() - began,
    )


def test_gres_where_a_cluster_refuses_gpus(outage: object, tmp_path: Path) -> None:
    shell = "scontrol show job $SLURM_JOB_ID | grep -o 'gres[:/]gpu[^ ]*' > {output}; echo $CUDA_VISIBLE_DEVICES >> {output}"
    workflow = Workflow(tmp_path, slow=shell)
    slurm_workflow.settings(tmp_path, gpus_as="gres", gpu_model="h200")
    (tmp_path / "rules/more.smk").write_text(
        "rule slow:\n    resources:\n        gpu=1,\n", encoding="utf-8"
    )
    done = workflow.run()
    assert done.returncode == 0, done.stdout
    assert "gpu:h200:1" in workflow.made("slow")
    assert int(workflow.made("slow").splitlines()[-1]) in range(slurm_cluster.GPUS)


def test_a_partition_that_is_not_there_is_refused_before_submission(
    outage: object, tmp_path: Path
) -> None:
    workflow = Workflow(tmp_path, slow=SECOND_ATTEMPT)
    slurm_workflow.settings(tmp_path, partition="h100s")
    done = workflow.run()
    assert done.returncode == 1
    assert "error: partition 'h100s': Slurm has no such partition, only gpu" in done.stdout
    assert "Traceback" not in done.stdout
    assert not (tmp_path / "results").exists()


def test_ctrl_c_while_slurm_is_asked_leaves_no_job(
    outage: object, tmp_path: Path, record: Record
) -> None:
    """The plugin forgets its jobs while it asks for their status; a controller that hangs keeps it there."""
    workflow = Workflow(tmp_path, slow=(ONCE.format(seconds=300), "runtime=9", "begin"))
    workflow.start()
    workflow.until(lambda: (tmp_path / "trace").exists())
    controller = int((slurm_cluster.FOLDER / "slurmctld.pid").read_text(encoding="ascii"))
    os.kill(controller, signal.SIGSTOP)
    try:
        workflow.until(lambda: "squeue" in workflow.children())
        began = time.monotonic()
        workflow.signal(signal.SIGINT, group=False)
        time.sleep(1)
    finally:
        os.kill(controller, signal.SIGCONT)
    assert workflow.wait() != 0
    workflow.until(lambda: not workflow.queue())
    assert "which the interrupted run had left in the queue" in workflow.log
    record(
        "Ctrl-C while Slurm does not answer",
        "job cancelled by our own clean-up",
        time.monotonic() - began,
    )


def test_a_working_directory_that_the_node_does_not_see_fails_by_name(
    outage: object, tmp_path: Path, record: Record
) -> None:
    """One node sees what this machine sees, so the folder is moved away after submission, while the partition is closed."""
    began, workflow = time.monotonic(), Workflow(tmp_path / "here", slow=SECOND_ATTEMPT)
    slurm_cluster.answer("scontrol", "update", "partitionname=gpu", "state=down")
    workflow.start("--retries", "0")
    workflow.until(workflow.queue)
    workflow.folder.rename(tmp_path / "away")
    slurm_cluster.answer("scontrol", "update", "partitionname=gpu", "state=up")
    assert workflow.wait() == 1
    told = (tmp_path / "away/log").read_text(encoding="utf-8")
    assert (
        f"failed without writing a line: their nodes most likely do not see {tmp_path / 'away'}"
        in told
    )
    record(
        "working directory that the node does not see",
        "the job fails; a last line says so and what to do",
        time.monotonic() - began,
    )


def test_a_controller_away_for_half_a_minute_loses_no_job(
    outage: tuple[Workflow, float], record: Record
) -> None:
    workflow, began = outage
    assert workflow.wait() == 0, workflow.log
    assert workflow.made("slow") == "whole"
    assert (workflow.folder / "trace").read_text(encoding="utf-8") == "started\n"
    record(
        "slurmctld away for 30 s, job ends meanwhile",
        "no job lost, none run twice",
        time.monotonic() - began,
    )

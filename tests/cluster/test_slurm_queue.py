"""What is read from Slurm's answers: partitions, accounting, shared folders, jobs of a study. Slurm itself is in test_slurm.py."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.cluster import slurm
from agentrl.cluster.slurm import Job, NoAnswerError, SlurmError

Answers = Callable[[dict[str, str]], list[tuple[str, ...]]]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Answers of clients by their name, or by name and third argument; what was asked comes back."""

    def give(said: dict[str, str]) -> list[tuple[str, ...]]:
        asked: list[tuple[str, ...]] = []

        def ask(*command: str) -> str:
            asked.append(command)
            answer = said.get(" ".join([command[0], *command[3:4]]), said.get(command[0]))
            if answer is None:
                raise NoAnswerError(f"{command[0]} is away")
            return answer

        monkeypatch.setattr(slurm, "ask", ask)
        return asked

    return give


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("accounting_storage/slurmdbd", "sacct"),
        ("accounting_storage/none", "squeue"),
        ("(null)", "squeue"),
    ],
)
def test_without_accounts_the_queue_is_asked(kind: str, expected: str, answers: Answers) -> None:
    answers(
        {
            "scontrol": f"AccountingStorageEnforce = none\nAccountingStorageType   = {kind}\nMinJobAge = 300 sec\n"
        }
    )
    assert slurm.status_command() == expected


def test_an_unknown_partition_is_refused_with_those_there_are(answers: Answers) -> None:
    answers({"sinfo": "gpu\ncpu\ngpu\n"})
    slurm.check_partition("gpu")
    with pytest.raises(
        SlurmError, match="partition 'h100': Slurm has no such partition, only cpu, gpu"
    ):
        slurm.check_partition("h100")


def test_a_private_folder_is_refused_unless_this_machine_is_the_cluster(
    answers: Answers, tmp_path: Path
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "disk / ext4 rw 0 0\nserver:/home /home nfs rw 0 0\nnone /home/ram tmpfs rw 0 0\n",
        encoding="utf-8",
    )
    answers({"sinfo": "node1\nnode2\n"})
    slurm.check_visible(Path("/home/me/study"), mounts)
    for folder in ("/home/ram/study", "/tmp/study"):  # noqa: S108 (a name)
        with pytest.raises(
            SlurmError,
            match=rf"{folder}: this machine's own folder .*node1, node2 .*shared file system",
        ):
            slurm.check_visible(Path(folder), mounts)
    answers({"sinfo": socket.gethostname().split(".")[0] + "\n"})
    slurm.check_visible(Path("/tmp/study"), mounts)  # noqa: S108 (a name)


def test_jobs_of_a_study_are_told_by_folder_and_script(answers: Answers, tmp_path: Path) -> None:
    queue = [
        f"1|RUNNING|rule_train_wildcards_pilot_3|{tmp_path}", f"2|PENDING|rule_merge|{tmp_path}", "3|RUNNING|rule_train|/elsewhere",
        f"4|RUNNING|somebody's own|{tmp_path}", f"5|COMPLETING|rule_gone|{tmp_path}",
    ]  # fmt: skip
    answers(
        {
            "squeue": "\n".join(queue) + "\n",
            "scontrol 1": "--wait-for-files results/a/x",
            "scontrol 2": "results/ab/x",
        }
    )
    assert slurm.jobs_of("results/a", tmp_path) == [Job("1", "RUNNING", "train pilot_3")]
    with pytest.raises(
        SlurmError, match=r"jobs of results/a .*: 1 \(train pilot_3, RUNNING\).*scancel 1\)"
    ):
        slurm.refuse_orphans("results/a", tmp_path)
    slurm.refuse_orphans("results/b", tmp_path)


def test_only_the_studys_jobs_are_cancelled(answers: Answers, tmp_path: Path) -> None:
    queue = f"1|RUNNING|rule_train|{tmp_path}\n2|RUNNING|rule_train|{tmp_path}\n"
    asked = answers(
        {"squeue": queue, "scontrol 1": "results/a/x", "scontrol 2": "results/b/x", "scancel": ""}
    )
    assert [job.id for job in slurm.cancel("results/a", tmp_path)] == ["1"]
    assert asked[-1] == ("scancel", "1")
    asked = answers({"squeue": ""})
    assert slurm.cancel("results/a", tmp_path) == []
    assert len(asked) == 1


def test_a_run_is_refused_while_slurm_is_away(answers: Answers, tmp_path: Path) -> None:
    answers({})
    with pytest.raises(NoAnswerError):
        slurm.refuse_orphans("results/a", tmp_path)


@pytest.mark.parametrize(
    ("command", "words"), [("no-such-client", "not on PATH"), ("false", "is Slurm's controller up")]
)
def test_a_client_that_fails_is_named(command: str, words: str) -> None:
    with pytest.raises(NoAnswerError, match=words) as refused:
        slurm.ask(command)
    assert command in str(refused.value)


def test_failed_jobs_without_a_log_point_at_the_folder(tmp_path: Path) -> None:
    (tmp_path / "2.log").write_text("Traceback", encoding="utf-8")
    lines = [
        f"Job {n} has been submitted with SLURM jobid {n} (log: {tmp_path}/{n}.log)."
        for n in (1, 2, 3)
    ]
    log = tmp_path / "snakemake.log"
    log.write_text(
        "\n".join([*lines, "SLURM-job '2' failed, SLURM status is: 'FAILED'."]), encoding="utf-8"
    )
    assert slurm.blind(log, tmp_path) is None, (
        "job 1 succeeded and its log was removed, job 2 left one"
    )
    log.write_text(
        "\n".join([*lines, "SLURM-job '3' failed, SLURM status is: 'FAILED'."]), encoding="utf-8"
    )
    assert "Slurm jobs 3 failed without writing a line" in slurm.blind(log, tmp_path)

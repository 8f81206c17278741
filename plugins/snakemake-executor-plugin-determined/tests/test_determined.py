"""Snakemake through a double of a Determined master: what users do, and everything that can break.

`DETERMINED_FAULTS=../../benchmarks/determined/faults.md python -m pytest tests/test_determined.py` writes the table of faults.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from determined_master import IMAGE, TOKEN, Double
from determined_project import WAITING, Project, until

pytestmark = pytest.mark.heavy

Tell = Callable[[str, str], None]

HEAD = """\
# Faults and what the Determined executor made of them

Written by `DETERMINED_FAULTS=../../benchmarks/determined/faults.md python -m pytest tests/test_determined.py` in
`plugins/snakemake-executor-plugin-determined`: one tiny workflow per row, through the double in its `tests/determined_master.py`, polling
every 0.2 s and giving a silent command up after 1.5 s (by default: 10 s, and 90 s). Tested against a double of the public contract, not
against a live master; state strings come from the Go source. Seconds are of the whole row, two to five starts of Snakemake included, on a
machine of {cores} cores under a load of {load:.0f}.

| fault | what happened | seconds |
| --- | --- | --- |
"""


@pytest.fixture(scope="module")
def table() -> Iterator[list[tuple[str, str, float]]]:
    """Rows of the table of faults; written where DETERMINED_FAULTS says, if it does."""
    rows: list[tuple[str, str, float]] = []
    yield rows
    if target := os.environ.get("DETERMINED_FAULTS"):
        lines = [f"| {fault} | {happened} | {seconds:.1f} |" for fault, happened, seconds in rows]
        Path(target).write_text(
            HEAD.format(cores=os.cpu_count(), load=os.getloadavg()[2]) + "\n".join(lines) + "\n",
            encoding="utf-8",
        )


@pytest.fixture
def tell(table: list[tuple[str, str, float]]) -> Tell:
    """Note what was just seen, once it has been asserted."""
    start = time.monotonic()
    return lambda fault, happened: table.append((fault, happened, time.monotonic() - start))


@pytest.fixture
def double(tmp_path: Path) -> Iterator[Double]:
    with Double(tmp_path / "node") as double:
        yield double


@pytest.fixture
def project(tmp_path: Path, double: Double) -> Project:
    folder = tmp_path / "work"
    folder.mkdir()
    return Project(folder, double)


def test_a_job_becomes_a_command_with_slots_workspace_pool_and_environment(
    project: Project, double: Double
) -> None:
    project.options |= {
        "workspace": "study",
        "pool": "gpus",
        "environment-variables": ["COLOUR=blue", "SHAPE=a b"],
    }
    project.options["bind-mounts"] = [str(project.folder), f"{project.folder}:/in:ro"]
    project.write("echo $COLOUR $SHAPE > colour.txt", gpu=2)
    code, output = project.run()
    assert code == 0, output
    method, path, body = next(request for request in double.requests if request[0] == "POST")
    config = body["config"]
    assert (method, path, body["workspaceId"]) == ("POST", "/commands", 7)
    assert config["resources"] == {"slots": 2, "resource_pool": "gpus"}
    assert config["environment"] == {
        "image": IMAGE,
        "environment_variables": ["COLOUR=blue", "SHAPE=a b"],
    }
    same = {
        "host_path": str(project.folder),
        "container_path": str(project.folder),
        "read_only": False,
    }
    assert config["bind_mounts"] == [same, same | {"container_path": "/in", "read_only": True}]
    assert config["work_dir"] == str(project.folder)
    assert (project.folder / "colour.txt").read_text(encoding="utf-8") == "blue a b\n"
    assert TOKEN not in output
    assert TOKEN not in str(body)
    assert not [
        path
        for path in project.folder.rglob("*")
        if path.is_file() and TOKEN in path.read_text(encoding="utf-8", errors="ignore")
    ]
    assert not project.records()


def test_cpu_work_asks_for_no_slot(project: Project, double: Double) -> None:
    project.write(gpu=0)
    assert project.run()[0] == 0
    assert [command.config["resources"]["slots"] for command in double.started] == [0]


def test_a_failed_job_prints_its_log(project: Project, tell: Tell) -> None:
    project.write("echo the reason why >&2; exit 3")
    code, output = project.run()
    assert code == 1
    assert "the reason why" in output
    assert "its job exited with 1" in output  # of the inner Snakemake
    assert not (project.folder / "done.txt").exists()
    tell(
        "the job's shell command exits 3",
        "job failed, end of the command's log printed, no retry asked for",
    )


def test_a_failed_job_is_tried_again(project: Project, double: Double, tell: Tell) -> None:
    project.write("test -e second || { touch second; exit 1; }")
    code, output = project.run("--retries", "1")
    assert code == 0, output
    assert len(double.started) == 2
    tell("the job's first attempt fails, `--retries 1`", "second command, success")


def test_a_missing_interpreter_is_named(project: Project, tell: Tell) -> None:
    project.options["python"] = "/opt/nowhere/python"
    project.write()
    code, output = project.run()
    assert code == 1
    assert "Is /opt/nowhere/python in the image or below a bind mount" in output
    tell("interpreter not on the node", "exit code 127; error names it and the settings")


def test_a_command_killed_by_an_administrator_fails_its_job(
    project: Project, double: Double, tell: Tell
) -> None:
    project.write(WAITING)
    process = project.start()
    double.node.kill(project.until_it_works())
    code, output = project.end(process)
    assert code == 1
    assert "it ended without an exit code: killed, out of memory, or its node lost" in output
    assert not project.records()
    tell(
        "command killed by an administrator (Determined reports success)",
        "job failed after the grace time, not taken for a success",
    )


def test_interrupt_leaves_no_command_running(project: Project, double: Double, tell: Tell) -> None:
    project.write(WAITING)
    process = project.start()
    project.until_it_works()
    process.send_signal(signal.SIGINT)
    code, output = project.end(process)
    assert code != 0
    assert "Terminating processes on user request" in output
    assert not double.running()
    assert not project.records()
    tell("Ctrl-C while a command runs", "command killed, end confirmed before Snakemake exits")


def test_interrupt_during_submission_leaves_no_command_running(
    project: Project, double: Double, tell: Tell
) -> None:
    double.faults["answer lost"] = 1
    project.write(WAITING)
    process = project.start()
    until(lambda: double.started)
    double.faults["away"] = (
        1_000_000  # the answer was lost, and now the master is away: the id is unknown
    )
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    double.faults["away"] = 0
    code, output = project.end(process)
    assert code != 0, output
    assert not double.running()
    tell(
        "Ctrl-C after the answer to a submission was lost", "command found by its ticket and killed"
    )


def test_a_rejected_command_fails_with_the_masters_words(
    project: Project, double: Double, tell: Tell
) -> None:
    project.write(gpu=9)
    code, output = project.run()
    assert code == 1
    assert (
        "The Determined master rejects the command: request unfulfillable: slots exceed capacity."
        in output
    )
    assert not double.started
    assert not project.records()
    tell("more slots than any node has", "rejected at submission, the master's words in the error")


def test_a_wrong_token_stops_before_submission(
    project: Project, double: Double, tell: Tell
) -> None:
    project.token = "a-wrong-token"
    project.write()
    code, output = project.run()
    assert code == 1
    assert output.count("refuses the token") == 1
    assert "a-wrong-token" not in output
    assert not double.started
    tell("wrong token", "one error before any submission, naming DET_USER_TOKEN")


def test_an_unknown_pool_stops_before_submission(
    project: Project, double: Double, tell: Tell
) -> None:
    project.options["pool"] = "tpus"
    project.write()
    code, output = project.run()
    assert code == 1
    assert output.count("no resource pool 'tpus' that you may use, but default, gpus") == 1
    assert not double.started
    tell("unknown pool", "one error before any submission, naming the pools there are")


def test_an_unreachable_master_is_one_error(project: Project, double: Double, tell: Tell) -> None:
    project.options["patience-seconds"] = 1
    project.write()
    double.down()
    code, output = project.run()
    double.up()
    assert code == 1
    assert "does not answer: [Errno 111] Connection refused" in output
    assert output.count("Waited 1 seconds") == 1
    tell("no master at the address", "one error before any submission (within 10 s)")


def test_an_image_that_cannot_be_pulled_is_named(project: Project, tell: Tell) -> None:
    project.options["image"] = "nowhere:9"
    project.write()
    code, output = project.run()
    assert code == 1
    assert "manifest for nowhere:9 not found" in output
    tell("image cannot be pulled", "job failed with the master's reason")


def test_a_node_that_lacks_the_folder_is_named_with_the_setting(
    project: Project, tell: Tell
) -> None:
    project.options["bind-mounts"] = []
    project.write()
    code, output = project.run()
    assert code == 1
    assert f"does not see {project.folder}, or may not write there" in output
    assert f"--determined-bind-mounts {project.folder}:{project.folder}" in output
    assert not project.runs()
    tell(
        "the node does not see the working directory",
        "wrapper refuses to start; error names folder and setting, at once",
    )


def test_a_master_away_at_submission_costs_no_job_and_doubles_none(
    project: Project, double: Double, tell: Tell
) -> None:
    double.faults["unanswered"] = 2
    project.write()
    code, output = project.run()
    assert code == 0, output
    assert project.runs() == ["one"]
    assert len(double.started) == 1
    tell(
        "master drops the first two submissions", "submitted again with growing pauses, one command"
    )


def test_a_lost_answer_to_a_submission_starts_no_second_command(
    project: Project, double: Double, tell: Tell
) -> None:
    double.faults["answer lost"] = 1
    project.write()
    code, output = project.run()
    assert code == 0, output
    assert len(double.started) == 1
    tell(
        "submission arrives, its answer is lost", "command found by its ticket, not submitted again"
    )


@pytest.mark.parametrize("ends", ["after", "during"])
def test_a_master_away_in_mid_run_costs_no_job(
    project: Project, double: Double, tell: Tell, ends: str
) -> None:
    project.write(WAITING)
    process = project.start()
    project.until_it_works()
    double.down()
    time.sleep(2)
    if ends == "during":
        project.go()
        until(lambda: (project.folder / "done.txt").exists())
        until(lambda: process.poll() is not None, 30)
    double.up()
    project.go()
    code, output = project.end(process)
    assert code == 0, output
    assert output.count("Commands keep running") == 1
    assert project.runs() == ["one"]
    tell(
        f"master away in mid-run, the job ends {ends} the outage",
        "one warning, job done" + (" without the master" * (ends == "during")),
    )


def test_a_master_that_stays_away_does_not_hang_a_run_whose_command_is_silent(
    project: Project, double: Double, tell: Tell
) -> None:
    project.options["patience-seconds"] = 2
    project.write(WAITING)
    process = project.start()
    command = project.until_it_works()
    double.down()
    double.node.kill(command)
    code, output = project.end(process)
    double.up()
    assert code == 1
    assert output.count("No sign of it or of any command for 2 seconds") == 1
    assert project.records()
    tell(
        "master gone for good, and the command with it",
        "run stops with one error after the patience time; record kept",
    )


@pytest.mark.parametrize("known", [True, False])
def test_a_running_command_survives_kill_9_and_is_taken_over(
    project: Project, double: Double, tell: Tell, known: bool
) -> None:
    project.write(WAITING)
    process = project.start()
    command = project.until_it_works()
    project.kill(process)
    if not known:  # as if killed between the request and its answer
        record = next((project.folder / ".snakemake/determined").glob("*.json"))
        record.write_text(
            record.read_text(encoding="utf-8").replace(f'"{command.id}"', "null"), encoding="utf-8"
        )
    unlocked, output = project.run("--unlock")
    assert unlocked == 0, output
    process = project.start("--rerun-incomplete")
    project.until_watched(command)
    project.go()
    code, output = project.end(process)
    assert code == 0, output
    assert f"taken over from an earlier run as Determined command {command.id}" in output
    assert project.runs() == ["one"]
    assert len(double.started) == 1
    assert not project.records()
    when = "" if known else " before the answer arrived (id struck from the record)"
    tell(f"kill -9 of Snakemake{when}", "command taken over at restart, job ran once")


def test_a_command_for_other_parameters_is_ended_before_the_job_is_submitted_anew(
    project: Project, double: Double, tell: Tell
) -> None:
    project.write(WAITING)
    process = project.start()
    first = project.until_it_works()
    project.kill(process)
    project.write(WAITING, word="two")
    unlocked, output = project.run("--unlock")
    assert unlocked == 0, output
    process = project.start("--rerun-incomplete")
    project.until_it_works(2)
    assert first.killed
    assert [command.id for command in double.running()] == [double.started[-1].id]
    project.go()
    code, output = project.end(process)
    assert code == 0, output
    assert (project.folder / "done.txt").read_text(encoding="utf-8") == "two\n"
    tell(
        "kill -9, then a parameter is edited",
        "old command ended first, then a new one: never two writers",
    )


def test_a_dead_command_is_submitted_anew_after_kill_9(
    project: Project, double: Double, tell: Tell
) -> None:
    project.write(WAITING)
    process = project.start()
    command = project.until_it_works()
    project.kill(process)
    double.node.kill(command)
    project.go()
    code, output = project.resume()
    assert code == 0, output
    assert project.runs() == ["one", "one"]
    tell("kill -9, and the command is killed too", "submitted anew at restart")


def test_a_forgotten_command_that_runs_on_is_waited_for(
    project: Project, double: Double, tell: Tell
) -> None:
    project.write(WAITING)
    process = project.start("--retries", "1")
    project.until_it_works()
    double.forget()
    time.sleep(3)  # twice the grace time
    assert process.poll() is None
    project.go()
    code, output = project.end(process)
    assert code == 0, output
    assert project.runs() == ["one"]
    tell(
        "master restarts and forgets the command, which runs on",
        "its signs of life on the file system are believed, job done",
    )


def test_a_forgotten_command_that_died_fails_its_job(
    project: Project, double: Double, tell: Tell
) -> None:
    project.write(WAITING)
    process = project.start()
    command = project.until_it_works()
    double.forget()
    double.node.kill(command)
    code, output = project.end(process)
    assert code == 1
    assert "the master does not know it (was it restarted?)" in output
    tell(
        "master restarts, the command is lost",
        "job failed after the grace time (`--retries` would submit it again)",
    )


def test_a_token_refused_in_mid_run_is_one_error_and_the_command_is_taken_over_later(
    project: Project, double: Double, tell: Tell
) -> None:
    project.write(WAITING)
    process = project.start()
    command = project.until_it_works()
    double.token = "renewed"
    code, output = project.end(process)
    assert code == 1
    assert output.count("refuses the token") == 1
    assert double.running() == [command]
    project.token = "renewed"
    process = project.start("--rerun-incomplete")
    project.until_watched(command)
    project.go()
    code, output = project.end(process)
    assert code == 0, output
    assert project.runs() == ["one"]
    tell(
        "token expires in mid-run",
        "run stops with one error, command keeps running; taken over with a fresh token",
    )

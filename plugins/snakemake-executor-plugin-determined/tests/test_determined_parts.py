"""The Determined executor's parts, one at a time: settings, start-up checks, HTTP, wrapper script, record, liveness, takeover."""

import logging
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from determined_master import IMAGE, PASSWORD, TOKEN, USER, Double
from determined_project import until
from snakemake_interface_common.exceptions import WorkflowError

from snakemake_executor_plugin_determined import command
from snakemake_executor_plugin_determined.ending import Pulse
from snakemake_executor_plugin_determined.master import (
    Client,
    Master,
    Outage,
    RejectedError,
    State,
    TokenRefusedError,
    UnreachableError,
    canonical_address,
    patiently,
    pauses,
)
from snakemake_executor_plugin_determined.registry import Registry, fingerprint_of, key_of
from snakemake_executor_plugin_determined.settings import (
    ExecutorSettings,
    bind_mounts,
    connect,
    environment_variables,
)
from snakemake_executor_plugin_determined.submission import slots_of, submit, take_over

LOGGER = logging.getLogger("determined")
RUNNING, ENDED = State(ended=False), State(ended=True, reason="allocation exited successfully")


@pytest.fixture
def double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Double]:
    for name in ("DET_MASTER", "DET_USER", "DET_PASS", "DET_MASTER_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DET_USER_TOKEN", TOKEN)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Double(tmp_path / "node") as double:
        yield double


def settings(double: Double, **changes: object) -> ExecutorSettings:
    return ExecutorSettings(
        **({"master": double.address, "image": IMAGE, "patience_seconds": 0.3} | changes)
    )


def test_a_mount_is_the_same_path_inside_unless_told_otherwise() -> None:
    assert bind_mounts(["/a", "/b:/c", "/d:/d:ro"]) == [
        {"host_path": "/a", "container_path": "/a", "read_only": False},
        {"host_path": "/b", "container_path": "/c", "read_only": False},
        {"host_path": "/d", "container_path": "/d", "read_only": True},
    ]


@pytest.mark.parametrize("value", ["a", "/a:b", "/a:/b:rw", "/a:/b:ro:x", ""])
def test_a_malformed_mount_is_named(value: str) -> None:
    with pytest.raises(WorkflowError, match="--determined-bind-mounts"):
        bind_mounts([value])


def test_a_bare_variable_takes_its_value_from_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLOUR", "blue")
    assert environment_variables(["COLOUR", "SHAPE=a=b", "EMPTY="]) == {
        "COLOUR": "blue",
        "SHAPE": "a=b",
        "EMPTY": "",
    }
    monkeypatch.delenv("COLOUR")
    with pytest.raises(WorkflowError, match="COLOUR has no value here"):
        environment_variables(["COLOUR"])


@pytest.mark.parametrize("value", ["DET_USER_TOKEN", "DET_PASS=x"])
def test_secrets_are_not_passed_on(value: str) -> None:
    with pytest.raises(WorkflowError, match="is a secret"):
        environment_variables([value])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"master": None}, "No Determined master: give --determined-master"),
        ({"master": "ftp://x"}, "must look like https://HOST:PORT"),
        ({"image": None}, "No image for Determined commands: name one with --determined-image"),
        ({"pool": "tpus"}, "no resource pool 'tpus' that you may use, but default, gpus"),
        (
            {"workspace": "nowhere"},
            "no workspace 'nowhere' that you may see, but Uncategorized, old, study",
        ),
        ({"workspace": "stud"}, "no workspace 'stud'"),
        ({"workspace": "old"}, "'old' is archived"),
        ({"bind_mounts": ["x"]}, "--determined-bind-mounts"),
        ({"master": "127.0.0.1:9"}, "does not answer: .*refused"),
    ],
)
def test_bad_input_is_named_at_the_start(double: Double, changes: dict, message: str) -> None:
    with pytest.raises(WorkflowError, match=message):
        connect(settings(double, **changes), 0.1, lambda _: None)
    assert not double.commands


def test_the_address_may_come_from_the_environment(
    double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DET_MASTER", double.address.removeprefix("http://"))
    target = connect(
        settings(double, master=None, workspace="study", pool="gpus"), 0.1, lambda _: None
    )
    assert (target.workspace, target.pool, target.master.client.address) == (
        7,
        "gpus",
        double.address,
    )


@pytest.mark.parametrize(
    "given", ["https://ada:secret@host", "http://", "https://host/?token=secret"]
)
def test_an_address_with_a_secret_or_without_a_host_is_refused_without_repeating_it(
    given: str,
) -> None:
    with pytest.raises(WorkflowError) as caught:
        canonical_address(given)
    assert "secret" not in str(caught.value)


def test_a_refused_token_is_not_repeated_in_the_error(
    double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DET_USER_TOKEN", "wrong-token")
    with pytest.raises(TokenRefusedError) as caught:
        Master(Client(double.address)).check()
    assert "DET_USER_TOKEN" in str(caught.value)
    assert "wrong-token" not in str(caught.value)


def test_without_a_token_the_login_gives_one_and_again_when_it_expires(
    double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DET_USER_TOKEN")
    monkeypatch.setenv("DET_USER", USER)
    monkeypatch.setenv("DET_PASS", PASSWORD)
    master = Master(Client(double.address))
    master.check()
    double.token = "renewed"
    master.check()
    assert double.authorizations[-1] == "Bearer renewed"
    assert PASSWORD not in str(double.requests)


@pytest.mark.parametrize(
    ("variables", "message"),
    [({}, "No token"), ({"DET_USER": USER, "DET_PASS": "wrong"}, "refuses the login")],
)
def test_no_token_and_no_login_is_one_error(
    double: Double, monkeypatch: pytest.MonkeyPatch, variables: dict, message: str
) -> None:
    monkeypatch.delenv("DET_USER_TOKEN")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TokenRefusedError, match=message):
        Master(Client(double.address)).check()


def test_netrc_does_not_replace_the_token(
    double: Double, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login x password y\n", encoding="utf-8")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    Master(Client(double.address)).check()
    assert double.authorizations == [f"Bearer {TOKEN}"]


class Elsewhere(BaseHTTPRequestHandler):
    """Some other server, that also sends visitors on to the address in `target`."""

    target = ""
    seen: list[str]

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.seen.append(self.headers.get("Authorization", ""))
        self.send_response(302 if self.target else 200)
        if self.target:
            self.send_header("Location", f"{self.target}{self.path}")
        self.end_headers()
        self.wfile.write(b"" if self.target else b"<html>Welcome</html>")


def serve(target: str = "") -> tuple[HTTPServer, type[Elsewhere]]:
    handler = type("Handler", (Elsewhere,), {"target": target, "seen": []})
    server = HTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server, handler


def test_another_server_is_recognized_and_a_redirect_takes_no_token_along(double: Double) -> None:
    stranger, visits = serve()
    gate, _ = serve(f"http://localhost:{stranger.server_port}")  # another host name
    with pytest.raises(UnreachableError, match="answers, but not as a Determined master"):
        Master(Client(f"http://127.0.0.1:{gate.server_port}")).check()
    assert visits.seen == [""]
    for server in (stranger, gate):
        server.shutdown()
        server.server_close()


def test_an_unknown_key_is_refused_with_the_masters_words(double: Double) -> None:
    with pytest.raises(RejectedError, match='unknown field "slurm_options"'):
        Master(Client(double.address)).launch({"entrypoint": ["true"], "slurm_options": {}}, None)


def test_a_proxy_without_its_master_counts_as_an_outage(double: Double) -> None:
    double.faults["away"] = 2
    warnings: list[str] = []
    patiently(Master(Client(double.address)).check, 10, 0.01, warnings.append)
    assert len(warnings) == 2
    assert "HTTP 503" in warnings[0]


def test_pauses_double_up_to_a_limit() -> None:
    waits = pauses(1.0)
    assert [next(waits) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]


@pytest.mark.parametrize("gpus", [-1, "two", 1.5])
def test_slots_are_whole_numbers(gpus: object) -> None:
    with pytest.raises(WorkflowError, match="Resource gpu="):
        slots_of(SimpleNamespace(name="train", resources={"gpu": gpus}))


def make_folder(tmp_path: Path, job: str) -> Path:
    folder = tmp_path / "ticket"
    folder.mkdir()
    (folder / "run.sh").write_text(command.script(job, tmp_path, folder, 0.9), encoding="utf-8")
    return folder


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command.entrypoint(folder / "run.sh"),
        text=True,
        capture_output=True,
        check=False,
        timeout=30,
        cwd="/",
    )


@pytest.mark.parametrize(
    ("job", "code"),
    [("true", 0), ("exit 3", 3), ("cd / && false", 1), ("sleep 0.3; kill -9 $$", -9)],
)
def test_the_script_leaves_the_jobs_exit_code_unless_it_is_killed(
    tmp_path: Path, job: str, code: int
) -> None:
    folder = make_folder(tmp_path, job)
    assert run(folder).returncode == code
    assert (folder / "exit").exists() == (code >= 0)
    assert code < 0 or int((folder / "exit").read_text(encoding="ascii")) == code


def test_the_script_gives_signs_of_life_until_it_ends(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "sleep 0.5")
    run(folder)
    first = (folder / "alive").stat().st_mtime_ns
    assert first > (folder / "run.sh").stat().st_mtime_ns
    time.sleep(0.3)
    assert (folder / "alive").stat().st_mtime_ns == first


def test_a_second_command_of_one_ticket_does_not_run_the_job(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, f"echo x >> {tmp_path}/runs")
    assert [run(folder).returncode for _ in range(2)] == [0, command.DOUBLE]
    assert (tmp_path / "runs").read_text(encoding="utf-8") == "x\n"


def test_a_node_without_the_folder_says_so(tmp_path: Path) -> None:
    done = run(tmp_path / "nowhere")
    assert (done.returncode, done.stdout) == (
        command.UNSEEN,
        f"This node does not see {tmp_path}/nowhere, or may not write there.\n",
    )


def test_a_job_is_watched_by_one_snakemake(tmp_path: Path) -> None:
    entry = Registry(tmp_path).new("key", "fingerprint")
    with pytest.raises(WorkflowError, match="Another Snakemake"):
        Registry(tmp_path).earlier("key")
    Registry(tmp_path).remove(entry)
    assert Registry(tmp_path).earlier("key") is None


def test_silence_is_death_only_if_the_master_does_not_call_it_running() -> None:
    pulse = Pulse(grace=0.2)
    time.sleep(0.3)
    assert pulse.death(RUNNING) is None
    assert pulse.death(None) is None  # its last sign was just now
    time.sleep(0.3)
    assert "the master does not know it" in pulse.death(None)
    assert "ended without an exit code" in pulse.death(ENDED)
    assert pulse.feel(1)
    assert pulse.death(ENDED) is None
    assert not pulse.feel(1)


def test_an_outage_is_told_once_and_asked_less_and_less_often() -> None:
    outage = Outage(patience=0.2, first_pause=100.0)
    assert outage.ask_again()
    assert outage.began(time.monotonic())
    assert not outage.ask_again()
    assert not outage.began(time.monotonic())
    assert not outage.too_long()
    time.sleep(0.3)
    assert outage.too_long()
    assert outage.over()
    assert not outage.over()
    assert outage.ask_again()
    assert not outage.too_long()


class Job(SimpleNamespace):
    """As much of a Snakemake job as record and takeover look at."""

    jobid, name = 1, "work"

    def is_group(self) -> bool:
        return False


def job(tmp_path: Path, word: str = "one") -> Job:
    parameters = type("Parameters", (list,), {"keys": lambda self: ["word"]})([word])
    given = tmp_path / "in.txt"
    if not given.exists():
        given.touch()
    return Job(
        output=["out.txt"],
        input=[str(given)],
        params=parameters,
        shellcmd="echo",
        rule=SimpleNamespace(name="work"),
        resources={},
    )


def test_a_fingerprint_follows_parameters_and_inputs_and_the_key_only_outputs(
    tmp_path: Path,
) -> None:
    first = job(tmp_path)
    before = fingerprint_of(first)
    assert fingerprint_of(job(tmp_path, "two")) != before
    assert key_of(job(tmp_path, "two")) == key_of(first)
    os.utime(tmp_path / "in.txt", ns=(1, 1))
    assert fingerprint_of(first) != before


def test_a_submission_is_on_record_before_the_master_answers(
    double: Double, tmp_path: Path
) -> None:
    double.faults["unanswered"] = 100
    target, asked, registry = (
        connect(settings(double), 0.1, lambda _: None),
        job(tmp_path),
        Registry(tmp_path / "records"),
    )
    entry = registry.new(key_of(asked), fingerprint_of(asked))
    with pytest.raises(UnreachableError, match="--determined-patience-seconds"):
        submit(target, registry, entry, asked, line="true", variables={}, grace=1.0, logger=LOGGER)
    entry.lock.close()
    left = registry.earlier(entry.key)
    assert (left.ticket, left.command) == (entry.ticket, None)
    assert left.script.exists()


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_exit_code_from_before_this_run_is_no_reason_to_skip_the_job(
    double: Double, tmp_path: Path, when: str
) -> None:
    target = connect(settings(double), 0.1, lambda _: None)
    asked, root = job(tmp_path), tmp_path / "records"
    old = Registry(root)
    entry = old.new(key_of(asked), fingerprint_of(asked))
    old.save(entry)
    entry.lock.close()
    registry = Registry(root)
    (entry.folder / "exit").write_text("0\n", encoding="ascii")
    moment = registry.started.stat().st_mtime_ns + (10**9 if when == "after" else -(10**9))
    os.utime(entry.folder / "exit", ns=(moment, moment))
    found = take_over(target, registry, asked, 0.5, LOGGER)
    assert (found is not None) == (when == "after")
    assert entry.folder.exists() == (when == "after")


def test_a_command_under_kill_is_not_taken_over(double: Double, tmp_path: Path) -> None:
    target = connect(settings(double), 0.1, lambda _: None)
    asked, registry = job(tmp_path), Registry(tmp_path / "records")
    entry = registry.new(key_of(asked), fingerprint_of(asked))
    entry.command, _ = target.master.launch(
        {
            "entrypoint": ["/bin/sleep", "60"],
            "environment": {"image": IMAGE},
            "resources": {"slots": 0},
        },
        None,
    )
    entry.killed = True
    registry.save(entry)
    entry.lock.close()
    until(double.running)
    assert take_over(target, registry, asked, 0.5, LOGGER) is None
    assert not double.running()

"""Determined's own client reads every answer of the double, and would send what the executor sends.

The bindings are one file of PyPI's `determined` (envs/test-only.txt). It is loaded by its path: the package around it imports 27 others.
"""

import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import requests
from determined_master import IMAGE, PASSWORD, TOKEN, USER, Double
from determined_project import until

from snakemake_executor_plugin_determined.command import configuration
from snakemake_executor_plugin_determined.master import SALT, Client, Master

CONTRACT = Path(os.environ.get("DETERMINED_CONTRACT", Path(sys.prefix) / "test-only"))


@pytest.fixture(scope="module")
def bindings() -> ModuleType:
    path = CONTRACT / "determined/common/api/bindings.py"
    if not path.exists():
        pytest.skip(
            f"{path} is missing; pip install --no-deps --target {CONTRACT} -r envs/test-only.txt"
        )
    spec = importlib.util.spec_from_file_location("determined_bindings", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["determined_bindings"] = module
    with warnings.catch_warnings(action="ignore"):  # of its docstrings
        spec.loader.exec_module(module)
    return module


@pytest.fixture
def double(tmp_path: Path) -> Iterator[Double]:
    with Double(tmp_path / "node") as double:
        yield double


@pytest.fixture
def config(tmp_path: Path) -> dict:
    """A command as the executor configures it, with a script that says something and fails."""
    script = tmp_path / "run.sh"
    script.write_text("echo said; exit 3\n", encoding="utf-8")
    mounts = [{"host_path": str(tmp_path), "container_path": str(tmp_path), "read_only": False}]
    return configuration(
        description="snakemake work ticket", script_path=script, workdir=tmp_path, slots=1, image=IMAGE, pool="gpus", mounts=mounts,
        variables={"COLOUR": "blue"},
    )  # fmt: skip


class Session:
    """What the bindings ask of Determined's session: one HTTP request."""

    def __init__(self, double: Double) -> None:
        self.double = double

    def _do_request(
        self, method: str, path: str, params: dict, json: dict, stream: bool, **_: object
    ) -> requests.Response:
        url, headers = f"{self.double.address}{path}", {"Authorization": f"Bearer {TOKEN}"}
        return requests.request(
            method, url, params=params, json=json, headers=headers, stream=stream, timeout=10
        )


def test_the_bindings_read_every_answer(bindings: ModuleType, double: Double, config: dict) -> None:
    session = Session(double)
    assert bindings.get_GetMe(session).user.username == USER
    assert [pool.name for pool in bindings.get_GetResourcePools(session).resourcePools] == [
        "default",
        "gpus",
    ]
    assert [
        found.id
        for found in bindings.get_GetWorkspaces(session, nameCaseSensitive="study").workspaces
    ] == [7]

    launched = bindings.post_LaunchCommand(
        session, body=bindings.v1LaunchCommandRequest(config=config, workspaceId=7)
    ).command
    until(lambda: bindings.get_GetTask(session, taskId=launched.id).task.endTime)
    task = bindings.get_GetTask(session, taskId=launched.id).task
    assert (task.taskType, task.allocations[-1].state) == (
        bindings.v1TaskType.COMMAND,
        bindings.taskv1State.TERMINATED,
    )
    assert (task.allocations[-1].statusCode, task.allocations[-1].slots) == (3, 1)
    assert [
        line.log for line in bindings.get_TaskLogs(session, taskId=launched.id, follow=False)
    ] == ["said\n"]
    assert bindings.get_GetCommand(session, commandId=launched.id).config == config
    assert [
        (found.id, found.workspaceId) for found in bindings.get_GetCommands(session).commands
    ] == [(launched.id, 7)]
    assert (
        bindings.post_KillCommand(session, commandId=launched.id).command.state
        == bindings.taskv1State.TERMINATED
    )


def test_every_state_of_a_command_is_one_of_the_contract(
    bindings: ModuleType, double: Double, config: dict
) -> None:
    config["entrypoint"] = ["/bin/sh", "-c", "sleep 60"]
    seen = set()
    session = Session(double)
    first = bindings.post_LaunchCommand(
        session, body=bindings.v1LaunchCommandRequest(config=config | {"resources": {"slots": 2}})
    ).command
    until(
        lambda: (
            bindings.get_GetTask(session, taskId=first.id).task.allocations[-1].state
            == bindings.taskv1State.RUNNING
        )
    )
    second = bindings.post_LaunchCommand(
        session, body=bindings.v1LaunchCommandRequest(config=config)
    ).command
    seen |= {
        bindings.get_GetTask(session, taskId=command.id).task.allocations[-1].state
        for command in (first, second)
    }
    bindings.post_KillCommand(session, commandId=first.id)
    until(
        lambda: (
            bindings.get_GetTask(session, taskId=first.id).task.allocations[-1].state
            == bindings.taskv1State.TERMINATED
        )
    )
    assert seen == {bindings.taskv1State.RUNNING, bindings.taskv1State.QUEUED}


def test_a_login_is_what_the_bindings_would_send(
    bindings: ModuleType, double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DET_USER_TOKEN", raising=False)
    monkeypatch.setenv("DET_USER", USER)
    monkeypatch.setenv("DET_PASS", PASSWORD)
    Master(Client(double.address)).check()
    sent = next(body for method, path, body in double.requests if path == "/auth/login")
    assert bindings.v1LoginRequest.from_json(sent).to_json(omit_unset=True) == sent
    source = (CONTRACT / "determined/common/api/authentication.py").read_text(encoding="utf-8")
    assert f'PASSWORD_SALT = "{SALT}"' in source


def test_what_the_executor_sends_and_asks_is_in_the_contract(
    bindings: ModuleType, double: Double, config: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DET_USER_TOKEN", TOKEN)
    master = Master(Client(double.address))
    command, _ = master.launch(config, 7)
    until(lambda: master.state(command).ended)
    assert master.log_tail(command, 5) == ["said"]
    assert master.find("ticket") == {"ticket": [command]}
    assert (master.workspace_id("study"), master.check_pool("gpus")) == (7, None)
    master.kill(command)
    master.check()
    ours = {(method, path.replace(command, "ID")) for method, path, _ in double.requests}
    body = next(
        body for method, path, body in double.requests if (method, path) == ("POST", "/commands")
    )
    assert bindings.v1LaunchCommandRequest.from_json(body).to_json(omit_unset=True) == body

    double.requests.clear()
    session = Session(double)
    bindings.post_LaunchCommand(
        session, body=bindings.v1LaunchCommandRequest(config=config, workspaceId=7)
    )
    bindings.get_GetTask(session, taskId=command)
    list(bindings.get_TaskLogs(session, taskId=command))  # a generator
    bindings.post_KillCommand(session, commandId=command)
    for call in (
        bindings.get_GetMe,
        bindings.get_GetCommands,
        bindings.get_GetWorkspaces,
        bindings.get_GetResourcePools,
    ):
        call(session)
    theirs = {(method, path.replace(command, "ID")) for method, path, _ in double.requests}
    assert ours == theirs

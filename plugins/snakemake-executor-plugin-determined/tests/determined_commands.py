"""Commands of the double of a Determined master: each runs as a process of this machine, in the states that Determined gives it.

State strings and exit reasons come from the Go source of 0.38 (master/internal/task/allocation.go), never from a live master. A
container is imitated where the executor could tell the difference: the environment is clean, bind mounts are translated, and a working
directory that no mount covers is an empty folder, as Docker makes it.
"""

import os
import signal
import subprocess
import threading
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Command:
    """One command, from the queue to its end."""

    def __init__(self, config: dict, workspace: int, user: str) -> None:
        self.id, self.job_id = str(uuid.uuid4()), str(uuid.uuid4())
        self.config, self.workspace, self.user = config, workspace, user
        self.slots = config.get("resources", {}).get("slots", 1)
        self.started, self.ended = now(), ""
        self.state, self.exit_status, self.exit_reason = "STATE_QUEUED", "", ""
        self.code: int | None = None
        self.killed = False
        self.process: subprocess.Popen[str] | None = None
        self.log: list[str] = []

    def v1(self) -> dict:
        return {
            "id": self.id,
            "description": self.config.get("description") or "Command (double)",
            "state": self.state,
            "startTime": self.started,
            "container": None,
            "displayName": "",
            "userId": 1,
            "username": self.user,
            "resourcePool": self.config.get("resources", {}).get("resource_pool") or "default",
            "exitStatus": self.exit_status,
            "jobId": self.job_id,
            "workspaceId": self.workspace,
        }

    def task(self) -> dict:
        allocation = {
            "taskId": self.id,
            "allocationId": f"{self.id}.1",
            "state": self.state,
            "isReady": self.state == "STATE_RUNNING",
            "startTime": self.started,
            "slots": self.slots,
        }
        ended = {"endTime": self.ended} if self.ended else {}
        reason = {"exitReason": self.exit_reason} if self.ended else {}
        code = {"statusCode": self.code} if self.code else {}
        return {
            "taskId": self.id,
            "taskType": "TASK_TYPE_COMMAND",
            "allocations": [allocation | ended | reason | code],
            "startTime": self.started,
        } | ended

    def log_lines(self) -> list[dict]:
        return [
            {
                "id": str(number),
                "timestamp": self.started,
                "message": line,
                "log": line,
                "level": "LOG_LEVEL_INFO",
                "taskId": self.id,
            }
            for number, line in enumerate(self.log)
        ]

    def end(self, code: int | None, failure: str = "") -> None:
        """Determined's words for an end; a kill reads as success, and has no code."""
        failure = failure or f"container failed with non-zero exit code: {code} (exit code {code})"
        if self.killed:
            self.exit_status, self.exit_reason = (
                "allocation exited successfully",
                "allocation killed after all resources exited",
            )
        elif code == 0:
            self.exit_status, self.exit_reason = (
                "allocation exited successfully",
                "allocation stopped early after all resources exited",
            )
        else:
            self.exit_status = f"resources failed with non-zero exit code: {failure}"
            self.exit_reason, self.code = f"allocation failed: {self.exit_status}", code
        self.ended, self.state = now(), "STATE_TERMINATED"


class Node:
    """One machine with slots; runs commands in the order in which they come."""

    def __init__(
        self, folder: Path, slots: int, images: tuple[str, ...], queue_seconds: float
    ) -> None:
        self.slots, self.free, self.images, self.queue_seconds = slots, slots, images, queue_seconds
        self.unmounted = folder / "unmounted"
        self.unmounted.mkdir(parents=True, exist_ok=True)
        self.changed = threading.Condition()

    def start(self, command: Command) -> None:
        threading.Thread(target=self._live, args=(command,), daemon=True).start()

    def kill(self, command: Command) -> None:
        with self.changed:
            if command.state == "STATE_TERMINATED":
                return
            command.killed = True
            if command.process:
                os.killpg(command.process.pid, signal.SIGKILL)
            self.changed.notify_all()

    def _live(self, command: Command) -> None:
        time.sleep(self.queue_seconds)
        with self.changed:
            self.changed.wait_for(lambda: command.killed or self.free >= command.slots)
            if command.killed:
                command.end(None)
                return
            self.free -= command.slots
        try:
            self._run(command)
        finally:
            with self.changed:
                self.free += command.slots
                self.changed.notify_all()

    def _run(self, command: Command) -> None:
        image = command.config.get("environment", {}).get("image")
        missing = [
            mount["host_path"] for mount in mounts(command) if not Path(mount["host_path"]).exists()
        ]
        if image not in self.images:
            command.end(
                None, f"error pulling image: manifest for {image} not found: manifest unknown"
            )
        elif missing:
            command.end(
                None,
                f"invalid mount config for type bind: bind source path does not exist: {missing[0]}",
            )
        else:
            self._run_process(command)

    def _run_process(self, command: Command) -> None:
        with self.changed:
            if command.killed:
                command.end(None)
                return
            command.process = subprocess.Popen(
                [self.inside(command, argument) for argument in command.config["entrypoint"]], cwd=self.unmounted,
                env=environment(command), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            command.state = "STATE_RUNNING"
        assert command.process.stdout
        with command.process.stdout as lines:
            command.log.extend(lines)
        code = command.process.wait()
        with self.changed:
            command.end(code if code >= 0 else 128 - code)

    def inside(self, command: Command, text: str) -> str:
        """A text of paths as the container sees them, with the paths of this machine."""
        seen = [(mount["container_path"], mount["host_path"]) for mount in mounts(command)]
        workdir = command.config.get("work_dir")
        if workdir and not any(
            PurePosixPath(workdir).is_relative_to(container) for container, _ in seen
        ):
            seen.append((workdir, str(self.unmounted)))
        for container, host in sorted(seen, reverse=True):
            text = text.replace(container, host)
        return text


def mounts(command: Command) -> list[dict]:
    return command.config.get("bind_mounts") or []


def environment(command: Command) -> dict[str, str]:
    """What a container gets: its image's basics, the configuration's variables, Determined's own, nothing else of this process."""
    given = dict(
        variable.split("=", 1)
        for variable in command.config.get("environment", {}).get("environment_variables") or []
    )
    basics = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    devices = ",".join(map(str, range(command.slots)))
    return (
        basics
        | given
        | {"DET_TASK_TYPE": "COMMAND", "DET_TASK_ID": command.id, "CUDA_VISIBLE_DEVICES": devices}
    )

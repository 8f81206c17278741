"""A double of a Determined master: a small HTTP server that runs commands for real and breaks on demand.

It answers the part of the public contract of 0.38.1 that the executor uses (proto/src/determined/api/v1; JSON as grpc-gateway writes it).
`test_determined_contract.py` has Determined's own strict bindings read every answer. What it cannot show: how a live master behaves.
Unlike that, it keeps state through `down` and `up`, and has one node.
"""

import hashlib
import json
import re
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlparse

from determined_commands import Command, Node

IMAGE = "study:1"
TOKEN = "token-of-the-double"
USER, PASSWORD = "ada", "Pass-w0rd"
GRPC_CODES = {400: 3, 401: 16, 403: 7, 404: 5}
CONFIG_KEYS = {
    "": {
        "description",
        "entrypoint",
        "work_dir",
        "resources",
        "environment",
        "bind_mounts",
        "debug",
        "idle_timeout",
    },
    "resources": {"slots", "resource_pool", "priority", "weight", "shm_size", "devices"},
    "environment": {
        "image",
        "environment_variables",
        "force_pull_image",
        "registry_auth",
        "pod_spec",
        "ports",
        "proxy_ports",
    },
}


class Refusal(Exception):  # noqa: N818
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Double:
    """One master with one node. Use as a context manager; `address` stays the same through outages."""

    def __init__(self, folder: Path, slots: int = 2, queue_seconds: float = 0.0) -> None:
        self.node = Node(folder, slots, (IMAGE,), queue_seconds)
        self.commands: dict[str, Command] = {}
        self.started: list[
            Command
        ] = []  # every command ever, also those that a restart made it forget
        self.requests: list[tuple[str, str, dict | None]] = []
        self.authorizations: list[str] = []
        self.token = TOKEN
        self.faults: Counter[str] = Counter()
        """How many more times: "unanswered" (POST /commands is lost), "answer lost" (it runs, its answer is lost), "away" (HTTP 503)."""
        self.pools, self.workspaces = (
            ("default", "gpus"),
            {"Uncategorized": 1, "study": 7, "old": 8},
        )
        self._port = 0
        self.up()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> "Double":
        return self

    def __exit__(self, *_: object) -> None:
        self.down()
        for command in self.started:
            self.node.kill(command)

    def up(self) -> None:
        self._server = ThreadingHTTPServer(
            ("127.0.0.1", self._port), type("Bound", (Handler,), {"double": self})
        )
        self._server.daemon_threads = True
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def down(self) -> None:
        """Connections are refused from now on; commands run on."""
        self._server.shutdown()
        self._server.server_close()

    def forget(self) -> None:
        """What a restart does: no command is known any more. Whether they run on is up to their agents: here they do."""
        self.commands.clear()

    def running(self) -> list[Command]:
        return [
            command
            for command in self.started
            if command.process and command.process.poll() is None
        ]

    def launch(self, body: dict) -> dict:
        config = body["config"]
        check(config)
        resources = config.get("resources", {})
        if resources.get("resource_pool", "default") not in self.pools:
            raise Refusal(400, f"cannot find pool with name {resources['resource_pool']}")
        if resources.get("slots", 1) > self.node.slots:
            raise Refusal(400, "request unfulfillable: slots exceed capacity")
        command = Command(config, body.get("workspaceId") or 1, USER)
        self.commands[command.id] = command
        self.started.append(command)
        self.node.start(command)
        return {"command": command.v1(), "config": config, "warnings": []}


def check(config: dict) -> None:
    """Go's decoder disallows unknown fields; the config's own checks come after."""
    for section, known in CONFIG_KEYS.items():
        for name in config.get(section, {}) if section else config:
            if name not in known:
                raise Refusal(
                    400, f'unable to decode the merged config: json: unknown field "{name}"'
                )
    if not config.get("entrypoint"):
        raise Refusal(400, "invalid command config: entrypoint must be non-empty")
    if any(
        not mount["container_path"].startswith("/") for mount in config.get("bind_mounts") or []
    ):
        raise Refusal(400, "invalid command config: container_path must be absolute")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    double: Double

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.respond(None)

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.respond(json.loads(content) if content else {})

    def respond(self, body: dict | None) -> None:
        double, url = self.double, urlparse(self.path)
        path, query = url.path.removeprefix("/api/v1"), parse_qs(url.query)
        double.requests.append((self.command, path, body))
        double.authorizations.append(self.headers.get("Authorization", ""))
        launching = (self.command, path) == ("POST", "/commands")
        if launching and self.fault("unanswered"):
            self.hang_up()
        elif self.fault("away"):
            self.send(503, b"<html>no healthy upstream</html>")
        else:
            try:
                answer = self.answer(path, query, body)
            except Refusal as error:
                details = {"code": GRPC_CODES[error.status], "reason": "", "error": str(error)}
                self.send(
                    error.status, json.dumps({"error": details, "message": str(error)}).encode()
                )
                return
            if launching and self.fault("answer lost"):
                self.hang_up()
            else:
                self.send(200, answer if isinstance(answer, bytes) else json.dumps(answer).encode())

    def fault(self, name: str) -> bool:
        if self.double.faults[name] <= 0:
            return False
        self.double.faults[name] -= 1
        return True

    def hang_up(self) -> None:
        self.close_connection = True

    def send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def answer(self, path: str, query: dict[str, list[str]], body: dict | None) -> dict | bytes:
        if path == "/auth/login":
            return self.login(body or {})
        if self.headers.get("Authorization") != f"Bearer {self.double.token}":
            raise Refusal(
                401, "invalid credentials" if self.headers.get("Authorization") else "token missing"
            )
        if path == "/me":
            return {"user": user()}
        if path == "/workspaces":
            wanted = query.get("nameCaseSensitive")
            names = [name for name in self.double.workspaces if not wanted or wanted[0] in name]
            return {
                "workspaces": [workspace(name, self.double.workspaces[name]) for name in names],
                "pagination": {"total": len(names)},
            }
        if path == "/resource-pools":
            return {
                "resourcePools": [pool(name, self.double.node.slots) for name in self.double.pools],
                "pagination": {},
            }
        if path == "/commands":
            if body is not None:
                return self.double.launch(body)
            return {
                "commands": [command.v1() for command in self.double.commands.values()],
                "pagination": {},
            }
        return self.about_command(path, query)

    def login(self, body: dict) -> dict:
        expected = hashlib.sha512(f"GubPEmmotfiK9TMD6Zdw{PASSWORD}".encode()).hexdigest()
        if (body.get("username"), body.get("password"), body.get("isHashed")) != (
            USER,
            expected,
            True,
        ):
            raise Refusal(403, "invalid credentials")
        return {"token": self.double.token, "user": user()}

    def about_command(self, path: str, query: dict[str, list[str]]) -> dict | bytes:
        found = re.fullmatch(r"/(commands|tasks)/([^/]+)(/kill|/logs)?", path)
        if not found:
            raise Refusal(404, f"no such path: {path}")
        command = self.double.commands.get(found[2])
        if command is None:
            raise Refusal(404, f"{found[1].removesuffix('s')} {found[2]} not found")
        if found[3] == "/kill":
            self.double.node.kill(command)
            return {"command": command.v1()}
        if found[3] == "/logs":
            lines = command.log_lines()
            if query.get("orderBy") == ["ORDER_BY_DESC"]:
                lines.reverse()
            limit = int(query.get("limit", ["0"])[0]) or len(lines)
            return "".join(f"{json.dumps({'result': line})}\n" for line in lines[:limit]).encode()
        return (
            {"task": command.task()}
            if found[1] == "tasks"
            else {"command": command.v1(), "config": command.config}
        )


def user() -> dict:
    return {"id": 1, "username": USER, "admin": False, "active": True}


def workspace(name: str, number: int) -> dict:
    return {
        "id": number, "name": name, "archived": name == "old", "username": "admin", "immutable": False, "numProjects": 1, "pinned": False,
        "userId": 1, "numExperiments": 0, "state": "WORKSPACE_STATE_UNSPECIFIED", "errorMessage": "",
    }  # fmt: skip


def pool(name: str, slots: int) -> dict:
    """Every field that the contract requires; the executor reads the name."""
    texts = (
        "agentDockerImage", "agentDockerNetwork", "agentDockerRuntime", "agentFluentImage", "clusterName", "containerStartupScript",
        "description", "imageId", "instanceType", "location", "masterCertName", "masterUrl", "startupScript",
    )  # fmt: skip
    numbers = (
        "auxContainerCapacity", "auxContainerCapacityPerAgent", "auxContainersRunning", "maxAgentStartingPeriod", "maxAgents",
        "maxIdleAgentPeriod", "minAgents", "numAgents", "slotsUsed",
    )  # fmt: skip
    return dict.fromkeys(texts, "") | dict.fromkeys(numbers, 0) | {
        "name": name, "defaultAuxPool": name == "default", "defaultComputePool": name == "gpus", "preemptible": False, "details": {},
        "resourceManagerMetadata": {}, "schedulerFittingPolicy": "FITTING_POLICY_BEST", "schedulerType": "SCHEDULER_TYPE_FAIR_SHARE",
        "slotType": "TYPE_CUDA", "slotsAvailable": slots, "type": "RESOURCE_POOL_TYPE_STATIC",
    }  # fmt: skip

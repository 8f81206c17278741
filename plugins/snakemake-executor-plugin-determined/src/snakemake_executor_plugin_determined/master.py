"""The Determined master: HTTP with its token, typed answers, and patience through an outage.

Paths and fields: proto/src/determined/api/v1 at 0.38.1.
"""

import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import requests
from snakemake_interface_common.exceptions import WorkflowError

SALT = "GubPEmmotfiK9TMD6Zdw"
"""Of passwords on the wire: `PASSWORD_SALT` in determined/common/api/authentication.py at 0.38.1; part of the protocol, no secret."""

CONNECT_SECONDS, READ_SECONDS = 5, 30
AWAY = (502, 503, 504)
"""Answers of a proxy before a master that is away."""
LONGEST_PAUSE = 30.0
TERMINATED = "STATE_TERMINATED"
NOT_FOUND, SERVER_ERROR = 404, 500

Answer = TypeVar("Answer")


class UnreachableError(WorkflowError):
    """No answer from a Determined master; it may come back."""


class TokenRefusedError(WorkflowError):
    """The master refuses the token or the login."""


class RejectedError(WorkflowError):
    """The master understood the request and refuses it. `status` is HTTP's."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class BearerToken(requests.auth.AuthBase):
    """Authorization by token: as an `auth` object ~/.netrc does not replace it, and requests drops it at a redirect to another host."""

    def __init__(self, token: str) -> None:
        self.token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Add the header."""
        request.headers["Authorization"] = f"Bearer {self.token}"
        return request


def canonical_address(given: str) -> str:
    """Scheme added if missing, no trailing slash.

    Raises:
        WorkflowError: Not an address, or one with a password in it.
    """
    address = (given if "://" in given else f"http://{given}").rstrip("/")
    parts = urlsplit(address)
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.username
        or parts.query
        or parts.fragment
    ):
        raise WorkflowError(
            "--determined-master (or DET_MASTER) must look like https://HOST:PORT, without user, password or query."
        )
    return address


class Client:
    """Requests to one master, with the token from DET_USER_TOKEN or from a login with DET_USER and DET_PASS.

    Each request opens its own connection: submission and status checks run in different threads, and none survives an outage.
    """

    def __init__(self, address: str) -> None:
        self.address = canonical_address(address)
        self._token = os.environ.get("DET_USER_TOKEN")
        self._user, self._password = os.environ.get("DET_USER"), os.environ.get("DET_PASS")
        self._verify = os.environ.get("DET_MASTER_CERT_FILE") or True

    def ask(
        self,
        method: str,
        path: str,
        *,
        params: dict[str, Any] | None = None,
        body: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The JSON answer to one request.

        Raises:
            UnreachableError: No answer, or not one of a Determined master.
            TokenRefusedError: The token is refused, and there is no login that gives another.
            RejectedError: Any other refusal.
        """
        response = self._send(method, path, params=params, json=body)
        try:
            return response.json()
        except ValueError as error:
            raise UnreachableError(
                f"{self.address} answers, but not as a Determined master: {response.text[:80]!r}."
            ) from error

    def lines(self, path: str, params: dict[str, Any]) -> list[dict[str, Any]]:
        """The `result` of every line of a streamed answer; errors as `ask`."""
        found = [
            json.loads(line)
            for line in self._send("GET", path, params=params).text.splitlines()
            if line.strip()
        ]
        return [line["result"] for line in found if "result" in line]

    def _send(
        self, method: str, path: str, *, authorized: bool = True, **content: Any
    ) -> requests.Response:
        response = self._request(method, path, authorized, content)
        if response.status_code == requests.codes.unauthorized and authorized and self._user:
            self._token = None  # expired: log in again
            response = self._request(method, path, authorized, content)
        if response.status_code == requests.codes.unauthorized:
            raise TokenRefusedError(
                f"The Determined master at {self.address} refuses the token. Set DET_USER_TOKEN to a fresh one (det user login, then"
                " det token), or DET_USER and DET_PASS, and start again: commands that still run are taken over."
            )
        if response.status_code in AWAY:
            raise UnreachableError(
                f"The Determined master at {self.address} is away: HTTP {response.status_code}."
            )
        if not response.ok:
            raise RejectedError(message_of(response), response.status_code)
        return response

    def _request(
        self, method: str, path: str, authorized: bool, content: dict[str, Any]
    ) -> requests.Response:
        token = BearerToken(self._current_token()) if authorized else None
        try:
            return requests.request(
                method,
                f"{self.address}/api/v1{path}",
                auth=token,
                verify=self._verify,
                timeout=(CONNECT_SECONDS, READ_SECONDS),
                **content,
            )
        except requests.RequestException as error:
            raise UnreachableError(
                f"The Determined master at {self.address} does not answer: {cause_of(error)}."
            ) from error

    def _current_token(self) -> str:
        if not self._token:
            if not self._user:
                raise TokenRefusedError(
                    "No token for the Determined master: set DET_USER_TOKEN, or DET_USER and DET_PASS."
                )
            hashed = (
                hashlib.sha512((SALT + self._password).encode()).hexdigest()
                if self._password
                else ""
            )
            login = {"username": self._user, "password": hashed, "isHashed": True}
            try:
                self._token = str(
                    self._send("POST", "/auth/login", authorized=False, json=login).json()["token"]
                )
            except RejectedError as error:
                raise TokenRefusedError(
                    f"The Determined master refuses the login with DET_USER and DET_PASS: {error}."
                ) from error
        return self._token


def message_of(response: requests.Response) -> str:
    """The master's own words: `message`, else `error.error`, else the body's beginning."""
    try:
        answer = response.json()
        return str(answer.get("message") or answer["error"]["error"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"HTTP {response.status_code} {response.text[:200]}".strip()


def cause_of(error: BaseException) -> str:
    """The innermost reason, as the operating system words it: requests wraps it three times."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return str(error) or type(error).__name__


@dataclass(frozen=True)
class State:
    """What the master says about one command."""

    ended: bool
    reason: str = ""
    """Why it ended, in the master's words. A command that was killed while it ran also reads "exited successfully"."""
    code: int | None = None
    """Exit status of the container, only if not 0."""


class Master:
    """One Determined master."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def check(self) -> None:
        """Whether there is a Determined master that accepts the token; errors as `Client.ask`."""
        self.client.ask("GET", "/me")

    def workspace_id(self, name: str) -> int:
        """Id of a workspace.

        Raises:
            WorkflowError: There is none of that name, or it is archived.
        """
        found = self.client.ask("GET", "/workspaces", params={"nameCaseSensitive": name})[
            "workspaces"
        ]
        exact = [workspace for workspace in found if workspace["name"] == name]
        if not exact:
            names = sorted(
                workspace["name"]
                for workspace in self.client.ask("GET", "/workspaces")["workspaces"]
            )
            raise WorkflowError(
                f"--determined-workspace: the master has no workspace {name!r} that you may see, but {', '.join(names)}."
            )
        if exact[0]["archived"]:
            raise WorkflowError(
                f"--determined-workspace: {name!r} is archived; unarchive it or name another."
            )
        return int(exact[0]["id"])

    def check_pool(self, name: str) -> None:
        """Whether there is such a resource pool.

        Raises:
            WorkflowError: There is none.
        """
        names = sorted(
            pool["name"]
            for pool in self.client.ask("GET", "/resource-pools").get("resourcePools") or []
        )
        if name not in names:
            raise WorkflowError(
                f"--determined-pool: the master has no resource pool {name!r} that you may use, but {', '.join(names)}."
            )

    def launch(self, config: dict[str, Any], workspace: int | None) -> tuple[str, list[str]]:
        """Start a command; its id and the master's warnings. Not to be repeated blindly: see `find`."""
        body: dict[str, Any] = {"config": config} | (
            {} if workspace is None else {"workspaceId": workspace}
        )
        answer = self.client.ask("POST", "/commands", body=body)
        return str(answer["command"]["id"]), [
            str(warning) for warning in answer.get("warnings") or []
        ]

    def find(self, *tickets: str) -> dict[str, list[str]]:
        """Per ticket, ids of the commands whose description ends with it: none, one, or two if a lost request came true after all."""
        commands = self.client.ask("GET", "/commands")["commands"]
        return {
            ticket: [
                str(command["id"])
                for command in commands
                if command["description"].endswith(ticket)
            ]
            for ticket in tickets
        }

    def state(self, command: str) -> State | None:
        """State of a command; None if the master does not know it."""
        try:
            task = self.client.ask("GET", f"/tasks/{command}")["task"]
        except RejectedError as error:
            if error.status == NOT_FOUND:
                return None
            if error.status >= SERVER_ERROR:
                raise UnreachableError(
                    f"The Determined master cannot tell the state of command {command}: {error}."
                ) from error
            raise
        last = (task.get("allocations") or [{}])[-1]  # none yet: still on its way into the queue
        return State(
            last.get("state") == TERMINATED,
            str(last.get("exitReason") or ""),
            last.get("statusCode"),
        )

    def kill(self, command: str) -> None:
        """Ask for the end of a command, which comes a little later, if at all: a refusal is no error here, `state` tells."""
        with suppress(RejectedError):
            self.client.ask("POST", f"/commands/{command}/kill")

    def log_tail(self, command: str, lines: int) -> list[str]:
        """The last lines of a command's log."""
        params = {"follow": "false", "limit": max(lines, 1), "orderBy": "ORDER_BY_DESC"}
        found = self.client.lines(f"/tasks/{command}/logs", params)
        return [
            str(line.get("log") or line.get("message") or "").rstrip() for line in reversed(found)
        ]


def pauses(first: float) -> Iterator[float]:
    """Seconds to wait between attempts: doubling from `first`, at most LONGEST_PAUSE."""
    return (min(first * 2**attempt, LONGEST_PAUSE) for attempt in itertools.count())


def patiently(
    call: Callable[[], Answer], patience: float, first_pause: float, warn: Callable[[str], None]
) -> Answer:
    """Repeat `call` through an outage of at most `patience` seconds; `call` must be one that may be repeated.

    Raises:
        UnreachableError: The master stayed away.
    """
    deadline, waits = time.monotonic() + patience, pauses(first_pause)
    while True:
        try:
            return call()
        except UnreachableError as error:
            left = deadline - time.monotonic()
            if left <= 0:
                raise UnreachableError(
                    f"{error} Waited {patience:g} seconds (--determined-patience-seconds)."
                ) from error
            warn(f"{error} Asking again for another {left:.0f} seconds.")
            time.sleep(min(next(waits), left))


class Outage:
    """A master that may be away: growing pauses between questions, and an end to waiting.

    Args:
        patience: Seconds without any sign, of the master or of a command, after which waiting makes no sense.
        first_pause: Seconds between the first two questions.
    """

    def __init__(self, patience: float, first_pause: float) -> None:
        self.patience, self.first_pause = patience, first_pause
        self.last_sign = time.monotonic()
        self._next_question = 0.0
        self._pauses: Iterator[float] | None = None

    def sign(self) -> None:
        """Something lives."""
        self.last_sign = time.monotonic()

    def ask_again(self) -> bool:
        """Whether the master may be asked now."""
        return time.monotonic() >= self._next_question

    def began(self, now: float) -> bool:
        """Note a question without an answer; whether it is the outage's first."""
        first = self._pauses is None
        self._pauses = self._pauses or pauses(self.first_pause)
        self._next_question = now + next(self._pauses)
        return first

    def too_long(self) -> bool:
        """Whether to give up."""
        return time.monotonic() - self.last_sign > self.patience

    def over(self) -> bool:
        """Note an answer; whether it ended an outage."""
        ended = self._pauses is not None
        self._pauses, self._next_question = None, 0.0
        self.sign()
        return ended

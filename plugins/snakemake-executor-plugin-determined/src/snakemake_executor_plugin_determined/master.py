"""The calls to the master that the executor needs, as typed answers. Paths and fields: proto/src/determined/api/v1 at 0.38.1."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError

from snakemake_executor_plugin_determined.client import Client, RejectedError, UnreachableError

TERMINATED = "STATE_TERMINATED"
NOT_FOUND, SERVER_ERROR = 404, 500


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
        found = self.client.ask("GET", "/workspaces", params={"nameCaseSensitive": name})["workspaces"]
        exact = [workspace for workspace in found if workspace["name"] == name]
        if not exact:
            names = sorted(workspace["name"] for workspace in self.client.ask("GET", "/workspaces")["workspaces"])
            raise WorkflowError(f"--determined-workspace: the master has no workspace {name!r} that you may see, but {', '.join(names)}.")
        if exact[0]["archived"]:
            raise WorkflowError(f"--determined-workspace: {name!r} is archived; unarchive it or name another.")
        return int(exact[0]["id"])

    def check_pool(self, name: str) -> None:
        """Whether there is such a resource pool.

        Raises:
            WorkflowError: There is none.
        """
        names = sorted(pool["name"] for pool in self.client.ask("GET", "/resource-pools").get("resourcePools") or [])
        if name not in names:
            raise WorkflowError(f"--determined-pool: the master has no resource pool {name!r} that you may use, but {', '.join(names)}.")

    def launch(self, config: dict[str, Any], workspace: int | None) -> tuple[str, list[str]]:
        """Start a command; its id and the master's warnings. Not to be repeated blindly: see `find`."""
        body: dict[str, Any] = {"config": config} | ({} if workspace is None else {"workspaceId": workspace})
        answer = self.client.ask("POST", "/commands", body=body)
        return str(answer["command"]["id"]), [str(warning) for warning in answer.get("warnings") or []]

    def find(self, *tickets: str) -> dict[str, list[str]]:
        """Per ticket, ids of the commands whose description ends with it: none, one, or two if a lost request came true after all."""
        commands = self.client.ask("GET", "/commands")["commands"]
        return {ticket: [str(command["id"]) for command in commands if command["description"].endswith(ticket)] for ticket in tickets}

    def state(self, command: str) -> State | None:
        """State of a command; None if the master does not know it."""
        try:
            task = self.client.ask("GET", f"/tasks/{command}")["task"]
        except RejectedError as error:
            if error.status == NOT_FOUND:
                return None
            if error.status >= SERVER_ERROR:
                raise UnreachableError(f"The Determined master cannot tell the state of command {command}: {error}.") from error
            raise
        last = (task.get("allocations") or [{}])[-1]  # none yet: still on its way into the queue
        return State(last.get("state") == TERMINATED, str(last.get("exitReason") or ""), last.get("statusCode"))

    def kill(self, command: str) -> None:
        """Ask for the end of a command, which comes a little later, if at all: a refusal is no error here, `state` tells."""
        with suppress(RejectedError):
            self.client.ask("POST", f"/commands/{command}/kill")

    def log_tail(self, command: str, lines: int) -> list[str]:
        """The last lines of a command's log."""
        params = {"follow": "false", "limit": max(lines, 1), "orderBy": "ORDER_BY_DESC"}
        found = self.client.lines(f"/tasks/{command}/logs", params)
        return [str(line.get("log") or line.get("message") or "").rstrip() for line in reversed(found)]

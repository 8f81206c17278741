"""What a user sets (`--determined-...` or `determined-...:` in a profile), and its check against the master before the first job."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Optional

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.settings import ExecutorSettingsBase

from snakemake_executor_plugin_determined.master import Client, Master, patiently

SECRETS = ("DET_USER_TOKEN", "DET_PASS", "DET_SESSION_TOKEN")
"""Never sent in a command's configuration: everybody who sees the command in Determined's web interface would read them."""

START_PATIENCE = 10.0
"""Seconds that a first answer may take: an address that is wrong should not be waited for as long as a master that was there before."""


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """Settings of the executor. The token is not one: it comes from DET_USER_TOKEN, or from a login with DET_USER and DET_PASS."""

    # Snakemake's parser knows `Optional`, not `X | None`.
    master: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata={
            "help": "Address of the Determined master, e.g. https://determined.example:8443 (default: $DET_MASTER)."
        },
    )
    workspace: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata={"help": "Name of the workspace that commands belong to (default: the master's)."},
    )
    pool: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata={
            "help": "Resource pool that commands run in (default: the master's pool for the asked number of slots)."
        },
    )
    image: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata={
            "help": "Container image that commands run in; it or a bind mount holds the interpreter and its packages."
        },
    )
    bind_mounts: list[str] = field(
        default_factory=list,
        metadata={
            "help": "HOST[:CONTAINER[:ro]], several: folders of the nodes that commands see. The working directory must be among them"
            " at the same path (unless the master mounts it anyway), as must caches and an interpreter outside the image.",
            "nargs": "+",
            "metavar": "HOST[:CONTAINER[:ro]]",
        },
    )
    environment_variables: list[str] = field(
        default_factory=list,
        metadata={
            "help": "NAME=VALUE, or NAME for the value it has here, several: environment of commands. Not for secrets: users of the"
            " master can read them.",
            "nargs": "+",
            "metavar": "NAME[=VALUE]",
        },
    )
    python: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata={
            "help": "Interpreter with Snakemake on the nodes (default: the path of the one that runs here)."
        },
    )
    poll_seconds: Optional[float] = field(  # noqa: UP045
        default=None,
        metadata={
            "help": "Seconds between looks at running commands (default: --seconds-between-status-checks)."
        },
    )
    patience_seconds: float = field(
        default=3600.0,
        metadata={
            "help": "How long an unreachable master is waited for before the run stops; commands that run then keep running."
        },
    )
    grace_seconds: float = field(
        default=90.0,
        metadata={
            "help": "How long a command that the master calls ended or does not know may show no sign of life and no exit code on the"
            " shared file system before its job counts as lost. Longer than that file system's attribute cache."
        },
    )
    log_lines: int = field(
        default=40, metadata={"help": "Lines of a failed command's log to print."}
    )


def bind_mounts(values: list[str]) -> list[dict[str, Any]]:
    """Mounts in the form of Determined's command configuration.

    Raises:
        WorkflowError: A value is not HOST[:CONTAINER[:ro]] with absolute paths.
    """
    mounts = []
    for value in values:
        host, _, rest = value.partition(":")
        container, _, mode = rest.partition(":")
        container = container or host
        if mode not in ("", "ro") or not (
            PurePosixPath(host).is_absolute() and PurePosixPath(container).is_absolute()
        ):
            raise WorkflowError(
                f"--determined-bind-mounts: {value!r} is not HOST[:CONTAINER[:ro]] with absolute paths."
            )
        mounts.append({"host_path": host, "container_path": container, "read_only": mode == "ro"})
    return mounts


def environment_variables(values: list[str]) -> dict[str, str]:
    """Variables by name; a bare name takes its value from this process.

    Raises:
        WorkflowError: A bare name is not set here, or a name is one of Determined's own secrets.
    """
    variables = {}
    for given in values:
        name, has_value, value = given.partition("=")
        if name in SECRETS:
            raise WorkflowError(
                f"--determined-environment-variables: {name} is a secret; a command's configuration is not. Leave it out."
            )
        if not has_value and name not in os.environ:
            raise WorkflowError(
                f"--determined-environment-variables: {name} has no value here; set it, or give {name}=VALUE."
            )
        variables[name] = value if has_value else os.environ[name]
    return variables


@dataclass(frozen=True)
class Target:
    """A checked destination of commands."""

    master: Master
    workspace: int | None
    pool: str | None
    image: str
    mounts: list[dict[str, Any]]
    variables: dict[str, str]
    patience: float
    """Seconds that the master may be away."""
    poll: float
    """Seconds between two looks, and the first pause of a backoff."""


def connect(settings: ExecutorSettings, poll: float, warn: Callable[[str], None]) -> Target:
    """Check every setting, without the network first.

    Raises:
        WorkflowError: The first thing that is wrong, and what to do.
    """
    address = settings.master or os.environ.get("DET_MASTER")
    if not address:
        raise WorkflowError(
            "No Determined master: give --determined-master https://HOST:PORT, or set DET_MASTER."
        )
    if not settings.image:
        raise WorkflowError(
            "No image for Determined commands: name one with --determined-image; the master's default lacks this workflow."
        )
    mounts, variables = (
        bind_mounts(settings.bind_mounts),
        environment_variables(settings.environment_variables),
    )
    master = Master(Client(address))
    patiently(master.check, min(START_PATIENCE, settings.patience_seconds), poll, warn)
    if settings.pool:
        master.check_pool(settings.pool)
    workspace = master.workspace_id(settings.workspace) if settings.workspace else None
    return Target(
        master,
        workspace,
        settings.pool,
        settings.image,
        mounts,
        variables,
        settings.patience_seconds,
        poll,
    )

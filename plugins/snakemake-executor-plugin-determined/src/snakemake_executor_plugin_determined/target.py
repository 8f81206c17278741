"""Where commands go: master, workspace, pool, image and mounts, all checked once before the first job."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError

from snakemake_executor_plugin_determined.client import Client, patiently
from snakemake_executor_plugin_determined.master import Master
from snakemake_executor_plugin_determined.settings import ExecutorSettings, bind_mounts, environment_variables

START_PATIENCE = 10.0
"""Seconds that a first answer may take: an address that is wrong should not be waited for as long as a master that was there before."""


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
        raise WorkflowError("No Determined master: give --determined-master https://HOST:PORT, or set DET_MASTER.")
    if not settings.image:
        raise WorkflowError("No image for Determined commands: name one with --determined-image; the master's default lacks this workflow.")
    mounts, variables = bind_mounts(settings.bind_mounts), environment_variables(settings.environment_variables)
    master = Master(Client(address))
    patiently(master.check, min(START_PATIENCE, settings.patience_seconds), poll, warn)
    if settings.pool:
        master.check_pool(settings.pool)
    workspace = master.workspace_id(settings.workspace) if settings.workspace else None
    return Target(master, workspace, settings.pool, settings.image, mounts, variables, settings.patience_seconds, poll)

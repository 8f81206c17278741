"""Snakemake executor plugin: one Determined command per job, on a shared file system.

Snakemake finds the three names below by this package's name. Written against the public contract of Determined 0.38.1 (proto files
and the bindings of PyPI's `determined`); state strings come from the Go source, never from a live master.
"""

from snakemake_interface_executor_plugins.settings import CommonSettings

from snakemake_executor_plugin_determined.executor import Executor
from snakemake_executor_plugin_determined.settings import ExecutorSettings

__all__ = ["Executor", "ExecutorSettings", "common_settings"]

common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_envvar_declarations_to_cmd=False,  # they go into the command's configuration
    auto_deploy_default_storage_provider=False,
    init_seconds_before_status_checks=0,
)

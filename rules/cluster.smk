# GPU rules away from this machine: the Python they start, and no second writer beside the jobs of a snakemake that was killed.
import os

from agentrl import slurm

# Text of a rule is a rerun trigger, the value of a global in it is not: another interpreter or container reruns nothing.
GPU_PYTHON = os.environ.get("PIPELINE_GPU_PYTHON", "python")
if "PIPELINE_GPU_PYTHON" in os.environ:
    workflow.register_envvars("PIPELINE_GPU_PYTHON")
ON_SLURM = workflow.executor_plugin is not None and workflow.executor_plugin.name == "slurm"


onstart:
    if ON_SLURM:
        try:
            slurm.check_visible(Path.cwd())
            slurm.refuse_orphans(R, Path.cwd())
        except slurm.SlurmError as error:
            raise WorkflowError(str(error)) from None


onerror:
    if ON_SLURM:
        for job in slurm.cancel(R, Path.cwd()):
            print(f"cancelled Slurm job {job.id} ({job.rule}), which the interrupted run had left in the queue", file=sys.stderr)

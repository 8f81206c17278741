# GPU rules away from this machine: the Python they start, and no second writer beside the jobs of a snakemake that was killed.
import os

from agentrl.cluster import profile, slurm

# Text of a rule is a rerun trigger, the value of a global in it is not: another interpreter or container reruns nothing.
GPU_PYTHON = os.environ.get(profile.GPU_PYTHON, "python")
workflow.register_envvars(*(name for name in (profile.GPU_PYTHON, profile.GPU_LOCK) if name in os.environ))


def refuse_second_writers():
    """Called by `onstart`: Slurm must be there, and jobs that a killed snakemake left in its queue still write here."""
    if workflow.executor_plugin.name == "slurm":
        try:
            profile.choose_scheduler({**os.environ, profile.CHOICE: "slurm"})
            slurm.check_visible(Path.cwd())
            slurm.refuse_orphans(R, Path.cwd())
            slurm.remember_min_job_age()
        except (profile.ProfileError, slurm.SlurmError) as error:
            raise WorkflowError(str(error)) from None


onerror:
    if workflow.executor_plugin.name == "slurm":
        for job in slurm.cancel(R, Path.cwd()):
            print(f"cancelled Slurm job {job.id} ({job.rule}), which the interrupted run had left in the queue", file=sys.stderr)
        for name in log:
            if hint := slurm.blind(Path(".snakemake/log", Path(name).name), Path.cwd()):
                print(hint, file=sys.stderr)

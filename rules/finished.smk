# A finished study's folder may be kept from being written again: refused before the first job, and said at the end of a dry run.
import atexit

from agentrl.study.finished import refusal


def refused():
    """Why this run must not start, from the whole plan; None where it may. `--touch` makes nothing."""
    if workflow.touch:
        return None
    return refusal(Path(R), STUDY.finished, (job.rule.name for job in workflow.dag.needrun_jobs(exclude_finished=False)))


def refuse_to_replace():
    """Called by `onstart`, which Snakemake runs when the plan stands and no job has started."""
    if message := refused():
        raise WorkflowError(message)


@atexit.register
def say_so_after_a_dry_run():
    """Snakemake has no hook for dry runs; its own last line is behind the plan, and so is this one."""
    if workflow.dryrun and workflow.dag is not None and (message := refused()):
        print(f"This run would be refused: {message}", file=sys.stderr)

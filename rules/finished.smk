# What must not run: refused before the first job, and said at the end of a dry run. A finished study's folder may be kept from being
# written again; and a run whose --rerun-triggers would not see an edit is none to trust, also where it finds nothing to do.
import atexit

from agentrl.study.finished import refusal
from agentrl.study.refusals import blind


def refused():
    """Why this run must not start, from the whole plan; None where it may. `--touch` makes nothing."""
    if workflow.touch:
        return None
    if message := blind(str(trigger) for trigger in workflow.rerun_triggers):
        return message
    return refusal(Path(R), STUDY.finished, planned())


def planned():
    """Names of the rules whose jobs this run holds."""
    return [job.rule.name for job in workflow.dag.needrun_jobs(exclude_finished=False)]


def refuse_to_replace():
    """Called by `onstart`, which Snakemake runs when the plan stands and no job has started."""
    if message := refused():
        raise WorkflowError(message)


@atexit.register
def say_so_where_nothing_starts():
    """Snakemake has no hook for dry runs and for runs without a job; its own last line is behind the plan, and so is this one."""
    if workflow.dag is not None and (workflow.dryrun or not planned()) and (message := refused()):
        print(f"This run would be refused: {message}", file=sys.stderr)

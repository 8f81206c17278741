"""Write what every change of the rerun suite must rerun, and what Snakemake plans, to benchmarks/reruns/reruns.md.

`python tests/workflow/rerun_table.py [PROJECT]`: without a project that holds the finished micro study (`tests/micro.yaml`), one is made
first, about three minutes. The project stays untouched.
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(Path(__file__).parent)]

from micro_study import copy_project, snakemake  # noqa: E402 - the path comes first
from raw_studies import DEMO_RAW  # noqa: E402
from rerun_bases import Bases  # noqa: E402
from rerun_changes import all_changes, imports  # noqa: E402
from rerun_plans import planners  # noqa: E402

OUT = ROOT / "benchmarks/reruns/reruns.md"


def main(project: Path | None) -> None:
    """One row per change; exits with an error if any plan differs."""
    changes = all_changes(imports(), DEMO_RAW)
    rows, differing = [], 0
    with tempfile.TemporaryDirectory() as scratch, planners() as running:
        bases = Bases(project or finished(Path(scratch, "micro")), Path(scratch), running)
        for change, plan in bases.plans(changes):
            got = plan.jobs.keys()
            differing += got != change.expected
            found = "the same" if got == change.expected else f"**{counted(got)}**"
            rows.append(
                f"| {change.name.replace('|', chr(92) + '|')} | {counted(change.expected)} | {found} |"
            )
            print(rows[-1], flush=True)
    title = f"{len(changes)} changes to a finished study with two arms and one seed; {differing} planned otherwise than expected."
    note = "Jobs by rule. Made by `python tests/workflow/rerun_table.py`; the expectations stand in `tests/workflow/rerun_expected.py`."
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(
        "\n".join(
            [title, note, "", "| change | expected | got |", "| --- | --- | --- |", *rows, ""]
        ),
        encoding="utf-8",
    )
    sys.exit(f"error: {differing} plans differ, see {OUT}" if differing else 0)


def finished(folder: Path) -> Path:
    """A copy of the project with the micro study in it."""
    done = snakemake(copy_project(folder))
    if done.returncode:
        sys.exit(f"error: the micro study failed:\n{done.stdout[-3000:]}")
    return folder


def counted(jobs: Iterable[str]) -> str:
    """Rules and how many of their jobs; what all changes of code have in common, the `code_` jobs, comes as one number."""
    counts = Counter("code" if job.startswith("code_") else job.split()[0] for job in jobs)
    return ", ".join(f"{rule} {count}" for rule, count in sorted(counts.items())) or "nothing"


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)

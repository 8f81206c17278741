"""Say before training what the configured design can see; refuse a weak one where the configuration asks for it."""

import argparse
from pathlib import Path

from agentrl.evidence.files import read_json, write_json
from agentrl.evidence.section import validate
from agentrl.evidence.stage import open_stage, run_command
from agentrl.judgement import plan
from agentrl.judgement.settings import Plan


def main() -> None:
    """Compute, print, refuse or write power.json and power.png with their manifest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--study",
        type=Path,
        required=True,
        help="results/{study}, for the seconds of stages that have run",
    )
    parser.add_argument(
        "--jobs", nargs="+", required=True, help="stage=times, e.g. train=10 agent-test=11"
    )
    parser.add_argument("--section", type=Path, required=True, help="config/plan.json")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with open_stage(args.out, "plan.py") as stage:
        section = validate(read_json(args.section), Plan, str(args.section))
        found = plan.plan(section)
        jobs = {stage: int(times) for stage, times in (job.split("=") for job in args.jobs)}
        print("\n".join([*found["sentences"], plan.forecast(args.study, jobs)]), flush=True)
        plan.refuse_weak(section, found)
        write_json(args.out / "power.json", found)
        plan.draw(found, section, args.out / "power.png")
        # the picture's bytes depend on matplotlib and its fonts, so it is no recorded output
        stage.manifest({"section": args.section}, ["power.json"], section.model_dump(mode="json"))


if __name__ == "__main__":
    run_command(main)

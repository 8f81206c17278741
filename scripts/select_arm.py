"""Choose on dev the arm that is evaluated on test, and record what the choice rested on."""

import argparse
from pathlib import Path

from agentrl.evidence.files import write_json
from agentrl.evidence.stage import open_stage, run_command
from agentrl.judgement import comparison, selection


def main() -> None:
    """Read the dev evaluations, check that they can be compared, choose, write selection.json with its manifest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--evaluations",
        nargs="+",
        type=Path,
        required=True,
        help="policies/{policy}/agent-dev/manifest.json",
    )
    parser.add_argument("--placebos", nargs="*", default=[], help="arms whose reward is random")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with open_stage(args.out, "select_arm.py") as stage:
        evaluations = comparison.load_study(file.parent for file in args.evaluations)
        for (_, measure), candidate in evaluations.items():
            comparison.same_conditions(evaluations[comparison.BASELINE, measure], candidate)
        found = selection.choose_arm(
            {key: evaluation.scores for key, evaluation in evaluations.items()}, args.placebos
        )
        write_json(args.out / "selection.json", found)
        inputs = {
            "/".join(key): file for key, file in zip(evaluations, args.evaluations, strict=True)
        }
        stage.manifest(inputs, ["selection.json"], {"placebos": sorted(args.placebos)})
        print(f"chosen on dev among {found['compared']}: {found['chosen']}", flush=True)


if __name__ == "__main__":
    run_command(main)

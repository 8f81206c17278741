"""Compare every candidate with the start policy, item by item, and judge every arm over its seeds."""

import argparse
from pathlib import Path

from agentrl.evidence.files import read_json, write_json
from agentrl.evidence.section import validate
from agentrl.evidence.stage import open_stage, run_command
from agentrl.judgement import comparison, verdict
from agentrl.judgement.settings import Statistics


def main() -> None:
    """Read the evaluations, compare, judge, write comparison.json and verdict.json with their manifest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--evaluations",
        nargs="+",
        type=Path,
        required=True,
        help="policies/{policy}/{measure}/manifest.json",
    )
    parser.add_argument("--placebos", nargs="*", default=[], help="arms whose reward is random")
    parser.add_argument(
        "--selection",
        nargs="?",
        type=Path,
        help="the choice on dev, where only the chosen arm was evaluated on test",
    )
    parser.add_argument("--section", type=Path, required=True, help="config/statistics.json")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with open_stage(args.out, "compare.py") as stage:
        settings = validate(read_json(args.section), Statistics, str(args.section))
        evaluations = comparison.load_study(file.parent for file in args.evaluations)
        write_json(args.out / "comparison.json", comparison.compare_study(evaluations, settings))
        scores = {key: evaluation.scores for key, evaluation in evaluations.items()}
        write_json(args.out / "verdict.json", verdict.judge(scores, args.placebos, settings))
        inputs = {
            "/".join(key): file for key, file in zip(evaluations, args.evaluations, strict=True)
        }
        if args.selection is not None:
            inputs["selection"] = args.selection
        stage.manifest(
            {"section": args.section, **inputs},
            ["comparison.json", "verdict.json"],
            settings.model_dump(mode="json"),
        )


if __name__ == "__main__":
    run_command(main)

"""Judge from the preflight whether one arm could learn; refuse it by name if not."""

import argparse
from pathlib import Path

from agentrl.evidence.files import check_files, read_json, write_json
from agentrl.evidence.section import validate
from agentrl.evidence.stage import run_command
from agentrl.rollout import trajectory
from agentrl.training import preflight
from agentrl.training.settings import Arm, Preflight, Reward, TrainingSettings


def main() -> None:
    """Check the preflight's files, count the arm's mixed groups, write its verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arm", required=True)
    parser.add_argument("--arm-section", type=Path, required=True, help="config/arm-{arm}.json")
    parser.add_argument(
        "--preflight", type=Path, required=True, help="the preflight's manifest.json"
    )
    parser.add_argument("--out", type=Path, required=True, help="preflight/admitted/{arm}.json")
    args = parser.parse_args()
    recorded = read_json(args.preflight)
    check_files(args.preflight.parent, recorded["outputs"], args.preflight)
    origin = str(args.preflight)
    arm = validate(read_json(args.arm_section), Arm, str(args.arm_section))
    section = validate(recorded["config"]["preflight"], Preflight, origin)
    base = validate(recorded["config"]["training"], TrainingSettings, origin)
    weights = validate(recorded["config"]["reward"], Reward, origin)
    episodes = list(trajectory.read(args.preflight.parent / "episodes.jsonl"))
    write_json(args.out, preflight.verdict(episodes, args.arm, arm, section, base, weights))


if __name__ == "__main__":
    run_command(main)

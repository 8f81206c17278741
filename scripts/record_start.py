"""Take a German SFT checkpoint as the start policy: check it, link it into the study, record every file's sha256."""

import argparse
import os
from pathlib import Path

from agentrl.evidence.files import read_json
from agentrl.evidence.section import validate
from agentrl.evidence.stage import open_stage, run_command
from agentrl.policy.checkpoint import check_checkpoint, copy_tokenizer, locate
from agentrl.policy.files import CHECKPOINT
from agentrl.policy.settings import Model
from agentrl.rollout.chat import ChatProtocol, load_tokenizer


def main() -> None:
    """Locate the checkpoint, refuse what cannot serve, write the start's manifest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--section", type=Path, required=True, help="config/model.json")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with open_stage(args.out, "record_start.py") as stage:
        section = validate(read_json(args.section), Model, str(args.section))
        folder = locate(section)
        files = check_checkpoint(folder)
        ChatProtocol(load_tokenizer(folder))
        link = args.out / CHECKPOINT
        link.unlink(missing_ok=True)
        link.symlink_to(
            os.path.relpath(folder, args.out.resolve())
        )  # relative: a project that moves keeps its start
        outputs = [*(f"{CHECKPOINT}/{name}" for name in files), *copy_tokenizer(folder, args.out)]
        stage.manifest(
            {"section": args.section}, outputs, section.model_dump(mode="json"), {"steps": 0}
        )


if __name__ == "__main__":
    run_command(main)

"""Take a German SFT checkpoint as the start policy: check it, link it into the study, record every file's sha256."""

import argparse
import os
from pathlib import Path

from agentrl import config, manifest, policy
from agentrl.protocol import ChatProtocol, load_tokenizer


def main() -> None:
    """Locate the checkpoint, refuse what cannot serve, write the start's manifest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--section", type=Path, required=True, help="config/model.json")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with manifest.stage(args.out, "record_start.py") as stage:
        section = config.validate(manifest.read_json(args.section), config.Model, str(args.section))
        folder = policy.locate(section)
        files = policy.check_checkpoint(folder)
        ChatProtocol(load_tokenizer(folder))
        link = args.out / policy.CHECKPOINT
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(folder, args.out.resolve()))  # relative: a project that moves keeps its start
        outputs = [*(f"{policy.CHECKPOINT}/{name}" for name in files), *policy.copy_tokenizer(folder, args.out)]
        stage.manifest({"section": args.section}, outputs, section.model_dump(mode="json"), {"steps": 0})


if __name__ == "__main__":
    manifest.run(main)

"""Merge a trained adapter into a standalone candidate checkpoint and audit it."""

import argparse
from itertools import islice
from pathlib import Path

import torch

from agentrl.evidence.files import check_files, read_json, write_json
from agentrl.evidence.section import validate
from agentrl.evidence.stage import open_stage, run_command
from agentrl.policy import merge
from agentrl.policy.checkpoint import check_checkpoint, check_policy
from agentrl.policy.files import CHECKPOINT
from agentrl.policy.settings import Model
from agentrl.rollout import trajectory


def main() -> None:
    """Check the inputs, merge, audit, compare logits, write the candidate with its manifest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--start", type=Path, required=True, help="the start policy's manifest.json"
    )
    parser.add_argument(
        "--train", type=Path, required=True, help="the training run's manifest.json"
    )
    parser.add_argument("--model-section", type=Path, required=True, help="config/model.json")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with open_stage(args.out, "merge_adapter.py") as stage:
        section = validate(read_json(args.model_section), Model, str(args.model_section))
        torch.set_num_threads(section.threads or torch.get_num_threads())
        start, _ = check_policy(args.start)
        trained = read_json(args.train)
        check_files(args.train.parent, trained["outputs"], args.train)
        adapter, merged = args.train.parent / "adapter", args.out / CHECKPOINT
        stored = merge.merge(start, adapter, merged)
        counts = merge.audit(start, adapter, merged, section.dtype)
        seen = islice(trajectory.read(args.train.parent / "episodes.jsonl"), merge.CONTEXTS)
        contexts = [t.prompt_ids + t.completion_ids for t in seen]
        gap = merge.logit_gap(start, adapter, merged, contexts, stored)
        allowed = {
            "stored_dtype": stored,
            "tolerance": merge.LOGIT_TOLERANCE[stored],
            "contexts": len(contexts),
        }
        report = {**counts, "largest_logit_difference": float(f"{gap:.3g}"), **allowed}
        write_json(args.out / "merge.json", report)
        outputs = ["merge.json", *(f"{CHECKPOINT}/{name}" for name in check_checkpoint(merged))]
        inputs = {"start": args.start, "train": args.train, "section": args.model_section}
        facts = {"policy": trained["policy"], "steps": trained["steps"], "audit": report}
        stage.manifest(inputs, outputs, section.model_dump(mode="json"), facts)
        print(
            f"{trained['policy']}: {counts['changed']} of {counts['tensors']} tensors changed, {counts['update_kept']:.1%} of the update "
            f"kept in {section.dtype}, logit gap {gap:.2g}",
            flush=True,
        )


if __name__ == "__main__":
    run_command(main)

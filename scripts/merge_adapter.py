"""Merge a trained adapter into a standalone candidate checkpoint and audit it."""

import argparse
from itertools import islice
from pathlib import Path

import torch

from agentrl import config, manifest, merge, policy, trajectory


def main() -> None:
    """Check the inputs, merge, audit, compare logits, write the candidate with its manifest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--start", type=Path, required=True, help="the start policy's manifest.json")
    parser.add_argument("--train", type=Path, required=True, help="the training run's manifest.json")
    parser.add_argument("--model-section", type=Path, required=True, help="config/model.json")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with manifest.stage(args.out, "merge_adapter.py") as stage:
        section = config.validate(manifest.read_json(args.model_section), config.Model, str(args.model_section))
        torch.set_num_threads(section.threads or torch.get_num_threads())
        start, _ = policy.check_policy(args.start)
        trained = manifest.read_json(args.train)
        manifest.check_files(args.train.parent, trained["outputs"], args.train)
        adapter, merged = args.train.parent / "adapter", args.out / policy.CHECKPOINT
        stored = merge.merge(start, adapter, merged)
        counts = merge.audit(start, adapter, merged, section.dtype)
        seen = islice(trajectory.read(args.train.parent / "episodes.jsonl"), merge.CONTEXTS)
        contexts = [t.prompt_ids + t.completion_ids for t in seen]
        gap = merge.logit_gap(start, adapter, merged, contexts, stored)
        allowed = {"stored_dtype": stored, "tolerance": merge.LOGIT_TOLERANCE[stored], "contexts": len(contexts)}
        report = {**counts, "largest_logit_difference": float(f"{gap:.3g}"), **allowed}
        manifest.write_json(args.out / "merge.json", report)
        outputs = ["merge.json", *(f"{policy.CHECKPOINT}/{name}" for name in policy.check_checkpoint(merged))]
        inputs = {"start": args.start, "train": args.train, "section": args.model_section}
        facts = {"policy": trained["policy"], "steps": trained["steps"], "audit": report}
        stage.manifest(inputs, outputs, section.model_dump(mode="json"), facts)
        print(
            f"{trained['policy']}: {counts['changed']} of {counts['tensors']} tensors changed, {counts['update_kept']:.1%} of the update "
            f"kept in {section.dtype}, logit gap {gap:.2g}",
            flush=True,
        )


if __name__ == "__main__":
    manifest.run(main)

"""Demo only: make the middling start policy, a LoRA on demonstrations with many departures, merged into the base."""

import argparse
import os
import tempfile
from pathlib import Path

os.environ.setdefault(
    "OMP_WAIT_POLICY", "PASSIVE"
)  # two spinning threads are slower than one where a core is taken

from agentrl.demo import policy as demo
from agentrl.demo.settings import DemoSft
from agentrl.evidence.files import read_json
from agentrl.evidence.section import validate
from agentrl.evidence.stage import open_stage, run_command
from agentrl.policy import adapter
from agentrl.policy.checkpoint import CHECKPOINT, check_checkpoint, check_policy, copy_tokenizer
from agentrl.policy.loading import load_model
from agentrl.policy.settings import Model
from agentrl.rollout.chat import ChatProtocol, load_tokenizer
from agentrl.training import supervised


def main() -> None:
    """Read the recipe, train from the base, write the start checkpoint with its manifest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", type=Path, required=True, help="config/demo-sft.json")
    parser.add_argument("--base", type=Path, required=True, help="the base's manifest.json")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with open_stage(args.out, "train_demo_sft.py") as stage:
        recipe = validate(read_json(args.recipe), DemoSft, str(args.recipe))
        folder, _ = check_policy(args.base)
        tokenizer = load_tokenizer(folder)
        model = load_model(
            folder, Model(start=None, dtype="float32", device="cpu", threads=recipe.threads)
        )
        examples, contents = demo.examples(recipe, ChatProtocol(tokenizer))
        adapted = adapter.with_lora(model.train(), recipe.lora, recipe.stage.seed)
        with tempfile.TemporaryDirectory() as work:
            losses = supervised.train(
                adapted,
                tokenizer,
                examples,
                recipe.stage,
                recipe.stage.seed,
                Path(work),
                use_cpu=True,
            )
        demo.save(adapted.merge_and_unload(), tokenizer, args.out / CHECKPOINT)
        outputs = [f"{CHECKPOINT}/{name}" for name in check_checkpoint(args.out / CHECKPOINT)]
        outputs += copy_tokenizer(args.out / CHECKPOINT, args.out)
        inputs = {"recipe": args.recipe, "base": args.base}
        stage.manifest(
            inputs,
            outputs,
            recipe.model_dump(mode="json"),
            {"examples": contents, "loss": losses, "steps": 0},
        )


if __name__ == "__main__":
    run_command(main)

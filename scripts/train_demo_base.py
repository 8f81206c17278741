"""Demo only: train the base of the demo policy: tokenizer, copying drills, then trajectories and word problems."""

import argparse
import os
import tempfile
from pathlib import Path

os.environ.setdefault(
    "OMP_WAIT_POLICY", "PASSIVE"
)  # two spinning threads are slower than one where a core is taken

import torch

from agentrl.demo import policy as demo
from agentrl.demo.settings import DemoBase
from agentrl.evidence.files import read_json
from agentrl.evidence.section import validate
from agentrl.evidence.stage import open_stage, run_command
from agentrl.policy.checkpoint import CHECKPOINT, check_checkpoint
from agentrl.rollout.chat import ChatProtocol
from agentrl.training import supervised


def main() -> None:
    """Read the recipe, train, write the base checkpoint with its manifest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", type=Path, required=True, help="config/demo-base.json")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with open_stage(args.out, "train_demo_base.py") as stage:
        recipe = validate(read_json(args.recipe), DemoBase, str(args.recipe))
        torch.set_num_threads(recipe.threads)
        tokenizer = demo.make_tokenizer(recipe)
        chat = ChatProtocol(tokenizer)
        model = demo.new_model(recipe.architecture, tokenizer, recipe.stage.seed)
        examples, contents = demo.examples(recipe, chat)
        with tempfile.TemporaryDirectory() as work:
            drills, seed = demo.drills(chat, recipe), recipe.stage.seed
            supervised.train(model, tokenizer, drills, recipe.drill, seed, Path(work), use_cpu=True)
            losses = supervised.train(
                model, tokenizer, examples, recipe.stage, seed, Path(work), use_cpu=True
            )
        demo.save(model, tokenizer, args.out / CHECKPOINT)
        outputs = [f"{CHECKPOINT}/{name}" for name in check_checkpoint(args.out / CHECKPOINT)]
        stage.manifest(
            {"recipe": args.recipe},
            outputs,
            recipe.model_dump(mode="json"),
            {"examples": contents, "loss": losses},
        )


if __name__ == "__main__":
    run_command(main)

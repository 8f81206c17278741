"""Measure the vLLM engine on a GPU with a random policy of Qwen3-1.7B's shape: speed, agreement with transformers, a training step.

`python tests/gpu_vllm.py evaluate` and `python tests/gpu_vllm.py train`, one process each; one JSON object a line. Nothing is fetched: the
weights are random, the tokenizer is the tests' own. A random policy never stops, so that every row runs to its budget.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts")]

import torch  # noqa: E402 - the path comes first
from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: E402

from agentrl.engine.loading import Training, open_engine, trained_model  # noqa: E402
from agentrl.engine.transformers import TransformersEngine  # noqa: E402
from agentrl.policy.loading import load_model  # noqa: E402
from agentrl.rollout.loop import Rollout  # noqa: E402
from agentrl.rollout.sampler import Request, follow  # noqa: E402
from agentrl.study.config import Study, validate_study  # noqa: E402
from agentrl.study.strictyaml import read_yaml  # noqa: E402
from agentrl.tasks.families import generate  # noqa: E402
from agentrl.training import grpo  # noqa: E402
from agentrl.training.health import sampler_gap  # noqa: E402
from agentrl.training.reward import random_reward  # noqa: E402
from agentrl.training.settings import TrainingSettings  # noqa: E402

PROMPT, BUDGET = 512, 768
"""Tokens; the budget is the pilot's."""
SPREAD = 4.0
"""Embedding scale over Qwen3's initial .02: tied logits then spread over some nats, as a trained policy's do."""


def make_policy(folder: Path) -> None:
    """A checkpoint of Qwen3-1.7B's shape with random BF16 weights and the tests' tokenizer."""
    shutil.copytree(
        ROOT / "tests/data/start",
        folder,
        ignore=shutil.ignore_patterns("*.safetensors", "config.json"),
    )
    config = Qwen3Config(
        vocab_size=151936, hidden_size=2048, intermediate_size=6144, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
        head_dim=128, max_position_embeddings=40960, tie_word_embeddings=True, rope_theta=1e6,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(SPREAD)
    model.save_pretrained(folder)


def say(**facts: Any) -> None:
    """One measurement."""
    print(json.dumps(facts), flush=True)


def rows(count: int, budget: int, name: str) -> list[Request]:
    """Rows with prompts of their own, as different tasks have."""
    generator = torch.Generator().manual_seed(count)
    prompts = torch.randint(3, 1400, (count, PROMPT), generator=generator).tolist()
    return [Request(prompt, budget, (name, row)) for row, prompt in enumerate(prompts)]


def timed(engine: Any, count: int, budget: int, name: str) -> tuple[list[Request], list[Any]]:
    """Generate, say how fast."""
    asked, began = rows(count, budget, name), time.monotonic()
    samples = engine.generate(asked)
    seconds, tokens = time.monotonic() - began, sum(len(sample.ids) for sample in samples)
    say(
        what="generate",
        engine=engine.name,
        note=name,
        rows=count,
        budget=budget,
        tokens_per_second=round(tokens / seconds, 1),
        seconds=round(seconds, 2),
    )
    return asked, samples


def agreement(
    model: Any, asked: list[Request], samples: list[Any], temperature: float, note: str
) -> None:
    """Recorded log-probabilities against a teacher-forced pass of transformers, both in BF16."""
    sampler, trainer = [], []
    for request, sample in zip(asked, samples, strict=True):
        with torch.inference_mode():
            logits = (
                model(torch.tensor([request.context + sample.ids], device="cuda"))
                .logits[0, len(request.context) - 1 : -1]
                .float()
            )
        trainer += (
            (logits / temperature).log_softmax(-1)[range(len(sample.ids)), sample.ids].tolist()
        )
        sampler += sample.logprobs
    say(
        what="agreement",
        note=note,
        tokens=len(sampler),
        mean_logprob=sum(sampler) / len(sampler),
        **sampler_gap(sampler, trainer),
    )


def evaluate(folder: Path, study: Study) -> None:
    """Speed at several batch sizes, then agreement with transformers on the same card."""
    began = time.monotonic()
    engine, chat = open_engine(folder, study.model, study.decoding)
    say(what="start", seconds=round(time.monotonic() - began, 1), **engine.describe())
    timed(engine, 32, 16, "warm-up")
    for count in (1, 4, 32, 128, 256):
        timed(engine, count, BUDGET, "evaluation")
    asked, samples = timed(engine, 8, 200, "agreement")
    model = load_model(folder, study.model)
    agreement(model, asked, samples, study.decoding.temperature, "vllm")
    again = engine.generate(asked)
    alone = [engine.generate([request])[0] for request in asked]
    say(what="rows the same", again=sum(a.ids == b.ids for a, b in zip(samples, again, strict=True)),
        alone=sum(a.ids == b.ids for a, b in zip(samples, alone, strict=True)), of=len(asked))  # fmt: skip
    portable = TransformersEngine(model, study.decoding, chat.stop_ids, 0)
    asked, samples = timed(portable, 8, 64, "agreement")
    agreement(model, asked, samples, study.decoding.temperature, "transformers")


def train(folder: Path, study: Study, steps: int, learning_rate: float) -> None:
    """GRPO steps at the pilot's shape beside vLLM: sync, sampling and the rest apart, memory, gap to the trainer at every step."""
    tasks = generate(study.tasks, "train", study.tasks.splits.train)
    values = {name: getattr(study.training, name) for name in TrainingSettings.model_fields}
    settings = TrainingSettings(
        **values | {"steps": steps, "learning_rate": learning_rate, "checkpoint_every": 1000}
    )
    asked = Training(
        settings.batch_size, BUDGET, settings.lora.r, [task.messages() for task in tasks]
    )
    began = time.monotonic()
    engine, chat = open_engine(folder, study.model, study.decoding, asked)
    say(
        what="start beside a trainer",
        seconds=round(time.monotonic() - began, 1),
        **engine.describe(),
    )
    free, total = torch.cuda.mem_get_info()
    say(what="memory", engine_gib=round((total - free) / 2**30, 1))
    with tempfile.TemporaryDirectory() as work:
        recorder = grpo.Recorder(
            Rollout(engine, chat, study.protocol),
            tasks,
            partial(random_reward, study.reward),
            "pilot/seed-3",
            3,
            Path(work),
            settings,
        )
        model = trained_model(engine, folder, study.model)
        made = grpo.trainer(
            model, chat.tokenizer, recorder, settings, study.decoding, BUDGET, study.model
        )
        _watch(engine, made)
        grpo.train(made, Path(work))
        for line in (Path(work) / grpo.STEPS).read_text(encoding="utf-8").splitlines():
            say(
                what="step record",
                **{
                    k: v
                    for k, v in json.loads(line).items()
                    if k not in ("tasks", "strict", "episodes")
                },
            )
        say(what="memory", peak_torch_gib=round(torch.cuda.max_memory_allocated() / 2**30, 1))
        follow(engine, made.model)
        timed(engine, settings.batch_size, BUDGET, "with adapter")
        engine.adapter = None
        timed(engine, settings.batch_size, BUDGET, "same engine without adapter")


def _watch(engine: Any, made: grpo.RecordedTrainer) -> None:
    """Say how long each step's sync, rollout and whole took."""
    sync, roll, step = engine.follow, made.recorder.rollout.play, made.training_step

    def timing(name: str, function: Any) -> Any:
        def run(*arguments: Any, **named: Any) -> Any:
            torch.cuda.synchronize()
            began = time.monotonic()
            found = function(*arguments, **named)
            torch.cuda.synchronize()
            say(what=name, seconds=round(time.monotonic() - began, 3))
            return found

        return run

    engine.follow = timing("sync", sync)
    made.recorder.rollout.play = timing("rollout", roll)
    made.training_step = timing("training step, rollout included", step)


def main() -> None:
    """Make the policy once, measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("evaluate", "train"))
    parser.add_argument(
        "--policy", type=Path, default=Path(tempfile.gettempdir()) / "qwen3-1.7b-shape"
    )
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument(
        "--learning-rate",
        type=float,
        default=1e-4,
        help="large enough that a stale sampler shows within a few steps",
    )
    args = parser.parse_args()
    if not args.policy.exists():
        make_policy(args.policy)
    study = validate_study(read_yaml(ROOT / "config.yaml"))
    study = study.model_copy(update={"model": study.model.model_copy(update={"engine": "vllm"})})
    if args.what == "evaluate":
        evaluate(args.policy, study)
    else:
        train(args.policy, study, args.steps, args.learning_rate)


if __name__ == "__main__":
    main()

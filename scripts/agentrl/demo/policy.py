"""The demo policy: a half-million-parameter Qwen3 that the pipeline makes itself, so that a whole study runs on a laptop.

Two supervised stages. `base` trains all weights on many wordings that belong to no split; `sft` trains a LoRA on demonstrations with more
departures, merged, which leaves a middling agent with something to learn. Both are plain `transformers.Trainer` runs.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from agentrl.demo import tokenizer as demo_tokenizer
from agentrl.demo import wordproblems
from agentrl.demo.demonstrations import demonstrate, drill, equations, script, solve, tail
from agentrl.demo.settings import Architecture, DemoBase, DemoJob
from agentrl.evaluation.retention import messages
from agentrl.rollout.chat import ChatProtocol
from agentrl.tasks.families import base_tasks
from agentrl.training.supervised import Example, example

CONTEXT = 2048
TOKENIZER_EXAMPLES = 600
ROWS_PER_STAGE = 4000
"""Distinct rows of one stage; more steps see them again."""
PARTS_PER_ROW = 4
"""Word problems, or tails of trajectories, that together are about as long as one trajectory."""


def make_tokenizer(recipe: DemoBase) -> PreTrainedTokenizerFast:
    """Tokenizer of the demo policy, from base tasks (of no split), demonstrations and word problems."""
    bare = ChatProtocol(demo_tokenizer.untrained())
    rng = Random(f"tokenizer/{recipe.stage.seed}")
    tasks = base_tasks(recipe.tasks, TOKENIZER_EXAMPLES, recipe.stage.seed)
    problems = [
        p.question
        for p in wordproblems.problems(TOKENIZER_EXAMPLES, recipe.stage.seed, held_out=False)
    ]
    lines = [turn for task in tasks for turn in script(task, recipe.stage.mixture, rng)]
    lines += [bare.render(task.messages()).replace(task.question, "") for task in tasks]
    lines += [
        bare.render(messages(recipe.retention, question), tools=False).replace(question, "")
        for question in problems
    ]
    lines += [json.dumps(task.facts).join(bare.frames[::2]) for task in tasks]
    return demo_tokenizer.train(
        lines, [*(task.question for task in tasks), *problems], recipe.architecture.vocabulary
    )


def new_model(
    shape: Architecture, tokenizer: PreTrainedTokenizerFast, seed: int
) -> PreTrainedModel:
    """Randomly initialised tied Qwen3 in float32."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.mlp,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config)


def examples(recipe: DemoJob, chat: ChatProtocol) -> tuple[list[Example], dict[str, Any]]:
    """Supervised rows of one stage, shuffled, and what they contain. Short examples share a row, so that little is padding."""
    stage, rng = recipe.stage, Random(f"stage/{recipe.stage.seed}")
    shares = (stage.word_problems, stage.equations, stage.tails)
    arithmetic, bare, tails = (round(ROWS_PER_STAGE * share) for share in shares)
    whole = ROWS_PER_STAGE - arithmetic - bare - tails
    tasks = base_tasks(recipe.tasks, whole + tails * PARTS_PER_ROW, stage.seed)
    played = demonstrate(tasks, chat, recipe.protocol, stage.mixture, stage.seed)
    problems = wordproblems.problems(arithmetic * PARTS_PER_ROW, stage.seed, held_out=False)
    rows = [example(t) for t in played[:whole]] + [equations(chat, rng) for _ in range(bare)]
    rows += joined([tail(t) for t in played[whole:]]) + joined(
        [solve(p, chat, recipe.retention, stage.mixture, rng) for p in problems]
    )
    rng.shuffle(rows)
    strict = sum(t.outcome.strict for t in played) / max(1, len(played))
    return rows, {
        "demonstrations": len(played),
        "strict_share": round(strict, 4),
        "word_problems": len(problems),
        "equation_rows": bare,
    }


def joined(parts: Sequence[Example]) -> list[Example]:
    """Rows of independent examples one after another."""
    rows = [parts[start : start + PARTS_PER_ROW] for start in range(0, len(parts), PARTS_PER_ROW)]
    return [
        Example(
            [token for part in row for token in part.ids],
            [taught for part in row for taught in part.mask],
        )
        for row in rows
    ]


def drills(chat: ChatProtocol, recipe: DemoBase) -> list[Example]:
    """One epoch of copying drills, all distinct."""
    rng = Random(f"drills/{recipe.stage.seed}")
    return [drill(chat, rng) for _ in range(recipe.drill.steps * recipe.drill.batch_size)]


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a standalone safetensors checkpoint with its tokenizer."""
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = (
        tokenizer.eos_token_id,
        tokenizer.pad_token_id,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)

"""Sections `demo-base` and `demo-sft`: the recipe of the policy that the pipeline makes itself."""

from typing import Annotated

from pydantic import Field

from agentrl.evaluation.settings import RetentionPrompt
from agentrl.evidence.section import Positive, Rate, Section, Seed, Share
from agentrl.policy.settings import Lora
from agentrl.rollout.settings import Protocol
from agentrl.tasks.settings import BaseTasks


class Architecture(Section):
    """Shape of the demo policy, a Qwen3 of its own."""

    hidden: Positive
    layers: Positive
    heads: Positive
    kv_heads: Positive
    head_dim: Positive
    mlp: Positive
    vocabulary: Annotated[int, Field(ge=300)]


class Mixture(Section):
    """Shares of demonstrations that depart from the expert, so that the policy has something to learn."""

    guess: Share
    """Answers after the lookup without calculating."""
    bare_result: Share
    """Calls the calculator with a number instead of the product."""
    wrong_formula: Share
    """Adds instead of multiplying."""
    free_answer: Share
    """Answers in a sentence, without the answer tag."""
    wrong_sum: Share
    """Word problems whose demonstrated result is off."""


class Drill(Section):
    """Copying drills before the base stage."""

    steps: Positive
    batch_size: Positive
    learning_rate: Rate


class DemoStage(Section):
    """One supervised stage of the demo policy."""

    seed: Seed
    steps: Positive
    batch_size: Positive
    learning_rate: Rate
    word_problems: Share
    """Share of word problems among the examples."""
    equations: Share
    """Share of bare equations."""
    tails: Share
    """Share of trajectories without their prompt; what remains are whole trajectories."""
    mixture: Mixture


class DemoPolicy(Section):
    """Recipe of the policy that the pipeline makes itself, so that the whole study runs on a laptop."""

    threads: Positive
    """CPU threads of the two supervised stages: nothing else runs beside them."""
    architecture: Architecture
    drill: Drill
    base: DemoStage
    sft: DemoStage
    sft_lora: Lora


class DemoJob(Section):
    """What both jobs that make the demo policy need beside their own recipe."""

    threads: Positive
    tasks: BaseTasks
    protocol: Protocol
    retention: RetentionPrompt
    stage: DemoStage


class DemoBase(DemoJob):
    """Section `demo-base`: the job that trains tokenizer and base."""

    architecture: Architecture
    drill: Drill


class DemoSft(DemoJob):
    """Section `demo-sft`: the job that makes the start policy from the base."""

    lora: Lora

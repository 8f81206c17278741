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
    """Width of the residual stream."""
    layers: Positive
    """Decoder layers."""
    heads: Positive
    """Query heads of a layer."""
    kv_heads: Positive
    """Key-value heads of a layer."""
    head_dim: Positive
    """Width of one head."""
    mlp: Positive
    """Width of the feed-forward layer."""
    vocabulary: Annotated[int, Field(ge=300)]
    """Ids of the tokenizer, control tokens and tags included."""


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
    """Optimizer steps."""
    batch_size: Positive
    """Drills in one optimizer step."""
    learning_rate: Rate
    """Highest learning rate; it rises, then falls to 0 as a cosine."""


class DemoStage(Section):
    """One supervised stage of the demo policy."""

    seed: Seed
    """Of examples, their order and the initial weights."""
    steps: Positive
    """Optimizer steps."""
    batch_size: Positive
    """Rows in one optimizer step."""
    learning_rate: Rate
    """Highest learning rate; it rises, then falls to 0 as a cosine."""
    word_problems: Share
    """Share of word problems among the examples."""
    equations: Share
    """Share of bare equations."""
    tails: Share
    """Share of trajectories without their prompt; what remains are whole trajectories."""
    mixture: Mixture
    """How demonstrations of this stage depart from the expert."""


class DemoPolicy(Section):
    """Recipe of the policy that the pipeline makes itself, so that the whole study runs on a laptop."""

    threads: Positive
    """CPU threads of the two supervised stages: nothing else runs beside them."""
    architecture: Architecture
    """Shape of the model."""
    drill: Drill
    """Copying drills before the base stage."""
    base: DemoStage
    """The stage that trains all weights."""
    sft: DemoStage
    """The stage that makes the start policy of the base, by a LoRA that is merged."""
    sft_lora: Lora
    """That LoRA."""


class DemoJob(Section):
    """What both jobs that make the demo policy need beside their own recipe."""

    threads: Positive
    """CPU threads."""
    tasks: BaseTasks
    """What its tasks depend on; their wordings and ids belong to no split."""
    protocol: Protocol
    """The study's own: demonstrations are played by it."""
    retention: RetentionPrompt
    """The retention prompt, in which word problems are demonstrated."""
    stage: DemoStage
    """The stage's recipe."""


class DemoBase(DemoJob):
    """Section `demo-base`: the job that trains tokenizer and base."""

    architecture: Architecture
    """Shape of the model."""
    drill: Drill
    """Copying drills before the stage."""


class DemoSft(DemoJob):
    """Section `demo-sft`: the job that makes the start policy from the base."""

    lora: Lora
    """The LoRA that is trained and merged."""

"""Section `model`, and the adapter's shape."""

from typing import Annotated, Literal

from pydantic import Field

from agentrl.evidence.section import Positive, Section


class Model(Section):
    """The start policy and how every stage loads it."""

    start: str | None
    """Local folder or hub id of the German SFT checkpoint; null where `demo_policy` makes one."""
    revision: str | None = None
    """Pinned hub commit; must be null for a local folder."""
    dtype: Literal["float32", "bfloat16"]
    """Precision in which weights are loaded, sampled from and trained."""
    device: Literal["cpu", "cuda"]
    """Where model processes run."""
    engine: Literal["auto", "vllm", "transformers"] = "auto"
    """What samples. `auto`: the fastest that can serve this policy here (`engine.choice`)."""
    threads: Positive | None = None
    """CPU threads of one process; null leaves torch's default."""


class Lora(Section):
    """PEFT LoRA of the trained policy. Biases stay as they are (`adapter.BIAS`)."""

    r: Positive
    """Rank."""
    alpha: Positive
    """The update is scaled by `alpha / r`."""
    targets: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names of the projections that get an adapter, in every layer."""
    dropout: Annotated[float, Field(ge=0, lt=1)]
    """Of the adapter's input, while training only."""
    init: Literal["kaiming", "gaussian"]
    """Of the projection down; the projection up begins at 0 either way, so that training begins at the start policy. Initialisations
    that change the weights below the adapter are not offered: the KL term's reference is the model with its adapter off."""

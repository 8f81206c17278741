"""Sections `protocol` and `decoding`: what ends an episode, and how a token is sampled."""

from typing import Annotated

from pydantic import Field

from agentrl.evidence.section import Positive, Section, Seed, Share
from agentrl.tasks.settings import Success


class Protocol(Section):
    """One episode: what ends it and what breaks strict success."""

    budget: Positive
    """Tokens of the stream after the prompt, observations and framing included."""
    max_tool_iterations: Positive
    """Turns that may call a tool; one more assistant turn may follow to answer."""
    success: Success
    """Whether each departure from the straight course breaks strict success."""


class Decoding(Section):
    """Sampling of one token: temperature, then top-k, top-p, min-p. `temperature: 0` is greedy."""

    temperature: Annotated[float, Field(ge=0)]
    """Divides the logits; 0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)]
    """Keeps the smallest set of tokens that holds this share of the probability; 1 keeps all."""
    top_k: Annotated[int, Field(ge=0)]
    """Keeps that many of the likeliest tokens; 0 keeps the whole vocabulary."""
    min_p: Share
    """Keeps tokens with at least this share of the likeliest one's probability; 0 keeps all."""
    seed: Seed
    """Of the random streams of evaluation and preflight; those of training take the training seed."""

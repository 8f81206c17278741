"""One decode step of a Qwen3 over slots: every row at its own position, no padding, fixed shapes, nothing read back by the host.

transformers' own step grows a cache or masks a padded one, and repeats keys and values to all heads; both cost more than the step's
arithmetic. Here a layer writes its keys and values at each row's position and attends grouped heads to the slots up to `width`. Projections
are called as modules, so that LoRA layers act as they do in training. Equality with transformers' forward is tested.
"""

import inspect
from typing import NamedTuple

import torch
from transformers import PreTrainedModel, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import apply_rotary_pos_emb


class Step(NamedTuple):
    """What every layer of one step needs to know about its rows."""

    cos: torch.Tensor
    """(rows, 1, head_dim)"""
    sin: torch.Tensor
    positions: torch.Tensor
    """(rows,) where each row's new key and value go."""
    seen: torch.Tensor
    """(rows, 1, 1, width) bool: the slots up to and including that position."""


def base_model(model: torch.nn.Module) -> PreTrainedModel:
    """The transformers model beneath an adapter, LoRA layers in place."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[return-value, operator]


def supported(model: torch.nn.Module) -> bool:
    """Whether `decode` knows this architecture: Qwen3 with full attention in every layer."""
    base = base_model(model)
    return isinstance(base, Qwen3ForCausalLM) and set(base.config.layer_types) == {"full_attention"}


def cache_keyword(base: PreTrainedModel) -> str:
    """What this transformers release calls the cache: `past_key_values` up to 5.23 or so, deprecated for `cache` by 5.24."""
    return "cache" if "cache" in inspect.signature(type(base).forward).parameters else "past_key_values"


def layer_step(layer: torch.nn.Module, hidden: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, step: Step) -> torch.Tensor:
    """One decoder layer on one token a row.

    Args:
        layer: a `Qwen3DecoderLayer`.
        hidden: (rows, 1, hidden size).
        keys: (rows, key-value heads, slots, head_dim), written in place.
        values: the same.
        step: rotary angles, positions and mask.

    Returns:
        (rows, 1, hidden size).
    """
    attention, normed = layer.self_attn, layer.input_layernorm(hidden)
    heads = (hidden.shape[0], 1, -1, attention.head_dim)
    query = attention.q_norm(attention.q_proj(normed).view(heads)).transpose(1, 2)
    key = attention.k_norm(attention.k_proj(normed).view(heads)).transpose(1, 2)
    query, key = apply_rotary_pos_emb(query, key, step.cos, step.sin)
    rows = torch.arange(hidden.shape[0], device=hidden.device)
    keys[rows, :, step.positions] = key[:, :, 0]
    values[rows, :, step.positions] = attention.v_proj(normed).view(heads)[:, 0]
    mixed = attend(query, keys, values, step.seen, attention.scaling)
    hidden = hidden + attention.o_proj(mixed.reshape(hidden.shape[0], 1, -1))
    return hidden + layer.mlp(layer.post_attention_layernorm(hidden))


def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, seen: torch.Tensor, scaling: float) -> torch.Tensor:
    """Attention of one query a row, grouped heads reading their shared keys once.

    Two batched products: a flash kernel without splits along the keys leaves most of a GPU idle when each row has one query.

    Args:
        query: (rows, heads, 1, head_dim).
        keys: (rows, key-value heads, slots, head_dim), slots at least `seen`'s width.
        values: the same.
        seen: (rows, 1, 1, width) bool.
        scaling: factor of the scores.

    Returns:
        (rows, key-value heads, heads per group, head_dim): reshaped, the order in which `o_proj` expects its heads.
    """
    rows, groups, _, size = keys.shape
    width = seen.shape[-1]
    grouped = query.view(rows, groups, -1, size)
    scores = grouped @ keys[:, :, :width].transpose(-1, -2)
    weights = (scores.float() * scaling).masked_fill(~seen, -torch.inf).softmax(-1)
    return weights.to(values.dtype) @ values[:, :, :width]

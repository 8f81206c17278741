"""A Qwen3's forward pass over slots: every token at its own row and position, no padding mask, nothing read back by the host.

transformers' own pass grows a cache or masks a padded one, and launches some two thousand kernels a step. Here a layer is what comes
before and what comes after its attention, the same for a prompt's tokens and for one token a row; its projections are `products`. Equality
with transformers' forward is tested.
"""

import logging
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch._dynamo.exc import TorchDynamoException
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.qwen3.modeling_qwen3 import apply_rotary_pos_emb

from agentrl.engine.sampling import choose_tokens
from agentrl.engine.static.products import (
    Weights,
    adapt,
    add,
    base_model,
    in_effect,
    project,
    weights,
)

_log = logging.getLogger(__name__)
RECOMPILATIONS = 64
"""Dynamo's default of 8 would fall back to uncompiled layers without a word."""

Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Query, key and value of the tokens of one pass (`before`)."""


class Place(NamedTuple):
    """Where tokens stand."""

    rows: torch.Tensor
    """(tokens,) slot of each token."""
    positions: torch.Tensor
    """(tokens,) where in its slot, and its rotary position."""
    cos: torch.Tensor
    """(tokens, head_dim)"""
    sin: torch.Tensor


def before(
    layer: torch.nn.Module,
    products: Weights,
    keys: torch.Tensor,
    values: torch.Tensor,
    hidden: torch.Tensor,
    place: Place,
) -> Heads:
    """A decoder layer up to its attention; keys and values go into the slots.

    Args:
        layer: a `Qwen3DecoderLayer`, for its norms.
        products: its projections.
        keys: (slots, key-value heads, length, head_dim), written in place.
        values: the same.
        hidden: (tokens, hidden size).
        place: where the tokens stand.

    Returns:
        Query (tokens, heads, head_dim), key and value (tokens, key-value heads, head_dim).
    """
    attention, groups, size = layer.self_attn, keys.shape[1], keys.shape[3]
    projected = project(products.qkv, layer.input_layernorm(hidden)).view(len(hidden), -1, size)  # type: ignore[operator]
    heads = projected.shape[1] - 2 * groups
    query, key, value = projected.split((heads, groups, groups), dim=1)
    query, key = attention.q_norm(query), attention.k_norm(key)  # type: ignore[union-attr, operator]
    query, key = apply_rotary_pos_emb(query, key, place.cos, place.sin)
    keys[place.rows, :, place.positions] = key
    values[place.rows, :, place.positions] = value
    return query, key, value


def after(
    layer: torch.nn.Module, products: Weights, hidden: torch.Tensor, mixed: torch.Tensor
) -> torch.Tensor:
    """A decoder layer from its attention's result on.

    Args:
        layer: for its second norm and activation.
        products: its projections.
        hidden: (tokens, hidden size), what went into the layer.
        mixed: (tokens, heads x head_dim).

    Returns:
        (tokens, hidden size).
    """
    hidden = add(hidden, project(products.out, mixed))
    gate, up = project(products.gate_up, layer.post_attention_layernorm(hidden)).chunk(2, dim=-1)  # type: ignore[operator]
    return add(hidden, project(products.down, layer.mlp.act_fn(gate) * up))  # type: ignore[union-attr, operator]


def between(
    layer: torch.nn.Module, products: Weights, following: torch.nn.Module, its_products: Weights, keys: torch.Tensor, values: torch.Tensor,
    hidden: torch.Tensor, mixed: torch.Tensor, place: Place,
) -> tuple[torch.Tensor, Heads]:  # fmt: skip
    """`after` of one layer and `before` of the following as one, so that the compiler joins what lies between; `keys` are the latter's.

    Returns:
        Hidden states (tokens, hidden size) between the two, and the following layer's new heads.
    """
    hidden = after(layer, products, hidden, mixed)
    return hidden, before(following, its_products, keys, values, hidden, place)


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: torch.Tensor,
    scaling: float,
) -> torch.Tensor:
    """Attention of one query a row to its slot up to its position, in plain PyTorch: what `attention.attend` computes without Triton.

    Args:
        query: (rows, heads, head_dim).
        keys: (rows, key-value heads, length, head_dim).
        values: the same.
        positions: (rows,).
        scaling: factor of the scores.

    Returns:
        (rows, heads, head_dim).
    """
    rows, groups, length, size = keys.shape
    scores = query.view(rows, groups, -1, size) @ keys.transpose(-1, -2)
    seen = torch.arange(length, device=positions.device) <= positions.view(-1, 1, 1, 1)
    mixed = (scores.float() * scaling).masked_fill(~seen, -torch.inf).softmax(-1).to(
        values.dtype
    ) @ values
    return mixed.reshape(rows, -1, size)


def attend_prompts(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, prompts: int, scaling: float
) -> torch.Tensor:
    """Causal attention within prompts of one width; what pads a shorter one on its right is seen by nobody that counts.

    Args:
        query: (prompts x width, heads, head_dim).
        key: (prompts x width, key-value heads, head_dim).
        value: the same.
        prompts: how many.
        scaling: factor of the scores.

    Returns:
        (prompts x width, heads, head_dim).
    """
    query, key, value = (
        part.unflatten(0, (prompts, -1)).transpose(1, 2) for part in (query, key, value)
    )
    mixed = scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scaling, enable_gqa=True
    )
    return mixed.transpose(1, 2).flatten(0, 1)


Mix = Callable[[Heads, torch.Tensor, torch.Tensor, float], torch.Tensor]
"""Attention of one layer: new heads, its cached keys and values, factor of the scores."""


class Cache(NamedTuple):
    """Keys and values by layer, each (slots, key-value heads, length, head_dim)."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]


class Forward:
    """The pass of one model whose adapters change in place: `refresh` before a pass takes them over.

    Args:
        model: `supported`, adapter included.
        compiled: compile layers and the choice of ids, and attend by a Triton kernel on a GPU. Where the toolchain is missing, a warning
            says so and everything runs as it is.
    """

    def __init__(self, model: torch.nn.Module, compiled: bool) -> None:
        self.model, self.base, self.compiled = model, base_model(model), compiled
        self._as_written()
        if compiled:
            self.before, self.between, self.after, self.choose = map(
                torch.compile, (before, between, after, choose_tokens)
            )
            size = self.base.config.head_dim
            if (
                self.base.device.type == "cuda"
                and find_spec("triton")
                and size >= 16
                and size.bit_count() == 1
            ):
                from agentrl.engine.static.attention import (
                    attend as kernel,
                )  # Triton comes with PyTorch's CUDA builds

                self.attend = kernel
        self.products: list[Weights] = []
        self.seen: Any = None

    def _as_written(self) -> None:
        self.before, self.between, self.after, self.choose, self.attend = (
            before,
            between,
            after,
            choose_tokens,
            attend,
        )

    def refresh(self) -> bool:
        """Take over weights and adapters as they are now.

        Returns:
            False where they are other tensors than at the last call: graphs captured before are void.
        """
        layers, state = self.base.model.layers, self._state()
        same = state == self.seen
        if not same:
            self.products, self.seen = [weights(layer) for layer in layers], state
        for layer, products in zip(layers, self.products, strict=True):
            adapt(layer, products)
        return same

    def _state(self) -> Any:
        """What graphs and copies depend on: where each weight lies, which frozen ones were written to, which adapters are in effect."""
        lie = [
            (part.data_ptr(), None if "lora_" in name else part._version)  # noqa: SLF001
            for name, part in self.model.named_parameters()
        ]
        return lie, [in_effect(layer) for layer in self.base.model.layers]

    def decode(self, ids: torch.Tensor, positions: torch.Tensor, cache: Cache) -> torch.Tensor:
        """One token for each of the first slots.

        Args:
            ids: (rows,).
            positions: (rows,).
            cache: written in place.

        Returns:
            Logits (rows, vocabulary).
        """
        rows = len(ids)

        def mix(
            new: Heads, keys: torch.Tensor, values: torch.Tensor, scaling: float
        ) -> torch.Tensor:
            return self.attend(new[0], keys[:rows], values[:rows], positions, scaling)

        hidden = self._layers(ids, torch.arange(rows, device=ids.device), positions, cache, mix)
        logits = self.base.lm_head(self.base.model.norm(hidden))
        self._any_number(logits)
        return logits

    def prefill(self, ids: torch.Tensor, slots: torch.Tensor, cache: Cache) -> None:
        """Cache prompts, shorter ones padded on their right: what stands behind a row's end is written over before it is read.

        Args:
            ids: (prompts, width).
            slots: (prompts,) where they go.
            cache: written in place.
        """
        prompts, width = ids.shape

        def mix(
            new: Heads, _keys: torch.Tensor, _values: torch.Tensor, scaling: float
        ) -> torch.Tensor:
            return attend_prompts(*new, prompts, scaling)

        positions = torch.arange(width, device=ids.device).repeat(prompts)
        self._layers(ids.flatten(), slots.repeat_interleave(width), positions, cache, mix)

    def _layers(
        self, ids: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, cache: Cache, mix: Mix
    ) -> torch.Tensor:
        """Hidden states (tokens, hidden size) behind the last layer."""
        decoder = self.base.model
        hidden = decoder.embed_tokens(ids)
        cos, sin = (part[0] for part in decoder.rotary_emb(hidden, positions.unsqueeze(0)))
        place = Place(rows, positions, cos, sin)
        try:
            with torch.compiler.config.patch(recompile_limit=RECOMPILATIONS):
                return self._pass(hidden, place, cache, mix)
        except TorchDynamoException as error:
            _log.warning(
                "layers cannot be compiled here and run uncompiled, more slowly: %s",
                str(error).strip().splitlines()[0],
            )
            self.compiled = False
            self._as_written()
            return self._pass(hidden, place, cache, mix)

    def _pass(self, hidden: torch.Tensor, place: Place, cache: Cache, mix: Mix) -> torch.Tensor:
        layers = list(zip(self.base.model.layers, self.products, *cache, strict=True))
        self._any_number(hidden, *place)
        new = self.before(*layers[0], hidden, place)
        for index, (layer, products, keys, values) in enumerate(layers):
            mixed = mix(new, keys, values, layer.self_attn.scaling).flatten(1)
            self._any_number(hidden, mixed)
            if index + 1 < len(layers):
                hidden, new = self.between(
                    layer, products, *layers[index + 1], hidden, mixed, place
                )
            else:
                hidden = self.after(layer, products, hidden, mixed)
        return hidden

    def _any_number(self, *tensors: torch.Tensor) -> None:
        """Compile once for any number of tokens instead of once for each."""
        if self.compiled:
            for tensor in tensors:
                torch._dynamo.maybe_mark_dynamic(tensor, 0)  # noqa: SLF001 - documented under dynamic shapes

"""The engine of one checkpoint: weights, tokenizer and stop ids put together in one place, for training and every evaluation alike."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from agentrl.engine.choice import choose_engine
from agentrl.engine.transformers import TransformersEngine
from agentrl.policy.loading import load_model
from agentrl.policy.settings import Model
from agentrl.rollout.chat import ChatProtocol, load_tokenizer
from agentrl.rollout.sampler import Engine
from agentrl.rollout.settings import Decoding

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Training:
    """What a trainer on the same device will ask for."""

    rows: int
    """Episodes of one step."""
    budget: int
    """Tokens of an episode behind its prompt."""
    rank: int
    """Of the adapter."""
    dialogues: Sequence[list[dict[str, str]]]
    """Every prompt, as messages."""


def open_engine(
    folder: Path, section: Model, decoding: Decoding, training: Training | None = None
) -> tuple[Engine, ChatProtocol]:
    """Engine and protocol of a checkpoint folder that `policy.check_policy` has passed.

    Args:
        folder: the checkpoint.
        section: dtype, device and which engine.
        decoding: sampling settings.
        training: set where the policy will be trained beside the engine.

    Raises:
        ProtocolError: its tokenizer cannot carry the protocol.
        PolicyError: the configured device is not there.
        EngineError: the configured engine cannot serve it, or did not start.
    """
    tokenizer = load_tokenizer(folder)
    chat = ChatProtocol(tokenizer)
    choice = choose_engine(section, folder)
    if choice.obstacle is not None:
        _log.info("engine: %s, because %s", choice.name, choice.obstacle)
    if choice.name == "transformers":
        return TransformersEngine(
            load_model(folder, section), decoding, chat.stop_ids, tokenizer.pad_token_id
        ), chat
    from agentrl.engine.vllm import Beside, VllmEngine  # only where it is installed

    beside = None
    if training is not None:
        longest = max(len(chat.prompt(dialogue)) for dialogue in training.dialogues)
        beside = Beside(training.rows, longest + training.budget, training.rank)
    return VllmEngine(folder, section, decoding, chat.stop_ids, beside), chat


def trained_model(engine: Engine, folder: Path, section: Model) -> PreTrainedModel:
    """The model that a trainer updates: the transformers engine's own, or one beside vLLM's copy of the same weights."""
    return engine.model if isinstance(engine, TransformersEngine) else load_model(folder, section)


def measured(engine: Engine, tokens: int, seconds: float) -> dict[str, Any]:
    """Engine and speed for the provenance; `seconds` without loading."""
    return engine.describe() | {
        "generation_seconds": round(seconds, 2),
        "tokens_per_second": round(tokens / seconds, 1),
    }

"""The engine of one checkpoint: weights, tokenizer and stop ids put together in one place, for training and every evaluation alike."""

from pathlib import Path
from typing import Any

from agentrl.config import Decoding, Model
from agentrl.engine.transformers import TransformersEngine
from agentrl.policy import load_model
from agentrl.protocol import ChatProtocol, load_tokenizer


def open_engine(folder: Path, section: Model, decoding: Decoding) -> tuple[TransformersEngine, ChatProtocol]:
    """Engine and protocol of a checkpoint folder that `policy.check_policy` has passed.

    Raises:
        ProtocolError: its tokenizer cannot carry the protocol.
        PolicyError: the configured device is not there.
    """
    tokenizer = load_tokenizer(folder)
    chat = ChatProtocol(tokenizer)
    return TransformersEngine(load_model(folder, section), decoding, chat.stop_ids, tokenizer.pad_token_id), chat


def measured(engine: TransformersEngine, tokens: int, seconds: float) -> dict[str, Any]:
    """Engine and speed for the provenance; `seconds` without loading."""
    return engine.describe() | {"generation_seconds": round(seconds, 2), "tokens_per_second": round(tokens / seconds, 1)}

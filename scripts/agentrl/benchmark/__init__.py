"""The GPU benchmark: a random policy of Qwen3-1.7B's shape, tokens per second of every engine, a training step in its parts."""

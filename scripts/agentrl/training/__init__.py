"""GRPO on recorded episodes, its gates, rewards, the arm's warm-up, and the preflight before it.

Nothing is trained on that the records do not show. Uses `evaluation` and below; called by commands and, for its numbers, by verify.
"""

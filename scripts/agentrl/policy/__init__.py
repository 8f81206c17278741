"""Checkpoints: which files count, loading, the LoRA adapter, and the audited merge.

Owns everything that touches weights on disk. Uses `rollout` and below; called by engines, training and verify.
"""

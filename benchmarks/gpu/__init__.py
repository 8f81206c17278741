"""Decoding, GRPO steps and kernels on one GPU, against the limit that its memory sets."""

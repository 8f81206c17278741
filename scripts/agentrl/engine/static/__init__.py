"""The static loop: one captured CUDA graph a step over slots that are refilled turn by turn.

Used by the transformers engine where it knows the policy; the dynamic loop is the way back.
"""

"""A policy's score: agent episodes on a split, mathematics without tools, and baselines that are taken over.

Counts what was played and decides nothing. Uses engines through `rollout.sampler`; called by judgement, training's preflight and commands.
"""

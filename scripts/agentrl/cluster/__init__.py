"""Nodes and schedulers: what a node must have, what the profile asks a cluster for, no second writer in a queue.

Used by the profile, the rules and the look at the node; no model code.
"""

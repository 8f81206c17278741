"""German tasks with private facts, and the environment that alone may read them.

Owns wordings, facts, tools, the call log and what it is worth as success. Uses `evidence`; called by whatever plays, trains or checks
episodes.
"""

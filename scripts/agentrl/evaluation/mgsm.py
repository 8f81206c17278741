"""What is known about MGSM's items, apart from what reads them: statistics must load without a tokenizer."""

MGSM_CONTRADICTED = frozenset({"mgsm-de-054", "mgsm-de-096", "mgsm-de-110", "mgsm-de-121"})
"""Items whose German text contradicts their gold answer (MGSM-Rev2, arXiv 2511.05162)."""

"""One episode in token ids: chat template, parser, the loop over turns, random streams, and the record of what happened.

The same loop serves training and evaluation. `sampler` is the interface that engines fill. Uses `tasks` and `evidence`; loads no weights.
"""

"""What samples: the static loop, the dynamic loop and vLLM behind one interface, and the choice between them.

Token ids in, token ids and log-probabilities out. Uses `policy` and `rollout`; nobody below knows that it exists.
"""

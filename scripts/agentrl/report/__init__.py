"""What a person reads: the summary and its tables, made of recorded numbers only.

Computes nothing that judgement did not decide. Called by the command that summarises and by verify, which renders it anew.
"""

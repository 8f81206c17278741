"""Seconds of verification against the size of a study."""

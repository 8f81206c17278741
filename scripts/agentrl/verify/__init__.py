"""Verification of a results folder: no GPU, no model, no network. Start at `audit.verify`."""

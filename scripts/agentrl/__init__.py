"""Multi-turn GRPO on real tool interactions, evaluated against its start policy with evidence."""

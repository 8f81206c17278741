"""Engines: one interface (`base`), one module per implementation."""

"""A whole study's configuration: YAML read strictly, validated, composed of the wings' own settings, and cut into sections.

Only Snakemake and tests import it; a job reads its section's JSON and the settings of its own wing.
"""

"""Seconds of `snakemake -n` against the number of arms and seeds."""

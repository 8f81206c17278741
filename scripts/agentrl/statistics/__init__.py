"""Paired tests, intervals over items and training seeds, power: numbers in, numbers out.

Pure functions over pandas tables; knows neither files nor policies and never imports torch. Uses `evidence` for its errors only; called by
judgement, report and verify.
"""

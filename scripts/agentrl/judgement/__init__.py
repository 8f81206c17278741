"""From scores to statements: comparisons, the plan before training, the choice on dev, the verdict by a rule set beforehand.

Reads records and statistics, never a model. Called by report and verify.
"""

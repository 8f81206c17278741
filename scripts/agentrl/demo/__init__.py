"""A small model that learns the task on a CPU, so that the whole study runs without a GPU."""

"""Evaluation: a policy's success on the tasks of a split, with intervals and comparisons."""

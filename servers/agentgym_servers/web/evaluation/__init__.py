"""Evaluation of web tasks by WebArena's rules."""

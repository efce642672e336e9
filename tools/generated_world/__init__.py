"""Fictional worlds to search in: passages, and questions whose answers are nowhere else."""

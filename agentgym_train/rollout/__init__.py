"""Rollouts: episodes of a policy in environments, hundreds at once."""

"""Fictional worlds to search in: passages, and questions whose answers are nowhere else."""

from agentgym_servers.worlds.search.generated_world.facts import WorldSpec
from agentgym_servers.worlds.search.generated_world.generate import generate, solver
from agentgym_servers.worlds.search.generated_world.grammar import Question, World

__all__ = ["Question", "World", "WorldSpec", "generate", "solver"]

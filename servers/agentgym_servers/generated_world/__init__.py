"""Fictional worlds to search in: passages, and questions whose answers are nowhere else."""

from agentgym_servers.generated_world.generate import generate, solver
from agentgym_servers.generated_world.spec import WorldSpec
from agentgym_servers.generated_world.world import Question, World

__all__ = ["Question", "World", "WorldSpec", "generate", "solver"]

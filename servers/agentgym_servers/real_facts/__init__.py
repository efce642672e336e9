"""Real facts to search in: the world's time zones, from tables in the public domain."""

from agentgym_servers.real_facts.timezones import timezones

__all__ = ["timezones"]

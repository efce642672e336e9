"""Adapters between agentgym environments and other frameworks."""

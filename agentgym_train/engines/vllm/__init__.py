"""Engines on vLLM: in the trainer's process, or servers over HTTP."""

"""The worlds, and the host that serves them over HTTP."""

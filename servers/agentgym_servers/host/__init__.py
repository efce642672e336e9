"""The host: serves the sessions of an environment over HTTP."""

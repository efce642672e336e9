"""Protocols of other frameworks; each is imported when it is requested."""

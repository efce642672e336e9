"""SciWorld."""

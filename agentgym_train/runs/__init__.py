"""Runs: from a config to a finished run folder, in one process or several."""

"""The embedded shop and its admin, which share one database."""

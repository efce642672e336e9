"""A browser that reads pages without a browser engine."""

"""Models: finding, loading and sharing them among processes."""

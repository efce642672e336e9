"""Retrieval: passages, indexes over them, and the server that Search-R1's clients know."""

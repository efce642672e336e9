"""Bridges to other frameworks, one file each."""

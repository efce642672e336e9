"""The worlds: one file or one folder each."""

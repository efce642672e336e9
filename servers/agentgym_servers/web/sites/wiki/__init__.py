"""The encyclopedia of an invented country, and the tasks over it."""

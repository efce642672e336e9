"""The map of an invented country: places, routes between them, and the tasks over them."""

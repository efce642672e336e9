"""Web navigation: sites of our own, a browser of text, and WebArena's tasks and evaluators."""

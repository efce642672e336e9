"""MiniWoB++: its tasks, and scripts that do those which a tree of text is enough for."""

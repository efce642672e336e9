"""The HTTP front through which real browsers reach sites: a door, with a port, per session."""

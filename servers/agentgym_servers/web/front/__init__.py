"""The HTTP front through which real browsers reach sites: a listener, with a port, per session."""

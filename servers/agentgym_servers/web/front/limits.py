"""How much, and for how long, a door listens to a client."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one door's connections."""

    head_bytes: int = 32 * 1024
    """Longest head of a request or of a forwarded reply; beyond it is 431, or 502."""
    body_bytes: int = 2**20
    """Longest body of a request; beyond it is 413."""
    reply_bytes: int = 16 * 2**20
    """Longest body of a forwarded reply; beyond it is 502."""
    connections: int = 64
    """Most clients at once; a browser opens at most 32 connections to a proxy."""
    idle_s: float = 330.0
    """Wait for the next request. Longer than Chromium's own 300 s, so that it is the browser that
    gives up a connection and a form is never sent over one that closes at that moment."""
    head_s: float = 10.0
    """From a request's first byte to the end of its head."""
    body_s: float = 30.0
    """From the end of a request's head to the end of its body."""
    write_s: float = 30.0
    """For a client to take in a reply."""
    linger_s: float = 5.0
    """For a client to take in a reply that ends the connection amid its request."""
    forward_s: float = 60.0
    """For a real site to answer; beyond it is 504."""

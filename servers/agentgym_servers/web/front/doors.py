"""The doors through which this process's browsers reach sites, and nothing else."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from agentgym_servers.web.front.forward_gate import ForwardGate, ProxyGate, session_gate
from agentgym_servers.web.front.front import Door, Front
from agentgym_servers.web.front.session_site import StaticSite
from agentgym_servers.web.sites.site import HOSTS, SiteSession, host_of
from agentgym_servers.web.sites.site_map import SiteMap


def open_embedded(session: SiteSession) -> Door:
    """A door to a session's sites alone."""
    gate = session_gate(session, [host_of(site) for site in HOSTS], record=True)
    return _front(os.getpid()).open_door(gate)


def open_real(sites: SiteMap) -> Door:
    """A door to real sites alone, at their own addresses."""
    return _front(os.getpid()).open_door(ForwardGate(sites))


def open_static(host: str, folder: Path) -> Door:
    """A door to a folder of files alone, at a host."""
    return _front(os.getpid()).open_door(ProxyGate({host: _static_site(folder)}))


@cache
def _front(process: int) -> Front:
    # A fork does not take the front's thread along.
    return Front()


@cache
def _static_site(folder: Path) -> StaticSite:
    return StaticSite(folder)

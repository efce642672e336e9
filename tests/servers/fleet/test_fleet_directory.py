"""The directory of a fleet's servers, as programs follow it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from agentgym_env.client.pool import ServerPool
from agentgym_env.errors import ConfigError
from agentgym_servers.fleet import directory
from agentgym_servers.fleet.directory import FleetDirectory, _Watch
from agentgym_servers.fleet.directory_server import serve_directory
from waiting import until


@pytest.fixture(autouse=True)
def watches_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ends what follows controllers, which in a program lives as long as the process."""
    made: list[_Watch] = []

    class Watch(_Watch):
        def __init__(self, name: str) -> None:
            super().__init__(name)
            made.append(self)

    monkeypatch.setattr(directory, "_Watch", Watch)
    yield
    for watch in made:
        watch.close()


def test_a_fleet_that_was_started_anew_is_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old page rejects the new token, as the new controller's would the old one."""
    places = {
        token: serve_directory(
            lambda a=token: {"worlds": ("env", [f"http://{a}"])}, "127.0.0.1", token
        )
        for token in ("old", "new")
    }
    lookups = []

    def look_up(name: str) -> tuple[str, str]:
        token = "new" if lookups else "old"
        lookups.append(token)
        if len(lookups) == 3:
            raise ConfigError("the Ray cluster has no fleet")
        return places[token], token

    monkeypatch.setattr(directory, "_look_up", look_up)
    first = FleetDirectory("ray://anew", "env")
    assert (first.addresses(), first.token) == (["http://old"], "old")
    monkeypatch.setattr(first._watch, "_address", "http://127.0.0.1:9")
    second = FleetDirectory("ray://anew", "env")
    assert (second.addresses(), second.token) == (["http://new"], "new")
    assert first.addresses() == ["http://new"] and lookups == ["old", "new"]
    monkeypatch.setattr(first._watch, "_address", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="no fleet"):
        FleetDirectory("ray://anew", "env")


def test_a_client_gives_new_servers_the_new_token(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {"old": (["http://a"], "1"), "new": (["http://b"], "2")}
    servers = {
        name: serve_directory(lambda found=found: {"worlds": ("env", found)}, "127.0.0.1", token)
        for name, (found, token) in pages.items()
    }
    now = ["old"]
    monkeypatch.setattr(directory, "_look_up", lambda name: (servers[now[0]], pages[now[0]][1]))
    made = []

    def connect(address: str, token: str | None) -> Any:
        made.append((address, token))
        return SimpleNamespace(address=address)

    pool = ServerPool("ray://renewed", connect)
    now[0] = "new"
    pool._directory._watch._look_again()
    pool.follow()
    assert made == [("http://a", "1"), ("http://b", "2")]


def test_addresses_follow_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = ["http://a"]
    address = serve_directory(lambda: {"worlds": ("env", list(servers))}, "127.0.0.1", "t")
    monkeypatch.setattr(directory, "_look_up", lambda name: (address, "t"))
    found = FleetDirectory("ray://followed/worlds", "env")
    servers.append("http://b")
    until(lambda: found.addresses() == ["http://a", "http://b"])
    for url, says in (("ray://followed/other", "no environment servers named 'other'"),
                      ("ray://followed/worlds/x", "looks like ray://FLEET")):  # fmt: skip
        with pytest.raises(ConfigError, match=says):
            FleetDirectory(url, "env")
    with pytest.raises(ConfigError, match="0 groups of vLLM servers"):
        FleetDirectory("ray://followed", "vllm")

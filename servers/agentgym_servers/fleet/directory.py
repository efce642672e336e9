"""FleetDirectory: the current servers behind an address `ray://FLEET` or `ray://FLEET/GROUP`."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from functools import cache
from importlib.util import find_spec
from typing import Final
from urllib.parse import urlsplit

import msgspec
import requests

from agentgym_env.errors import ConfigError, MissingExtra
from agentgym_env.launch import child_environment
from agentgym_servers.fleet.directory_server import PATH, Listing

logger = logging.getLogger(__name__)

_POLL_S: Final = 1.0
_TIMEOUT_S: Final = 5.0
_LOOKUP_TIMEOUT_S: Final = 60.0
_LOOK_AGAIN_S: Final = 2.0
"""Time without an answer after which the controller is looked up again: it may have moved."""
_EMPTY_WAIT_S: Final = 60.0
_NO_ANSWER: Final = (requests.RequestException, msgspec.DecodeError)


class FleetDirectory:
    """Follows the addresses of a fleet's servers; one thread per fleet and process."""

    def __init__(self, url: str, kind: str) -> None:
        """`kind` is `env` or `vllm`. Raises `ConfigError` or `MissingExtra`."""
        name, group = _parts(url)
        self._watch = _watch(name)
        self._watch.renew()
        self._group = self._watch.group(url, group, kind)

    @property
    def token(self) -> str:
        """The token of the servers."""
        return self._watch.token

    def addresses(self) -> list[str]:
        """The servers that take new sessions or turns now; this does not wait."""
        return self._watch.listing.get(self._group, ("", []))[1]

    def await_addresses(self) -> list[str]:
        """`addresses`, or the first ones; raises `ConfigError` if there are none for a minute."""
        until = time.monotonic() + _EMPTY_WAIT_S
        while not (found := self.addresses()):
            if time.monotonic() > until:
                raise ConfigError(
                    f"no server of the fleet group {self._group!r} is ready; see `agentgym status`"
                )
            time.sleep(0.1)
        return found


class _Watch:
    """Polls the page of a fleet's controller."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._http = requests.Session()
        self._http.trust_env = False
        self._lock = threading.Lock()
        self._address, self.token = _look_up(name)
        self.listing: Listing = {}
        self.renew()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Follow it no longer."""
        self._over.set()
        self._thread.join()

    def renew(self) -> None:
        """Ask the controller now, which may be another one: the fleet may have started anew.

        Raises `ConfigError` if there is none.
        """
        try:
            self._fetch()
        except _NO_ANSWER:
            self._look_again()

    def _look_again(self) -> None:
        self._address, self.token = _look_up(self._name)
        try:
            self._fetch()
        except _NO_ANSWER as error:
            raise ConfigError(
                f"the controller of fleet {self._name} does not answer: {error}"
            ) from error

    def group(self, url: str, group: str, kind: str) -> str:
        """The group that an address names, or the only one of its kind."""
        fitting = [name for name, (k, _) in self.listing.items() if k == kind]
        what = "environment" if kind == "env" else "vLLM"
        if group:
            if group not in fitting:
                raise ConfigError(
                    f"{url}: the fleet has no {what} servers named {group!r}; choose from "
                    f"{', '.join(fitting) or 'none'}"
                )
            return group
        if len(fitting) != 1:
            raise ConfigError(
                f"{url}: the fleet has {len(fitting)} groups of {what} servers"
                + (f"; name one: ray://{self._name}/{fitting[0]}" if fitting else "")
            )
        return fitting[0]

    def _follow(self) -> None:
        heard = time.monotonic()
        while not self._over.wait(_POLL_S):
            try:
                self._fetch()
                heard = time.monotonic()
            except _NO_ANSWER as error:
                if time.monotonic() - heard < _LOOK_AGAIN_S:
                    continue
                try:
                    self._look_again()
                except ConfigError as why:
                    logger.warning(
                        "the controller of fleet %s does not answer (%s; %s); its last servers "
                        "are used",
                        self._name, error, why,
                    )  # fmt: skip
                heard = time.monotonic()

    def _fetch(self) -> None:
        headers = {"Authorization": f"Bearer {self.token}"}
        with self._lock:
            answer = self._http.get(self._address + PATH, headers=headers, timeout=_TIMEOUT_S)
        answer.raise_for_status()
        self.listing = msgspec.json.decode(answer.content, type=Listing)


@cache
def _watch(name: str) -> _Watch:
    return _Watch(name)


def _look_up(name: str) -> tuple[str, str]:
    """(address, token) of a fleet's controller; raises `ConfigError`."""
    if find_spec("ray") is None:
        raise MissingExtra(
            f"ray://{name} needs Ray: pip install 'agentgym-sdk[ray]' on this machine"
        )
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-m", "agentgym_servers.fleet.lookup", name],
            capture_output=True,
            text=True,
            timeout=_LOOKUP_TIMEOUT_S,
            env=child_environment(),
        )
        found = json.loads(ended.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"Ray has not answered for {_LOOKUP_TIMEOUT_S:g} s") from error
    except (IndexError, json.JSONDecodeError) as error:
        raise ConfigError(f"cannot look up the fleet {name}: {ended.stderr[-2000:]}") from error
    if isinstance(found, dict):
        raise ConfigError(found["error"])
    address, token = found
    return str(address), str(token)


def _parts(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    group = parts.path.strip("/")
    if parts.scheme != "ray" or not parts.netloc or "/" in group or parts.query:
        raise ConfigError(f"a fleet's address looks like ray://FLEET or ray://FLEET/GROUP: {url!r}")
    return parts.netloc, group

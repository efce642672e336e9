"""Balances conversations over vLLM servers, which may leave and return."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Hashable, Sequence

from agentgym_env.client.directory import Directory
from agentgym_env.errors import AgentGymError
from agentgym_train.engines.base import EngineLost
from agentgym_train.engines.vllm.wire import Member, Unreachable, VLLMWire

logger = logging.getLogger(__name__)

_PROBE_S = 0.5
_REMIND_S = 30.0


class VLLMPool:
    """Balances conversations over servers.

    A conversation stays on its server, which has its prefix in the cache. New conversations go to
    the server with the fewest requests.
    """

    def __init__(
        self,
        members: Sequence[Member],
        wire: VLLMWire,
        wait_s: float,
        directory: Directory | None = None,
    ) -> None:
        """`directory` lists the servers that there are now."""
        self.members = list(members)
        self._directory = directory
        self._wire = wire
        self._wait_s = wait_s
        self._homes: dict[Hashable, Member] = {}
        self._probes: set[asyncio.Task[None]] = set()

    @property
    def present(self) -> list[Member]:
        """The available servers, as far as is known."""
        self._follow()
        return [member for member in self.members if member.gone is None]

    async def choose(self, conversation: Hashable | None) -> Member:
        """The server for a turn; waits for one, and raises `EngineLost` if none returns."""
        home = self._homes.get(conversation)
        if home is not None and home.gone is None and home in self.present:
            return home
        await self.some()
        chosen = min(self.present, key=lambda m: (m.in_flight, m.conversations))
        if conversation is not None:
            self.forget(conversation)
            self._homes[conversation] = chosen
            chosen.conversations += 1
        return chosen

    async def some(self) -> None:
        """Wait until a server is available; raises `EngineLost` after `wait_s`."""
        deadline = time.monotonic() + self._wait_s
        while not self.present:
            if time.monotonic() > deadline:
                reasons = "; ".join(str(member.gone) for member in self.members)
                raise EngineLost(
                    f"no vLLM server was available for {self._wait_s:g} s ({reasons}). Restart "
                    "them at the same addresses, or set others in engine.servers"
                )
            await asyncio.sleep(_PROBE_S / 5)

    def forget(self, conversation: Hashable) -> None:
        """Remove a conversation that ended."""
        home = self._homes.pop(conversation, None)
        if home is not None:
            home.conversations -= 1

    def lose(self, member: Member, why: Unreachable) -> None:
        """Mark a server as unavailable until it responds again."""
        if member.gone is not None:
            return
        member.gone = str(why)
        member.model = ""
        left = len(self.present)
        rest = f"{left} others remain" if left else "none remains, so turns wait"
        logger.warning("a vLLM server is unavailable: %s; %s", why, rest)
        probe = asyncio.create_task(self._await_return(member))
        self._probes.add(probe)
        probe.add_done_callback(self._probes.discard)

    async def close(self) -> None:
        """Stop the probes, and close the servers that this process started."""
        for probe in self._probes:
            probe.cancel()
        for member in self.members:
            if member.local is not None:
                await asyncio.to_thread(member.local.close)

    def _follow(self) -> None:
        """Take in servers that came, and leave out those that left."""
        if self._directory is None:
            return
        listed = self._directory.addresses()
        known = {member.address for member in self.members}
        came = [Member(address) for address in listed if address not in known]
        stay = [member for member in self.members if member.address in listed]
        if came or len(stay) < len(self.members):
            # Without any listed server, the known ones are probed until others come.
            self.members = [*stay, *came] or self.members

    async def _await_return(self, member: Member) -> None:
        """Probe an unavailable server until it responds."""
        began = reminded = time.monotonic()
        while member in self.members:
            await asyncio.sleep(_PROBE_S)
            try:
                if member.local is not None and member.local.process.poll() is not None:
                    await asyncio.to_thread(member.local.restart)
                await self._wire.call(member.address, "/health")
                break
            except (Unreachable, AgentGymError) as error:
                member.gone = str(error)
            if time.monotonic() - reminded > _REMIND_S:
                reminded = time.monotonic()
                waited = reminded - began
                logger.warning("vLLM server unavailable for %.0f s: %s", waited, member.gone)
        if member in self.members:
            logger.warning("the vLLM server %s is available again", member.address)
            member.gone = None

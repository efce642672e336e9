"""The worlds that come with the package, by the name of their corpus."""

from __future__ import annotations

from functools import lru_cache

from agentgym_env.errors import BadRequest
from agentgym_servers.generated_world.generate import generate
from agentgym_servers.generated_world.spec import SCHEME, WorldSpec
from agentgym_servers.generated_world.world import World
from agentgym_servers.real_facts.timezones import NAME, timezones


@lru_cache(maxsize=4)
def open_world(corpus: str) -> World:
    """The world of a corpus such as `synthetic:0` or `timezones`; the last few are kept."""
    if corpus.partition("?")[0].partition(":")[0] == SCHEME:
        return generate(WorldSpec.parse(corpus))
    if corpus == NAME:
        return timezones()
    raise BadRequest(
        f"no corpus {corpus[:100]!r} comes with the package; there are {SCHEME}:SEED, with "
        f"parameters as in 'synthetic:7?hops=3-4', and {NAME}"
    )

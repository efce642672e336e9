"""A gateway in a process that opens files all the while, as a trainer does for its checkpoints.

It says where it serves, as a server does, and the key of an episode. SIGTERM ends it; it fails if
it could not open its files.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

from agentgym_gateway.server import Gateway
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.engines.base import ScriptedEngine
from agentgym_train.rollout.chat import Chat
from tests.train.templates import real_tokenizer

SHARDS = 64
"""Files that are open at once."""


async def serve() -> int:
    tokenizer = real_tokenizer("qwen2_5")
    ids = Chat(tokenizer).response_ids("I wait.")
    engine = ScriptedEngine(lambda prompt, turn: ids)
    config = PolicyConfig(model="m", turn_max_tokens=200, max_tokens=2000)
    gateway = Gateway(engine, tokenizer, config, model="policy")
    await gateway.start()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    key = gateway.open_episode(seed=0).key
    sys.stderr.write(f"key {key}\nserving policy on {gateway.base_url.removesuffix('/v1')}\n")
    sys.stderr.flush()
    while not ended.is_set():
        with ExitStack() as stack:
            for _ in range(SHARDS):
                stack.enter_context(Path(os.devnull).open("w"))
        await asyncio.sleep(0.05)
    await gateway.close()
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    sys.exit(asyncio.run(serve()))

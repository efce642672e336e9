"""An OpenAI-compatible endpoint whose model is the expert, for neighbours that ask a model."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from tests.adapters.native_road import Played


class ExpertEndpoint:
    """Answers a conversation by the native episode that began with its first user message."""

    def __init__(self, episodes: Sequence[Played], thought: str = "") -> None:
        self._thought = thought
        self._actions = {played.first: played.actions for played in episodes}
        assert len(self._actions) == len(episodes), "episodes are told apart by how they begin"
        self.requests: list[dict[str, Any]] = []
        """What was asked, in order."""
        self._started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        assert self._started.wait(120)
        self.url = f"http://127.0.0.1:{self._port}/v1"

    def stop(self) -> None:
        """End it and wait."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()

    def answer(self, messages: Sequence[dict[str, Any]]) -> str:
        """The expert's next action."""
        first = next(m["content"] for m in messages if m["role"] == "user")
        action = self._actions[first][sum(m["role"] == "assistant" for m in messages)]
        return self._thought + action

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        self._runner = web.AppRunner(app)
        self._loop.run_until_complete(self._runner.setup())
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        self._loop.run_until_complete(site.start())
        self._port = self._runner.addresses[0][1]
        self._started.set()
        self._loop.run_forever()

    async def _complete(self, request: web.Request) -> web.Response:
        asked = json.loads(await request.text())
        self.requests.append(asked)
        try:
            text = self.answer(asked["messages"])
        except (LookupError, StopIteration) as error:
            told = {"error": {"message": f"the expert knows no such episode: {error!r}"}}
            return web.json_response(told, status=400)
        return web.json_response(
            {
                "id": f"expert-{len(self.requests)}",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": asked["model"],
                "choices": [
                    {
                        "index": 0,
                        "finish_reason": "stop",
                        "message": {"role": "assistant", "content": text},
                    }
                ],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }
        )

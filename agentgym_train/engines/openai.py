"""ChatEndpoint: any OpenAI-compatible chat endpoint, for evaluation and demonstrations.

Its input and output are text. Without token ids it is not a `GenerationEngine`, and its responses
cannot be trained on by a policy gradient; it plays through `ChatActor`.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from agentgym_env.errors import ConfigError
from agentgym_env.spaces import clean_json, clean_text
from agentgym_train.config.engines import check_address
from agentgym_train.engines.base import EngineLost


class Pace:
    """Limits a rate per minute by even spacing (the generic cell rate algorithm of ITU-T I.371).

    A minute's amount at once would fail, because services check their limits over seconds.
    """

    def __init__(self, per_minute: float) -> None:
        """0 sets no limit."""
        self._seconds_each = 60.0 / per_minute if per_minute else 0.0
        self._free_at = 0.0

    async def take(self, amount: float) -> None:
        """Wait for the own turn, and delay later callers by the time of `amount`."""
        now = asyncio.get_running_loop().time()
        begins = max(now, self._free_at)
        self._free_at = begins + amount * self._seconds_each
        if begins > now:
            await asyncio.sleep(begins - now)

    def correct(self, more: float) -> None:
        """Correct an estimated amount, which was larger by `more`, or smaller if it is negative."""
        self._free_at += more * self._seconds_each

    def pause(self, seconds: float) -> None:
        """Let nothing pass for some time."""
        until = asyncio.get_running_loop().time() + seconds
        self._free_at = max(self._free_at, until)


_RETRIED = frozenset({408, 409, 429, 500, 502, 503, 504, 529})

_LONGEST_PAUSE_S = 60.0

_LONGEST_WAIT_S = 900.0
"""Maximum obeyed `Retry-After`; if an endpoint is unavailable for longer, the episode is lost."""

_CHARACTERS_PER_TOKEN = 4
"""An estimate for English, used until the endpoint reports its count."""

_MAX_QUOTED = 300
"""Characters of a server's response that an error quotes."""


class ContextFull(Exception):
    """The conversation is longer than the endpoint accepts."""


@dataclass(slots=True)
class Usage:
    """Usage so far, as counted by the endpoint."""

    requests: int = 0
    retried: int = 0
    """Requests that failed and were retried."""
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Completion:
    """One response."""

    text: str
    total_tokens: int
    """Of the conversation with this response; 0 if the endpoint does not report it."""
    completion_tokens: int
    tool_calls: Sequence[Mapping[str, Any]] = ()
    """As the API has them, each with `id` and `function`."""
    reached_limit: bool = False
    """Whether it ended at `max_tokens`."""


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """The address of an endpoint, and its limits."""

    model: str
    url: str
    """Without `/chat/completions`."""
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 300.0
    """Timeout of one request."""
    concurrency: int = 16
    requests_per_minute: float = 0.0
    """Evenly spaced; 0 sets no limit."""
    tokens_per_minute: float = 0.0
    """Of prompts and responses together; 0 sets no limit. A request counts with all of its
    `max_tokens` until the endpoint reports what it used."""
    retries: int = 6
    """After 429, a server error, a lost connection, or an invalid response."""
    pause_s: float = 1.0
    """Before the first retry; it doubles before each further one. `Retry-After` has priority, and
    delays all requests to the endpoint."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of a request."""

    def __post_init__(self) -> None:
        remedy = "an endpoint's URL looks like https://host/v1; the policy is openai:MODEL@URL"
        check_address(self.url, self.api_key, remedy)


class ChatEndpoint:
    """Requests responses from an endpoint, with retries, and counts its usage."""

    is_trainable = False
    """It returns no token ids."""

    def __init__(self, settings: EndpointSettings) -> None:
        self.settings = settings
        self.usage = Usage()
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._requests = Pace(settings.requests_per_minute)
        self._tokens = Pace(settings.tokens_per_minute)
        self._jitter = random.Random(0)
        self._http: aiohttp.ClientSession | None = None

    async def respond(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int,
        temperature: float,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Completion:
        """The next message; raises `EngineLost`, `ContextFull`, or `ConfigError` if rejected.

        `tools` are definitions of functions that it may call.
        """
        body = {
            "model": self.settings.model,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": temperature,
            **({"tools": list(tools)} if tools else {}),
            **self.settings.options,
        }
        failures = 0
        async with self._slots:
            while True:
                answer = await self._request_in_turn(body, max_tokens)
                if isinstance(answer, Completion):
                    return answer
                failures += 1
                if failures > self.settings.retries:
                    raise EngineLost(
                        f"{self.settings.url} failed {failures} times, the last with: {answer.why}"
                    )
                self.usage.retried += 1
                await asyncio.sleep(self._pause_s(failures, answer.wait_s))

    async def close(self) -> None:
        """Release connections."""
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def _request_in_turn(
        self, body: Mapping[str, Any], max_tokens: int
    ) -> Completion | _Failure:
        """One request, when the limits of requests and tokens allow it."""
        characters = sum(len(message.get("content") or "") for message in body["messages"])
        estimate = characters / _CHARACTERS_PER_TOKEN + max_tokens
        await self._tokens.take(estimate)
        await self._requests.take(1)
        answer = await self._request(body)
        if isinstance(answer, Completion):
            self._tokens.correct(answer.total_tokens - estimate if answer.total_tokens else 0)
        else:
            self._tokens.correct(-estimate)
            if answer.wait_s is not None:
                # It applies to all requests: the others would be rejected as well.
                self._requests.pause(min(answer.wait_s, _LONGEST_WAIT_S))
        return answer

    async def _request(self, body: Mapping[str, Any]) -> Completion | _Failure:
        """One request."""
        self._http = self._http or aiohttp.ClientSession()
        key = self.settings.api_key
        try:
            async with self._http.post(
                f"{self.settings.url.rstrip('/')}/chat/completions",
                json=body,
                headers={"Authorization": f"Bearer {key}"} if key else {},
                timeout=aiohttp.ClientTimeout(total=self.settings.timeout_s),
                allow_redirects=False,  # the key is for this host only
            ) as response:
                status, raw = response.status, await response.read()
                wait_s = _wait_s(response.headers.get("Retry-After"))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return _Failure(type(error).__name__)
        if status == 200:
            return self._reply(raw)
        if status in _RETRIED:
            return _Failure(f"status {status}", wait_s)
        message = self._without_key(raw)
        if "context_length_exceeded" in message or "maximum context length" in message:
            raise ContextFull(message)
        raise ConfigError(
            f"{self.settings.url} rejected model {self.settings.model!r} with status {status}: "
            f"{message[:_MAX_QUOTED]}. Check the model's name, the URL and the key"
        )

    def _reply(self, raw: bytes) -> Completion | _Failure:
        try:
            body = json.loads(raw)
            choice = body["choices"][0]
            message = choice["message"]
            calls = clean_json(message.get("tool_calls") or [])
            text = message.get("content") if calls else message["content"]
            usage = body.get("usage") or {}
            prompt, completion = (
                int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens")
            )
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            return _Failure(
                f"a response without choices[0].message.content ({type(error).__name__}): "
                f"{self._without_key(raw)[:_MAX_QUOTED]}"
            )
        if text is not None and not isinstance(text, str):
            return _Failure(f"content of the type {type(text).__name__}")
        if not all(isinstance(c, dict) and isinstance(c.get("function"), dict) for c in calls):
            return _Failure("tool_calls that are not a list of function calls")
        self.usage.requests += 1
        self.usage.prompt_tokens += prompt
        self.usage.completion_tokens += completion
        return Completion(
            clean_text(text or ""),
            prompt + completion,
            completion,
            calls,
            choice.get("finish_reason") == "length",
        )

    def _without_key(self, raw: bytes) -> str:
        text = raw.decode("utf-8", "replace")
        return text.replace(self.settings.api_key, "***") if self.settings.api_key else text

    def _pause_s(self, failures: int, requested_s: float | None) -> float:
        if requested_s is not None:
            return min(requested_s, _LONGEST_WAIT_S)
        # Many episodes fail at once; they must not all retry at once.
        return min(
            self.settings.pause_s * 2 ** (failures - 1), _LONGEST_PAUSE_S
        ) * self._jitter.uniform(0.5, 1.0)


@dataclass(frozen=True, slots=True)
class _Failure:
    why: str
    wait_s: float | None = None


def _wait_s(retry_after: str | None) -> float | None:
    """The seconds of a Retry-After header, which is a number or a date."""
    if retry_after is None:
        return None
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (ValueError, TypeError):
        return None

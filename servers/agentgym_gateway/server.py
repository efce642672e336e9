"""Gateway: an OpenAI-compatible endpoint through which black-box agents play episodes.

Each episode has its own API key. Model calls are sampled by an engine and recorded with their ids;
the environment is stepped at the same address. It runs in the event loop of the rollouts.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import secrets
import string
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from agentgym_env.errors import AgentGymError, BadRequest, ConfigError
from agentgym_env.reasoning import reply_of
from agentgym_env.request_bodies import BodyReader
from agentgym_env.tools import ToolSpec
from agentgym_gateway.environment import Rejected, describe, reward, take_turn
from agentgym_gateway.episode import (
    FinishedEpisode,
    GatewayEpisode,
    Pending,
    Sampled,
    SampledReply,
    recorded_turns,
)
from agentgym_gateway.fields import IgnoredFields, read_json
from agentgym_gateway.listener import Listener, admit, read_body
from agentgym_gateway.messages import Reply, Request, parts_of, read_chat, read_response
from agentgym_gateway.recorder import Chats, EpisodeRecorder, Prepared, token_logprobs
from agentgym_gateway.settings import GatewaySettings
from agentgym_train.config.files import user_path
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.engines.base import EngineLost, Generation, GenerationEngine, Sampling
from agentgym_train.rollout.chat import Chat
from agentgym_train.rollout.tool_syntaxes import BadCall, WrittenCall, typed_arguments

_LETTERS: Final = string.ascii_letters + string.digits
_CLAIM_S: Final = 30.0
_TOKEN_CHARACTERS: Final = 32
"""Characters that a token of a long text has at most, on average; English has about four."""
_MARKS: Final = ("<tool_call>", "[TOOL_CALLS]")
"""Where a text ends and its tool calls begin; other syntaxes have no text beside them."""


class Gateway:
    """The endpoint; `start` is called on the loop of the rollouts."""

    def __init__(
        self,
        engine: GenerationEngine,
        tokenizer: Any,
        config: PolicyConfig,
        *,
        model: str,
        settings: GatewaySettings | None = None,
        end_ids: Collection[int] = (),
    ) -> None:
        """`config` has the limits of tokens, the temperature and the chat template's arguments.

        `model` is the name that the endpoint reports.
        `end_ids` are the model's own end tokens.
        """
        self._engine = engine
        self._tokenizer = tokenizer
        self._config = config
        self._model = model
        self.temperature = config.temperature
        """That of all calls, whatever they ask for."""
        self._settings = settings or GatewaySettings()
        named = self._settings.address_file
        self._address_file = None if named is None else user_path(named)
        self._chats = Chats(tokenizer, config, end_ids)
        self._episodes: dict[str, GatewayEpisode] = {}
        self._offers: list[tuple[GatewayEpisode, Mapping[str, str]]] = []
        self._offered = asyncio.Event()
        self.crashes = self._settings.crashes
        self.claim_key = secrets.token_urlsafe(32)
        """The key with which a program takes an episode that is offered."""
        self._bodies = BodyReader(self._settings.body_bytes)
        self._listener: Listener | None = None
        self._port = 0
        self._starting: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def base_url(self) -> str:
        """The base URL for OpenAI clients; raises `ConfigError` before `start`."""
        if self._listener is None:
            raise ConfigError("the gateway has no address yet; start it first")
        host, port = self._settings.host, self._port
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"

    async def start(self) -> None:
        """Listen; a gateway that listens already goes on, and a closed one raises `EngineLost`."""
        if self._closed:
            raise EngineLost("the gateway is closed")
        if self._starting is None or (self._starting.done() and self._listener is None):
            self._starting = asyncio.create_task(self._listen())
        # Not cancelled with the episode that came first: a socket would be left open.
        await asyncio.shield(self._starting)

    async def _listen(self) -> None:
        app = web.Application()
        post, get = app.router.add_post, app.router.add_get
        post("/v1/chat/completions", self._answering(self._chat))
        post("/v1/responses", self._answering(self._responses))
        get("/v1/models", self._answering(self._models))
        get("/v1/episode", self._answering(self._describe))
        get("/v1/episode/tools", self._answering(self._tools))
        post("/v1/episode/step", self._answering(self._step))
        post("/v1/episode/reward", self._answering(self._reward))
        post("/v1/episodes/claim", self._answering(self._claim))
        app.router.add_route("*", "/{path:.*}", self._answering(self._unknown))
        listener = Listener(app)
        try:
            self._port = await listener.start(self._settings.host, self._settings.port)
        except OSError as error:
            raise ConfigError(
                f"the gateway cannot listen on {self._settings.host}:{self._settings.port}: "
                f"{error.strerror}; choose another gateway.port"
            ) from error
        self._listener = listener
        if self._address_file is not None:
            access = {"base_url": self.base_url, "key": self.claim_key}
            try:
                _write_private(self._address_file, json.dumps(access))
            except OSError as error:
                await self._stop()
                raise ConfigError(
                    f"gateway.address_file {self._settings.address_file} cannot be written: "
                    f"{error.strerror}; name another file"
                ) from error

    async def close(self) -> None:
        """End all episodes and stop listening for good."""
        self._closed = True
        for episode in list(self._episodes.values()):
            await self.close_episode(episode)
        if self._starting is not None:
            await asyncio.gather(self._starting, return_exceptions=True)
        await self._stop()

    async def _stop(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            if self._address_file is not None:
                with suppress(OSError):  # it may be a folder, or gone
                    self._address_file.unlink()
            await listener.stop()

    def open_episode(
        self,
        session: Any = None,
        *,
        observation: str = "",
        instruction: str = "",
        info: Mapping[str, Any] | None = None,
        seed: int = 0,
        horizon: int = 0,
        tools: Sequence[ToolSpec] = (),
        policy: Callable[[], AbstractAsyncContextManager[Any]] = nullcontext,
        environment: Callable[[], AbstractAsyncContextManager[Any]] = nullcontext,
    ) -> GatewayEpisode:
        """An episode with a key of its own; `session` was reset already.

        `seed` is for the sampling of its calls. `tools` are those of the environment. `policy` and
        `environment` are entered for each sampled call and each step.
        """
        limit = self._settings.concurrent_calls
        episode = GatewayEpisode(
            key=secrets.token_urlsafe(32),
            session=session,
            observation=observation,
            instruction=instruction,
            info=info or {},
            horizon=horizon,
            tools={tool.name: tool for tool in tools},
            recorder=EpisodeRecorder(
                self._chats, self._tokenizer, keep_reasoning=self._config.keep_reasoning
            ),
            draws=random.Random(seed),
            slots=asyncio.Semaphore(limit) if limit else None,
            policy=policy,
            environment=environment,
        )
        self._episodes[episode.key] = episode
        return episode

    async def close_episode(
        self, episode: GatewayEpisode, *, keep_unheard: bool = False
    ) -> FinishedEpisode:
        """End an episode: its key is no longer valid, and running calls are cancelled.

        With `keep_unheard` replies that did not arrive are in the record if they may be why it
        ended: those that the agent got in part, and all if nothing but the agent ended it.
        """
        self._episodes.pop(episode.key, None)
        self._offers = [offer for offer in self._offers if offer[0] is not episode]
        running = [task for task in episode.running if not task.done()]
        episode.asked = episode.asked or bool(running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for answer in episode.unheard if keep_unheard else ():
            if answer.was_sent or episode.outcome is None:
                self._record(episode, answer)
        for conversation in dict.fromkeys(episode.recorder.conversations):
            await self._engine.forget(conversation)
        rows, calls = episode.recorder.finish()
        info = episode.info
        succeeded = bool(info.get("success")) if episode.success is None else episode.success
        posted = episode.reward or 0.0
        return FinishedEpisode(
            rows=rows,
            turns=recorded_turns(calls, episode),
            outcome=episode.outcome,
            success=succeeded,
            score=float(info.get("score", 0.0) or 0.0) + posted,
            calls=episode.calls,
            tokens=sum(sum(row.loss_mask) for row in rows),
            lost=episode.lost,
            engine_lost=episode.engine_lost,
            asked=episode.asked,
        )

    def offer(self, episode: GatewayEpisode, environ: Mapping[str, str]) -> None:
        """Let a program elsewhere take the episode, by `POST /v1/episodes/claim`."""
        self._offers.append((episode, environ))
        self._offered.set()

    def _answering(
        self, handle: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """A handler whose errors are OpenAI's."""

        async def answer(request: web.Request) -> web.StreamResponse:
            try:
                return await handle(request)
            except ConnectionResetError:
                return web.Response(status=499)  # nobody is there to read it
            except Rejected as rejected:
                return _error(rejected.status, rejected.code, str(rejected))
            except EngineLost as error:
                return _error(503, "engine_lost", str(error))
            except web.HTTPRequestEntityTooLarge:
                most = self._settings.body_bytes
                return _error(413, "too_large", f"a request has at most {most:,} bytes")
            except IgnoredFields as error:
                return _error(400, "invalid_request", str(error), error.param)
            except AgentGymError as error:
                return _error(400, "invalid_request", str(error))

        return answer

    def _episode(self, request: web.Request) -> GatewayEpisode:
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        episode = self._episodes.get(key.strip()) if scheme.lower() == "bearer" else None
        if episode is None:
            raise Rejected(
                401, "invalid_api_key", "the API key is not that of an episode that is being played"
            )
        admit(request)
        return episode

    async def _unknown(self, request: web.Request) -> web.StreamResponse:
        asked = f"{request.method} {request.path[:200]}"
        raise Rejected(
            404, "not_found", f"the gateway has no {asked}; its base URL is {self.base_url}"
        )

    async def _models(self, request: web.Request) -> web.StreamResponse:
        self._episode(request)
        model = {"id": self._model, "object": "model", "created": 0, "owned_by": "agentgym"}
        return web.json_response({"object": "list", "data": [model]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        episode = self._episode(request)
        raw = await read_body(request, self._bodies)
        asked = _read(read_chat, read_json(raw), self._config.chat_template_kwargs)
        answer, pending = await self._answer(episode, request, raw, asked)
        return await self._deliver(episode, request, asked, answer, pending)

    async def _responses(self, request: web.Request) -> web.StreamResponse:
        episode = self._episode(request)
        raw = await read_body(request, self._bodies)
        kwargs = self._config.chat_template_kwargs
        asked = _read(read_response, read_json(raw), kwargs, episode.responses)
        answer, pending = await self._answer(episode, request, raw, asked)
        episode.responses[answer.reply.id] = [*asked.messages, answer.reply.message]
        return await self._deliver(episode, request, asked, answer, pending)

    async def _answer(
        self, episode: GatewayEpisode, request: web.Request, raw: bytes, asked: Request
    ) -> tuple[SampledReply, Pending]:
        """Sample a reply; a retry gets the one that was sampled, or waits for it."""
        named = request.headers.get("Idempotency-Key", "")
        repeats = bool(named) or request.headers.get("x-stainless-retry-count", "0") not in (
            "",
            "0",
        )
        key = named.encode("utf-8", "surrogateescape")  # a header may have any bytes
        digest = hashlib.blake2b(key + raw, digest_size=16).digest()
        pending = episode.pending.get(digest) if repeats else None
        if pending is None:
            # What the agent asks anew is not what it asked before, even if it looks the same.
            task = asyncio.create_task(self._sampled(episode, asked))
            pending = episode.pending[digest] = Pending(task)
            episode.running.add(task)
            task.add_done_callback(lambda done: _ended(episode, digest, done))
        pending.waiting += 1
        try:
            # Sampling goes on if the connection is lost: a retry gets its result.
            answer = await asyncio.shield(pending.task)
        except BaseException:
            pending.waiting -= 1
            raise
        self._record(episode, answer)
        return answer, pending

    async def _sampled(self, episode: GatewayEpisode, asked: Request) -> SampledReply:
        """Sample a reply and record it."""
        async with episode.slots or nullcontext():
            prepared, generation = await self._sample(episode, asked)
        tools = {tool.name: tool for tool in asked.tools}
        reply, text = self._reply(episode, prepared, generation, tools)
        if not asked.parallel_tool_calls:
            reply = replace(reply, tool_calls=reply.tool_calls[:1])
        if asked.logprobs:
            reply = replace(reply, logprobs=token_logprobs(self._tokenizer, generation))
        answer = SampledReply(reply, Sampled(prepared, generation, text))
        episode.asked = True
        self._record(episode, answer)
        return answer

    async def _sample(self, episode: GatewayEpisode, asked: Request) -> tuple[Prepared, Generation]:
        limits, config = self._settings, self._config
        if episode.over.is_set():
            raise Rejected(400, "episode_over", "the episode is over")
        left = limits.sampled_tokens - episode.spent_tokens if limits.sampled_tokens else None
        no_tokens = left is not None and left < 1
        if no_tokens and episode.reserved and episode.tokens < limits.sampled_tokens:
            raise Rejected(429, "budget_reserved", "running calls may use up the budget")
        if no_tokens or (limits.calls and episode.spent_calls >= limits.calls):
            episode.end("token_budget")
            raise Rejected(400, "budget_exhausted", "the episode's budget of calls is used up")
        # Tokenizing holds up all episodes, so what cannot fit is not tokenized.
        characters = len(json.dumps(asked.messages, ensure_ascii=False))
        if characters > _TOKEN_CHARACTERS * config.max_tokens:
            raise self._too_long(episode, f"{characters:,} characters")
        prepared = episode.recorder.prepare(asked.messages, asked.tools)
        try:
            room = min(
                asked.max_tokens or config.turn_max_tokens,
                config.turn_max_tokens,
                config.max_tokens - len(prepared.prompt_ids),
                config.max_tokens if left is None else left,
            )
            if room < 1:
                raise self._too_long(episode, f"{len(prepared.prompt_ids)} tokens")
            episode.reserve(room)
            sampling = Sampling(
                max_tokens=room,
                temperature=self.temperature,
                stop_ids=prepared.chat.stop_ids,
                seed=episode.draws.getrandbits(63),
            )
            try:
                async with episode.policy():
                    generation = await self._engine.generate(
                        prepared.prompt_ids, sampling, prepared.conversation
                    )
            except BaseException as error:
                episode.release(room, None)
                if isinstance(error, EngineLost):
                    episode.engine_lost = str(error) or "the engine is not available"
                raise
            episode.release(room, len(generation.token_ids))
            episode.engine_lost = ""
        finally:
            episode.recorder.sampled(prepared)
        return prepared, generation

    def _too_long(self, episode: GatewayEpisode, size: str) -> Rejected:
        """End the episode, whose messages have that size."""
        episode.end("token_budget")
        most = self._config.max_tokens
        said = f"the messages have {size}; the maximum context length is {most} tokens"
        return Rejected(400, "context_length_exceeded", said)

    def _record(self, episode: GatewayEpisode, answer: SampledReply) -> None:
        """Record a reply that is not in the record."""
        sampled = answer.sampled
        if sampled is None or answer.call is not None:
            return
        answer.call = episode.recorder.add(
            sampled.prepared, sampled.generation, sampled.text, answer.reply.message
        )
        answer.call.cut = sampled.generation.is_cut_at(self._config.turn_max_tokens)
        episode.sampled.append(answer.call)
        episode.calls += 1
        episode.tokens += len(sampled.generation.token_ids)

    def _reply(
        self,
        episode: GatewayEpisode,
        prepared: Prepared,
        generation: Generation,
        tools: Mapping[str, ToolSpec],
    ) -> tuple[Reply, str]:
        """(the reply without reasoning, the sampled text).

        Calls that cannot be carried out stay text.
        """
        chat: Chat = prepared.chat
        text = chat.text_of(generation.token_ids)
        said, found = reply_of(text) or "", chat.calls_in(text)
        shown = text if said == text else said.strip()
        good = [call for call in found if isinstance(call, WrittenCall)]
        calls: list[dict[str, Any]] = []
        bad = any(isinstance(call, BadCall) or call.name not in tools for call in found)
        if good and not bad:
            shown = _text_before_calls(shown)
            calls = [_api_call(call, tools[call.name], episode.draws) for call in good]
        stopped = generation.finish_reason == "stop"
        reply = Reply(
            id=f"chatcmpl-{episode.draws.getrandbits(96):024x}",
            text=shown,
            tool_calls=calls,
            finish_reason="tool_calls" if calls else "stop" if stopped else "length",
            prompt_tokens=len(prepared.prompt_ids),
            completion_tokens=len(generation.token_ids),
        )
        return reply, text

    async def _deliver(
        self,
        episode: GatewayEpisode,
        request: web.Request,
        asked: Request,
        answer: SampledReply,
        pending: Pending,
    ) -> web.StreamResponse:
        """Send a reply; if no request for it is left, its call leaves the record."""
        headers = {"Content-Type": "text/event-stream" if asked.stream else "application/json"}
        if asked.temperature not in (None, self.temperature):
            headers["x-agentgym-temperature"] = f"{self.temperature:g}"
        if asked.strict_tools:
            headers["x-agentgym-strict"] = "false"
        response = web.StreamResponse(headers=headers)
        try:
            if not _is_there(request):
                raise ConnectionResetError("the agent is gone")
            answer.was_sent = True
            parts = parts_of(asked, answer.reply)
            if not asked.stream:
                response.content_length = len(parts[0])
            await response.prepare(request)
            for part in parts:
                await response.write(part)
            await response.write_eof()
            answer.sampled = None  # the record has it
            episode.unheard.clear()
        finally:
            pending.waiting -= 1
            if not pending.waiting:
                self._take_back(episode, answer)
        return response

    def _take_back(self, episode: GatewayEpisode, answer: SampledReply) -> None:
        """Remove a call whose reply nobody received; a retry records it again."""
        if answer.sampled is None or answer.call is None:
            return
        if not episode.recorder.drop(answer.call):
            return
        episode.sampled.remove(answer.call)
        answer.call = None
        episode.unheard.append(answer)
        episode.undelivered += 1
        episode.calls -= 1
        episode.tokens -= len(answer.sampled.generation.token_ids)

    async def _describe(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(describe(self._episode(request)))

    async def _tools(self, request: web.Request) -> web.StreamResponse:
        episode = self._episode(request)
        return web.json_response([tool.as_function() for tool in episode.tools.values()])

    async def _step(self, request: web.Request) -> web.StreamResponse:
        episode = self._episode(request)
        body = read_json(await read_body(request, self._bodies))
        return web.json_response(await take_turn(episode, body if isinstance(body, dict) else {}))

    async def _reward(self, request: web.Request) -> web.StreamResponse:
        episode = self._episode(request)
        body = read_json(await read_body(request, self._bodies))
        return web.json_response(reward(episode, body if isinstance(body, dict) else {}))

    async def _claim(self, request: web.Request) -> web.StreamResponse:
        """Give an offered episode to a program; waits for one for at most 30 s."""
        _, _, key = request.headers.get("Authorization", "").partition(" ")
        given = key.strip().encode("utf-8", "surrogateescape")
        if not secrets.compare_digest(given, self.claim_key.encode()):
            raise Rejected(401, "invalid_api_key", "the API key does not take episodes")
        admit(request)
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLAIM_S):
                while not self._offers and _is_there(request):
                    self._offered.clear()
                    # A program that gave up is not told to us; another may ask meanwhile.
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._offered.wait(), 1.0)
        if not _is_there(request):
            raise ConnectionResetError("the program is gone")
        if not self._offers:
            raise Rejected(404, "no_episode", "no episode is offered now; ask again")
        offer = self._offers.pop(0)
        response = web.json_response(dict(offer[1]))
        try:
            await response.prepare(request)
            await response.write_eof()
        except BaseException:
            self._offers.insert(0, offer)
            self._offered.set()
            raise
        return response


def _is_there(request: web.Request) -> bool:
    """Whether the connection of a request is still open."""
    return request.transport is not None and not request.transport.is_closing()


def _api_call(call: WrittenCall, tool: ToolSpec, draws: random.Random) -> dict[str, Any]:
    identity = "".join(draws.choice(_LETTERS) for _ in range(9))
    arguments = json.dumps(typed_arguments(call.arguments, tool), ensure_ascii=False)
    function = {"name": call.name, "arguments": arguments}
    return {"id": identity, "type": "function", "function": function}


def _text_before_calls(text: str) -> str:
    places = [place for mark in _MARKS if (place := text.find(mark)) >= 0]
    return text[: min(places)].strip() if places else ""


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def _read(parse: Callable[..., Request], *arguments: Any) -> Request:
    """Read a request; whatever its fields are, an error is the client's."""
    try:
        return parse(*arguments)
    except BadRequest:
        raise
    except (TypeError, ValueError, AttributeError, LookupError, OverflowError) as error:
        raise BadRequest(f"the body is not a request of this API: {error}") from error


def _error(status: int, code: str, message: str, param: str | None = None) -> web.Response:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    headers = {"Retry-After": "1"} if status == 503 else None
    return web.json_response(body, status=status, headers=headers)


def _ended(episode: GatewayEpisode, digest: bytes, task: asyncio.Task[SampledReply]) -> None:
    """A call has ended; of a failed one nothing stays, so that a retry samples anew."""
    episode.running.discard(task)
    if not task.cancelled() and task.exception() is None:
        return
    pending = episode.pending.get(digest)
    if pending is not None and pending.task is task:
        del episode.pending[digest]

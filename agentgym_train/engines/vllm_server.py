"""VLLMServerEngine: one or several vLLM servers behind HTTP, token ids both ways.

Knows nothing about chat or environments, and needs no vLLM where it runs.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import aiohttp
import msgspec
from safetensors.torch import save_file
from torch import distributed

from agentgym_env.errors import AgentGymError, BadRequest, ConfigError
from agentgym_train.config.engines import ServerSettings, check_address
from agentgym_train.engines.base import EngineLost, Generation, Sampling
from agentgym_train.engines.hf import UpdateGate
from agentgym_train.engines.vllm_process import READER
from agentgym_train.models.distributed import gathered
from agentgym_train.models.loading import checkpoint_weights

_CONNECT_S = 10.0

_KEPT_S = 2.0

"""How long an idle connection is kept; vLLM's server closes its own after 5 seconds."""


class Unreachable(Exception):
    """A server did not answer, or says that it is broken; another may do what was asked."""


class Broken(Unreachable):
    """A server answered that it failed."""


class VLLMWire:
    """One pool of connections to all servers of an engine."""

    def __init__(self, timeout_s: float, api_key: str | None = None) -> None:
        self._timeout_s = timeout_s
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._session: aiohttp.ClientSession | None = None

    async def call(self, address: str, path: str, body: Any = None) -> Any:
        """The JSON that a server answers: to a GET without a body, to a POST with one.

        Raises `Unreachable` or `Broken`, and `ConfigError` for what a healthy server refuses.
        """
        try:
            async with self._open().request(
                "GET" if body is None else "POST", address + path, json=body
            ) as response:
                status, text = response.status, await response.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"{address}: {type(error).__name__}: {error}") from error
        if status >= 500:
            raise Broken(f"{address}{path} failed with status {status}: {text[:300]}")
        if status >= 400:
            raise ConfigError(f"{address}{path} was refused with status {status}: {text[:300]}")
        return msgspec.json.decode(text) if text else None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        """The session, which belongs to the loop that first calls."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEPT_S),
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=_CONNECT_S),
            )
        return self._session


logger = logging.getLogger(__name__)

_PROBE_S = 0.5

_REMIND_S = 30.0


@dataclass(slots=True, eq=False)
class Member:
    """One server."""

    address: str
    local: Any = None
    """Our own hold on it (`LocalVLLM`), where this process started it: it is started again."""
    model: str = ""
    """The name of the model it serves; empty until it was asked."""
    in_flight: int = 0
    conversations: int = 0
    gone: str | None = None
    """Why it is not asked at present."""
    updating: asyncio.Lock = field(default_factory=asyncio.Lock)


class Fleet:
    """Conversations stay with their server, whose cache holds them; new ones go to the idlest."""

    def __init__(self, members: Sequence[Member], wire: VLLMWire, wait_s: float) -> None:
        self.members = list(members)
        self._wire = wire
        self._wait_s = wait_s
        self._homes: dict[Hashable, Member] = {}
        self._probes: set[asyncio.Task[None]] = set()

    @property
    def present(self) -> list[Member]:
        """The servers that answer, as far as is known."""
        return [member for member in self.members if member.gone is None]

    async def choose(self, conversation: Hashable | None) -> Member:
        """The server for a turn; waits for one, and raises `EngineLost` when none comes back."""
        home = self._homes.get(conversation)
        if home is not None and home.gone is None:
            return home
        await self.some()
        chosen = min(self.present, key=lambda m: (m.in_flight, m.conversations))
        if conversation is not None:
            self.forget(conversation)
            self._homes[conversation] = chosen
            chosen.conversations += 1
        return chosen

    async def some(self) -> None:
        """Wait until a server answers; raises `EngineLost` after `wait_s`."""
        deadline = time.monotonic() + self._wait_s
        while not self.present:
            if time.monotonic() > deadline:
                reasons = "; ".join(str(member.gone) for member in self.members)
                raise EngineLost(
                    f"no vLLM server answered for {self._wait_s:g} s ({reasons}). Start them again "
                    "at the same addresses, or name others under engine_args.servers"
                )
            await asyncio.sleep(_PROBE_S / 5)

    def forget(self, conversation: Hashable) -> None:
        """The conversation ended."""
        home = self._homes.pop(conversation, None)
        if home is not None:
            home.conversations -= 1

    def lose(self, member: Member, why: Unreachable) -> None:
        """A server did not answer: ask it nothing until it does again."""
        if member.gone is not None:
            return
        member.gone = str(why)
        member.model = ""
        left = len(self.present)
        rest = f"{left} others go on" if left else "none is left, and turns wait for one"
        logger.warning("lost a vLLM server: %s; %s", why, rest)
        probe = asyncio.create_task(self._await_return(member))
        self._probes.add(probe)
        probe.add_done_callback(self._probes.discard)

    async def close(self) -> None:
        """Look for the lost no more, and end the servers of our own."""
        for probe in self._probes:
            probe.cancel()
        for member in self.members:
            if member.local is not None:
                await asyncio.to_thread(member.local.close)

    async def _await_return(self, member: Member) -> None:
        """Probe a lost server until it answers."""
        began = reminded = time.monotonic()
        while True:
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
                logger.warning("still without a vLLM server after %.0f s: %s", waited, member.gone)
        logger.warning("the vLLM server %s answers again", member.address)
        member.gone = None


class Transport(Protocol):
    """Publishes a version of the weights once, and gives it to servers that are paused."""

    def publish(self, model: Any, label: str) -> None:
        """Keep `model`'s present weights to be given out; on the run's first process only."""
        ...

    async def give(self, member: Member, label: str, *, is_new: bool) -> None:
        """Let a server load what was published under `label`; a new one never had any of ours."""
        ...

    def close(self) -> None:
        """Let go of what is kept."""
        ...


class FileTransport:
    """A safetensors file in a folder that the trainer and the servers see under one path.

    The file stays until the next version is published, so that a server that was started again can
    be given the present weights by any process of the run.
    """

    def __init__(self, wire: VLLMWire, run: str, folder: str | None) -> None:
        self._wire = wire
        self._folder = Path(folder or tempfile.gettempdir()).absolute() / f"agentgym-weights-{run}"

    def publish(self, model: Any, label: str) -> None:
        """Write the file, then remove the former one."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(label)
        weights = checkpoint_weights(model)
        save_file({n: w.cpu().contiguous() for n, w in weights.items()}, path)
        for other in self._folder.glob("*.safetensors"):
            if other != path:
                other.unlink()

    async def give(self, member: Member, label: str, *, is_new: bool) -> None:
        """Let a server's workers read the file."""
        body = {"method": "read_weights", "args": [str(self._path(label))]}
        try:
            await self._wire.call(member.address, "/collective_rpc", body)
        except Broken as error:
            raise EngineLost(
                f"{member.address} could not read the weights {self._path(label)}: {error}. It has "
                "to see that folder under the same path: name a shared one with weights_dir under "
                "engine_args"
            ) from error

    def _path(self, label: str) -> Path:
        return self._folder / f"{label}.safetensors"

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)


_T = TypeVar("_T")

_HOW = (
    f"start it with VLLM_SERVER_DEV_MODE=1, --worker-extension-cls {READER} and --logprobs-mode "
    "processed_logprobs (docs/engines.md)"
)


class VLLMServerEngine:
    """Spreads turns over servers, and sees to it that each of them has the present weights.

    Before a turn its server is asked which weights it has: one that was started again, or was given
    others, is updated first. A turn whose server goes away is sampled on another, from the same
    seed. Of several processes (`gathered`, `is_first`) the first gives out the weights, and all
    call `update_weights` at the same step.
    """

    is_exact = False
    """Other kernels, and on a GPU another precision, than the trainer's."""

    def __init__(
        self,
        members: Sequence[Member],
        settings: ServerSettings,
        *,
        max_tokens: int,
        gathered: Callable[[Any], list[Any]] = lambda own: [own],
        is_first: bool = True,
        api_key: str | None = None,
    ) -> None:
        """`max_tokens`: most of a conversation; a server that holds fewer is refused."""
        self.version = 0
        self._max_tokens = max_tokens
        self._gathered = gathered
        self._is_first = is_first
        self._run: str = gathered(uuid.uuid4().hex[:12])[0]
        self._updates = 0
        self._patience_s = settings.request_timeout_s + settings.wait_s
        self._label: str | None = None
        """Name of the present weights, as servers are asked for it; None before the first."""
        self._wire = VLLMWire(settings.request_timeout_s, api_key)
        self._fleet = Fleet(members, self._wire, settings.wait_s)
        self._transport = self._make_transport(settings)
        self._gate = UpdateGate()

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        conversation: Hashable | None = None,
    ) -> Generation:
        """Sample one turn; raises `EngineLost` when no server answers for long."""
        if not prompt_ids:
            raise ConfigError("a prompt has at least one token")
        began = time.monotonic()
        async with self._gate.turn():
            while True:
                member = await self._fleet.choose(conversation)
                member.in_flight += 1
                try:
                    await self._bring_up_to_date(member)
                    return await self._ask(member, prompt_ids, sampling)
                except Unreachable as why:
                    self._fleet.lose(member, why)
                    if time.monotonic() - began > self._patience_s:
                        raise EngineLost(f"no vLLM server samples this turn: {why}") from why
                finally:
                    member.in_flight -= 1

    async def forget(self, conversation: Hashable) -> None:
        """The conversation needs its server no more."""
        self._fleet.forget(conversation)

    async def update_weights(self, model: Any, version: int) -> None:
        """Give `model`'s weights to every server when the turns under way are done. A collective.

        A server that is gone gets them before its next turn.
        """
        async with self._gate.update():
            self._updates += 1
            self._label = f"{self._run}-{self._updates}"
            self.version = version
            error = await self._publish(model, self._label) if self._is_first else None
            failed = next((why for why in self._gathered(error) if why), None)
        if failed is not None:
            raise EngineLost(failed)

    async def sleep(self) -> None:
        """The servers have memory of their own."""

    async def close(self) -> None:
        """End connections, and the servers that this process started."""
        await self._fleet.close()
        await self._wire.close()
        if self._is_first:
            self._transport.close()

    def _make_transport(self, settings: ServerSettings) -> Transport:
        if settings.transport == "nccl":
            from agentgym_train.engines.vllm_nccl import NCCLTransport

            return NCCLTransport(self._wire, settings.nccl_address, settings.nccl_port)
        return FileTransport(self._wire, self._run, settings.weights_dir)

    async def _publish(self, model: Any, label: str) -> str | None:
        """Give out the weights; what went wrong is told to every process."""
        try:
            self._transport.publish(model, label)
            await self._fleet.some()
            await asyncio.gather(*(self._update_or_lose(member) for member in self._fleet.present))
            await self._fleet.some()
        except Exception as error:
            # The process boundary: the others would wait for this one for ever.
            return f"the weights did not reach the servers: {type(error).__name__}: {error}"
        return None

    async def _update_or_lose(self, member: Member) -> None:
        try:
            await self._bring_up_to_date(member)
        except Unreachable as why:
            self._fleet.lose(member, why)

    async def _bring_up_to_date(self, member: Member) -> None:
        """Ask a server for its weights' name; if it is not ours, give it the present weights."""
        if member.model and await self._weights_of(member) == self._label:
            return
        async with member.updating:
            if not member.model:
                await self._get_to_know(member)
            found, label = await self._weights_of(member), self._label
            if label is None or found == label:
                return
            is_new = not str(found).startswith(self._run)
            await self._call(member, "/pause?mode=wait", {})
            # Should this break off, no process takes the mixture for a version.
            await self._call(member, "/update_weight_version", {"new_version": "incomplete"})
            await self._transport.give(member, label, is_new=is_new)
            await self._call(member, "/reset_prefix_cache", {})
            await self._call(member, "/update_weight_version", {"new_version": label})
            await self._call(member, "/resume", {})

    async def _weights_of(self, member: Member) -> str | None:
        """The name of a server's weights; before the first update it does not matter."""
        if self._label is None:
            return None
        known = await self._call(member, "/weight_info")
        return str(known["weight_version"])

    async def _get_to_know(self, member: Member) -> None:
        """Which model a server serves; raises `ConfigError` for one that can not serve this run."""
        (card, *_) = (await self._call(member, "/v1/models"))["data"]
        info = await self._call(member, "/server_info?config_format=json")
        mode = info["vllm_config"]["model_config"]["logprobs_mode"]
        if mode != "processed_logprobs":
            raise ConfigError(
                f"{member.address} gives {mode}, which leave the temperature out; {_HOW}"
            )
        if card["max_model_len"] < self._max_tokens:
            raise ConfigError(
                f"{member.address} holds conversations of {card['max_model_len']} tokens, and "
                f"max_tokens is {self._max_tokens}; start it with --max-model-len "
                f"{self._max_tokens}, or lower max_tokens"
            )
        member.model = card["id"]

    async def _ask(
        self, member: Member, prompt_ids: Sequence[int], sampling: Sampling
    ) -> Generation:
        body = {
            "model": member.model,
            "prompt": list(prompt_ids),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "seed": sampling.seed,
            "stop_token_ids": list(sampling.stop_ids),
            # Only the ids above end a turn, whatever the model's own configuration says.
            "ignore_eos": True,
            "logprobs": 0,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        answer = await self._wire.call(member.address, "/v1/completions", body)
        (choice,) = answer["choices"]
        ids, reason = choice["token_ids"], choice["finish_reason"]
        if reason not in ("stop", "length"):
            raise Unreachable(f"{member.address} broke a turn off: {reason}")
        return Generation(ids, choice["logprobs"]["token_logprobs"], reason, self.version)

    async def _call(self, member: Member, path: str, body: Any = None) -> Any:
        """A call to the endpoints that a server has only when it was started for training."""
        try:
            return await self._wire.call(member.address, path, body)
        except BadRequest as error:
            raise ConfigError(f"{error}; {_HOW}") from error


_FITTING = "a vLLM server's address looks like http://host:8000"

_PROBE = "Task 1: crème brûlée (北京) 🙂\n\tx = [3.14, 'no']  Got 12 oak planks."

"""Text whose tokens two tokenizers hardly share."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a server says of a model that it serves."""

    name: str
    """As requests name it."""
    source: str
    """The folder or hub id that the server loaded, where its tokenizer is, too."""
    max_model_len: int
    """Most tokens of a conversation."""


class ServedEngine(VLLMServerEngine):
    """Spreads turns over servers of one model, and gives each turn's tokens as they sampled them.

    Log-probabilities are the server's: with vLLM's own `--logprobs-mode raw_logprobs` those of the
    model at temperature 1, whatever the temperature of the turn.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        tokenizer: Any,
        settings: ServerSettings,
        *,
        max_tokens: int,
        model: str | None,
        api_key: str | None,
    ) -> None:
        """Asks nothing of the servers yet; `served_engine` does."""
        members = [Member(address) for address in addresses]
        super().__init__(members, settings, max_tokens=max_tokens, api_key=api_key)
        self._tokenizer = tokenizer
        self._wanted = model

    async def check(self) -> None:
        """Ask every server now, so that what does not fit is said before anything is played."""
        try:
            for member in self._fleet.members:
                await self._get_to_know(member)
        except Unreachable as error:
            raise _nobody(error) from error
        finally:
            await self._wire.close()

    async def update_weights(self, model: Any, version: int) -> None:
        """Refused: nothing here may change what a server serves."""
        raise ConfigError(
            "this engine plays by what its servers serve and changes no weights; engine: "
            "vllm_server trains (docs/engines.md)"
        )

    async def _get_to_know(self, member: Member) -> None:
        """See that a server, new or come back, has the wanted model and its tokens mean the same.

        Raises `ConfigError` if not.
        """
        known = await _served(self._wire, member.address, self._wanted)
        if known.max_model_len < self._max_tokens:
            raise ConfigError(
                f"{member.address} holds conversations of {known.max_model_len} tokens, and "
                f"max_tokens is {self._max_tokens}; start it with --max-model-len "
                f"{self._max_tokens}, or lower max_tokens"
            )
        text = _PROBE + "".join(self._tokenizer.all_special_tokens)
        body = {"model": known.name, "prompt": text, "add_special_tokens": False}
        theirs = (await self._wire.call(member.address, "/tokenize", body))["tokens"]
        if theirs != list(self._tokenizer.encode(text, add_special_tokens=False)):
            raise ConfigError(
                f"{member.address} serves {known.name} with another tokenizer than the one here; "
                f"take the tokenizer of {known.source!r}, which the server loaded"
            )
        member.model = known.name


def served_model(url: str, *, model: str | None = None, api_key: str | None = None) -> ServedModel:
    """Which model a vLLM server serves; the first of several, or the one named `model`.

    Raises `ConfigError` when no vLLM server answers there, or when it has no such model. It runs an
    event loop of its own, so call it where none is running.
    """

    async def ask() -> ServedModel:
        wire = VLLMWire(30.0, api_key)
        try:
            return await _served(wire, _address(url, api_key), model)
        except Unreachable as error:
            raise _nobody(error) from error
        finally:
            await wire.close()

    return asyncio.run(ask())


def served_engine(
    url: str | Sequence[str],
    tokenizer: Any,
    *,
    max_tokens: int,
    model: str | None = None,
    api_key: str | None = None,
    settings: ServerSettings | None = None,
) -> ServedEngine:
    """An engine that samples from what one or several running vLLM servers serve.

    `tokenizer` is the model's, and is compared with the servers'; `max_tokens` the most of a
    conversation. Raises `ConfigError` when no vLLM server answers there, or it does not fit. Like
    `served_model`, call it where no event loop runs; the engine belongs to the loop that uses it.
    """
    urls = [url] if isinstance(url, str) else list(url)
    addresses = [_address(each, api_key) for each in urls]
    engine = ServedEngine(
        addresses,
        tokenizer,
        settings or ServerSettings(),
        max_tokens=max_tokens,
        model=model,
        api_key=api_key,
    )
    asyncio.run(engine.check())
    return engine


async def _served(wire: VLLMWire, address: str, wanted: str | None) -> ServedModel:
    try:
        await wire.call(address, "/version")
        cards = (await wire.call(address, "/v1/models"))["data"]
    except BadRequest as error:
        raise ConfigError(
            f"{address} is no vLLM server that lets us in: {error}. A server with --api-key needs "
            "that key; an endpoint that is no vLLM plays as policy openai:MODEL@URL"
        ) from error
    card = next((card for card in cards if wanted in (None, card["id"])), None)
    if card is None:
        raise ConfigError(
            f"{address} serves no model {wanted!r}, but {', '.join(card['id'] for card in cards)}"
        )
    # An adapter's card names the model that it adapts, which has the tokenizer and the length.
    base = next((other for other in cards if other["id"] == card.get("parent")), card)
    return ServedModel(card["id"], base["root"], base["max_model_len"])


def _address(url: str, api_key: str | None) -> str:
    check_address(url, api_key, _FITTING)
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _nobody(error: Unreachable) -> ConfigError:
    return ConfigError(
        f"no vLLM server answers: {error}. Start one with `vllm serve MODEL`, or check the address"
    )


def make_engine(
    settings: ServerSettings, model: Any, *, pad_id: int, max_tokens: int, dtype: str | None
) -> VLLMServerEngine:
    """The engine of a config, with the servers that it names or one that is started here."""
    several = distributed.is_available() and distributed.is_initialized()
    if settings.servers:
        members = [Member(address.rstrip("/")) for address in settings.servers]
    elif several and distributed.get_world_size() > 1:
        raise ConfigError(
            f"{distributed.get_world_size()} processes share their vLLM servers; start servers and "
            "name them: engine_args: {servers: [http://host:8000]} (docs/engines.md)"
        )
    else:
        from agentgym_train.engines.vllm_process import launch_for

        local = launch_for(model, settings, max_tokens=max_tokens)
        members = [Member(local.address, local)]
    return VLLMServerEngine(
        members,
        settings,
        max_tokens=max_tokens,
        gathered=gathered,
        is_first=not several or distributed.get_rank() == 0,
    )

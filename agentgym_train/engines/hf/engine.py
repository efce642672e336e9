"""HFEngine: generates with a transformers model, in one batch of all requests.

The KV cache of a conversation is kept between its turns, so that a turn computes only new tokens.
Knows nothing about chat or environments.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import Any, Literal

import torch
from torch import Tensor

from agentgym_env.errors import ConfigError
from agentgym_train.config.engines import HFSettings
from agentgym_train.engines.base import EngineLost, Generation, Sampling, UpdateGate
from agentgym_train.engines.hf.batch import FinishedTurn, TurnBatch, TurnRequest
from agentgym_train.engines.hf.contexts import (
    Copies,
    dense_attention,
    float32_head,
    reduced_weights,
    without_router_loss,
)
from agentgym_train.engines.hf.graph import StaticSteps
from agentgym_train.engines.hf.plain import PlainBatch, has_full_attention
from agentgym_train.models.positions import layer_kinds
from agentgym_train.models.setup import uncompiled, warn_of_slow_bfloat16
from agentgym_train.models.weights import merged_tokens

logger = logging.getLogger(__name__)


class HFEngine:
    """Generates with `model` itself, and thus with a trainer's current weights, or with a copy.

    Each request draws from its own seed, so its tokens do not depend on the other requests in its
    batch. Turns join and leave the running batch one by one, in a separate thread, while the event
    loop steps environments. An update of the weights waits for running turns, and later turns wait
    for the update.
    """

    def __init__(
        self,
        model: Any,
        pad_id: int,
        *,
        max_batch: int = 256,
        dtype: str | None = None,
        settle_ties: bool = False,
        cuda_graphs: bool = False,
    ) -> None:
        """`dtype` is used for computing; None is float32 on a CPU and bfloat16 on a GPU.

        `settle_ties` and `cuda_graphs`: see `HFSettings`.
        """
        self._plain = not has_full_attention(model.config.get_text_config())
        if self._plain:
            kinds = ", ".join(sorted(layer_kinds(model.config.get_text_config())))
            logger.warning(
                "this model has layers of the kinds %s: the hf engine samples its turns one at a "
                "time, which is slow; the vLLM engines sample them in batches",
                kinds,
            )
        self.model = model
        self.version = 0
        self._copies = self._copied = False
        self._pad_id = pad_id
        self._max_batch = max_batch
        self._max_caches: int | None = None
        self._dtype: torch.dtype | None = getattr(torch, dtype) if dtype else None
        self._settles = settle_ties
        self._static = StaticSteps() if cuda_graphs else None
        self._gate = UpdateGate()
        self._waiting: deque[TurnRequest] = deque()
        self._running: set[TurnRequest] = set()
        self._caches: dict[Hashable, tuple[list[int], Any]] = {}
        self._reduced: Copies = {}
        """Freed when the trainer uses the model, and whenever the weights change."""
        self._worker: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hf-engine")

    @property
    def is_exact(self) -> bool:
        """On a CPU in float32, where the trainer's results differ in the last bits only."""
        weight = next(self.model.parameters())
        return weight.device.type == "cpu" and self._computes_in(weight) == torch.float32

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        conversation: Hashable | None = None,
    ) -> Generation:
        """Sample one turn; raises `EngineLost` if the forward pass fails."""
        if not prompt_ids:
            raise ConfigError("a prompt must have at least one token")
        async with self._gate.turn():
            reply: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
            self._waiting.append(TurnRequest(list(prompt_ids), sampling, conversation, reply))
            if self._worker is None or self._worker.done():
                self._worker = asyncio.create_task(self._work())
            return await reply

    def keep_own_weights(self) -> None:
        """Generate with a copy from the next update on; the trainer may then change its weights."""
        self._copies = True

    async def forget(self, conversation: Hashable) -> None:
        """Drop the cache of a conversation that ended."""
        self._caches.pop(conversation, None)

    async def update_weights(self, model: Any, version: int) -> None:
        """Clear the caches, and copy the weights if a copy is used."""
        async with self._gate.update():
            await self._at_rest()
            if not self._copies:
                self.model = model
            elif self._copied:
                self.model.load_state_dict(model.state_dict())
            else:
                self.model, self._copied = _copy_of(model), True
            self.version = version
            self._caches.clear()
            self._reduced.clear()

    async def sleep(self) -> None:
        """Clear the caches; the trainer uses the model."""
        async with self._gate.update():
            await self._at_rest()
            self._caches.clear()
            self._reduced.clear()

    async def close(self) -> None:
        """Wait for turns that are still computed, and end the thread."""
        await self._worker_ended()
        self._thread.shutdown(wait=False)

    async def _at_rest(self) -> None:
        """Wait until the thread computes no cancelled turn."""
        await self._worker_ended()
        # An ended loop has no worker, but its last turns may still be computed.
        await asyncio.get_running_loop().run_in_executor(self._thread, int)

    async def _worker_ended(self) -> None:
        if self._worker is not None and not self._worker.done():
            await asyncio.wait([self._worker])

    async def _work(self) -> None:
        """Run the thread while requests wait."""
        while self._waiting:
            # Let ready coroutines add their requests to the first batch.
            await asyncio.sleep(0)
            await asyncio.get_running_loop().run_in_executor(self._thread, self._run)

    def _run(self) -> None:
        """In the thread: sample turns until none is running."""
        exhausted = False
        try:
            last = self._sample_turns()
        except torch.OutOfMemoryError as error:
            exhausted = len(self._running) > 1 or bool(self._caches)
            if not exhausted:
                self._fail(error)
        except Exception as error:
            # The process boundary of the model: a failure reaches every running turn.
            self._fail(error)
        else:
            # Answered after the model is restored.
            for request in last:
                _on_its_loop(request, self._answer)
        if exhausted:
            # Outside of the handler, because the error's frames refer to the batch's memory.
            self._sample_again()
        self._running.clear()

    def _sample_again(self) -> None:
        """Return the running turns to the queue; from now on, half as many run at once.

        A turn draws from its own seed, so it has the same tokens as without the interruption.
        """
        self._max_batch = self._max_caches = max(1, len(self._running) // 2)
        self._caches.clear()
        torch.cuda.empty_cache()
        logger.warning(
            "out of memory with %d turns at once: the engine samples at most %d from now on; set "
            "max_batch to begin with fewer",
            len(self._running),
            self._max_batch,
        )
        for request in self._running:
            request.restart()
        self._waiting.extendleft(self._running)

    def _fail(self, error: Exception) -> None:
        if not self._running:  # it would fail again for those that wait
            self._running.update(self._waiting)
            self._waiting.clear()
        lost = EngineLost(f"generation failed: {type(error).__name__}: {error}")
        lost.__cause__ = error
        for request in self._running:
            _on_its_loop(request, lambda request: request.reply.set_exception(lost))

    @torch.inference_mode()
    def _sample_turns(self) -> list[TurnRequest]:
        """The turns that finished last; the others are answered already."""
        # In 16 bits the rest of a batch changes far more choices than those that can be settled.
        settles = (
            self._settles and self._computes_in(next(self.model.parameters())) == torch.float32
        )
        with self._sampling():
            batch: TurnBatch | PlainBatch = (
                PlainBatch(self.model)
                if self._plain
                else TurnBatch(self.model, self._pad_id, settle_ties=settles, static=self._static)
            )
            while True:
                joining = self._joining(batch)
                if joining:
                    batch.join(joining, [self._stored_cache(request) for request in joining])
                if not batch.live:
                    return []
                done = [self._keep(finished) for finished in batch.step()]
                if not batch.live:
                    return done
                for request in done:
                    _on_its_loop(request, self._answer)

    def _keep(self, finished: FinishedTurn) -> TurnRequest:
        request = finished.request
        if finished.cache is not None:
            self._caches[request.conversation] = (request.cached, finished.cache)
            if self._max_caches is not None and len(self._caches) > self._max_caches:
                del self._caches[next(iter(self._caches))]
        self._running.discard(request)
        return request

    def _joining(self, batch: TurnBatch | PlainBatch) -> list[TurnRequest]:
        """The requests that join the batch now."""
        if not batch.accepts(len(self._waiting)):
            return []
        room = min(len(self._waiting), self._max_batch - batch.live)
        chosen = [self._waiting.popleft() for _ in range(room)]
        chosen = [request for request in chosen if not request.reply.cancelled()]
        self._running.update(chosen)
        return chosen

    def _answer(self, request: TurnRequest) -> None:
        stopped = bool(request.token_ids) and request.token_ids[-1] in request.sampling.stop_ids
        reason: Literal["stop", "length"] = "stop" if stopped else "length"
        generation = Generation(request.token_ids, request.logprobs, reason, self.version)
        request.reply.set_result(generation)

    @contextmanager
    def _sampling(self) -> Iterator[None]:
        """Within, the model has the mode, precision and attention for sampling."""
        model, weight = self.model, next(self.model.parameters())
        was_training = model.training
        computes_in = self._computes_in(weight)
        model.eval()
        try:
            reduced = weight.dtype == torch.float32 and computes_in != torch.float32
            if reduced and weight.device.type == "cpu":
                warn_of_slow_bfloat16()
            autocast = torch.autocast(weight.device.type, computes_in, enabled=reduced)
            weights = (
                reduced_weights(model, computes_in, self._reduced) if reduced else nullcontext()
            )
            attention = nullcontext() if self._plain else dense_attention(model)
            with ExitStack() as stack:
                for context in (
                    autocast, merged_tokens(model), weights, attention, float32_head(model),
                    without_router_loss(model), uncompiled(model),
                ):  # fmt: skip
                    stack.enter_context(context)
                yield
        finally:
            if self._static is not None:
                self._static.release()
            model.train(was_training)

    def _computes_in(self, weight: Tensor) -> torch.dtype:
        if weight.dtype != torch.float32:
            return weight.dtype
        return self._dtype or (torch.float32 if weight.device.type == "cpu" else torch.bfloat16)

    def _stored_cache(self, request: TurnRequest) -> Any:
        """The cache of the request's conversation, if it is a proper prefix of the prompt."""
        ids, cache = self._caches.pop(request.conversation, ([], None))
        usable = cache is not None and len(ids) < len(request.ids)
        return cache if usable and request.ids[: len(ids)] == ids else None


def _on_its_loop(request: TurnRequest, reply: Callable[[TurnRequest], None]) -> None:
    """Reply on the event loop of the request, unless it no longer waits."""

    def unless_done() -> None:
        if not request.reply.done():
            reply(request)

    # The engine, and a cancelled turn, may outlive the loop.
    with suppress(RuntimeError):
        request.reply.get_loop().call_soon_threadsafe(unless_done)


def _copy_of(model: Any) -> Any:
    """A copy of a model with weights of its own."""
    made = copy.deepcopy(model).requires_grad_(False).eval()
    made.zero_grad(set_to_none=True)
    for module in made.modules():
        # A trainer replaces `forward` by closures, whose copies would still call the original.
        module.__dict__.pop("forward", None)
    return made


def make_engine(
    settings: HFSettings, model: Any, *, pad_id: int, max_tokens: int, dtype: str | None
) -> HFEngine:
    """The engine of a config."""
    return HFEngine(
        model,
        pad_id,
        max_batch=settings.max_batch,
        dtype=dtype,
        settle_ties=bool(settings.settle_ties),
        cuda_graphs=settings.cuda_graphs,
    )

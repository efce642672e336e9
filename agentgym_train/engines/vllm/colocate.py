"""VLLMColocateEngine: vLLM in the trainer's process, on the trainer's device.

vLLM's own engine runs in a thread with continuous batching. Knows nothing about chat or worlds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import tempfile
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine

from agentgym_env.errors import ConfigError
from agentgym_train.config.engines import ColocateSettings
from agentgym_train.engines.base import EngineLost, Generation, Sampling
from agentgym_train.engines.vllm.process import READER, engine_values, save_architecture
from agentgym_train.models.weights import checkpoint_weights

_T = TypeVar("_T")


class VLLMColocateEngine:
    """Samples with vLLM's kernels from a copy of the trainer's weights.

    An update waits for the running turns, and later turns wait for the update, so every turn is
    sampled with one version of the weights.
    """

    is_exact = False
    """vLLM uses other kernels than the trainer, and on a GPU another precision."""

    def __init__(self, model: Any, settings: ColocateSettings, *, max_tokens: int) -> None:
        """`max_tokens` is the default maximum per conversation."""
        self.version = 0
        self._length = settings.max_model_len or max_tokens
        self._sleep_level = settings.sleep_level
        self._asleep = False
        self._requests = 0
        self._waiting: dict[str, Future[Any]] = {}
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._asked: set[Future[Any]] = set()
        self._ending = threading.Lock()
        self._ended: str | None = None
        self._updates: list[Callable[[], None]] = []
        self._held: list[Callable[[], None]] = []
        made: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._work, args=(model, settings, made), name="vllm", daemon=True
        )
        self._thread.start()
        made.result()

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        conversation: Hashable | None = None,
    ) -> Generation:
        """Sample one turn; raises `EngineLost` if vLLM failed."""
        if not prompt_ids:
            raise ConfigError("a prompt must have at least one token")
        params = sampling_params(sampling, len(prompt_ids), self._length)
        self._requests += 1
        name = str(self._requests)
        reply: Future[Any] = Future()
        prompt = {"prompt_token_ids": list(prompt_ids)}
        self._post(lambda: self._begin(name, prompt, params, reply), reply)
        try:
            return _generation(*await asyncio.wrap_future(reply))
        except asyncio.CancelledError:
            self._calls.put(lambda: self._drop(name))
            raise

    async def forget(self, conversation: Hashable) -> None:
        """Does nothing: vLLM's prefix cache evicts unused blocks."""

    async def update_weights(self, model: Any, version: int) -> None:
        """Load `model`'s weights after the running turns; KV caches are dropped."""
        weights = checkpoint_weights(model)

        def load() -> None:
            if torch.cuda.is_available():
                # The trainer's last step may still be running on another stream.
                torch.cuda.synchronize()
            if self._asleep:
                self._inner.wake_up(["weights"])
            self._inner.collective_rpc("take_weights", args=(weights,))
            if self._asleep:
                self._inner.wake_up(["kv_cache"])
                self._asleep = False
            self._inner.reset_prefix_cache()
            self.version = version

        await self._between_turns(load)

    def keep_own_weights(self) -> None:
        """Does nothing: vLLM has its own."""

    async def sleep(self) -> None:
        """Free the device's memory for the trainer; the next update allocates it again."""

        def sleep() -> None:
            if self._sleeps and not self._asleep:
                self._inner.sleep(self._sleep_level)
                self._asleep = True

        await self._between_turns(sleep)

    async def close(self) -> None:
        """Shut down vLLM and its thread."""
        self._calls.put(None)
        await asyncio.to_thread(self._thread.join)

    async def _between_turns(self, work: Callable[[], _T]) -> _T:
        """Run `work` in vLLM's thread while no turn is running; later turns wait."""
        done: Future[_T] = Future()
        self._post(lambda: self._updates.append(lambda: _fulfil(done, work)), done)
        return await asyncio.wrap_future(done)

    def _post(self, call: Callable[[], None], reply: Future[Any]) -> None:
        """Queue a call for vLLM's thread; if the thread ends, `reply` fails."""
        with self._ending:
            if self._ended is not None:
                raise EngineLost(self._ended)
            self._asked.add(reply)
            reply.add_done_callback(self._asked.discard)
            self._calls.put(call)

    def _begin(self, name: str, prompt: Any, params: Any, reply: Future[Any]) -> None:
        """In vLLM's thread: add a turn, or hold it back if an update is pending."""
        if self._updates:
            self._held.append(lambda: self._begin(name, prompt, params, reply))
            return
        if not reply.set_running_or_notify_cancel():
            return
        try:
            self._inner.add_request(name, prompt, params)
        except Exception as error:
            reply.set_exception(EngineLost(f"vLLM rejected a turn: {error}"))
        else:
            self._waiting[name] = reply

    def _drop(self, name: str) -> None:
        """In vLLM's thread: abort a cancelled turn."""
        if self._waiting.pop(name, None) is not None:
            self._inner.abort_request([name])

    def _work(self, model: Any, settings: ColocateSettings, made: Future[None]) -> None:
        """The thread's main loop: run queued calls, step vLLM, return finished turns."""
        try:
            self._inner, self._sleeps = inner_engine(model, settings, self._length)
            self._inner.collective_rpc("take_weights", args=(checkpoint_weights(model),))
        except ValueError as error:
            made.set_exception(ConfigError(f"vLLM rejected the model or its settings: {error}"))
            return
        except BaseException as error:
            made.set_exception(error)
            return
        made.set_result(None)
        del model
        why = "vLLM was closed"
        try:
            while self._take_calls():
                self._step()
        except Exception as error:
            # The engine's boundary: report the failure to every waiting turn.
            why = f"vLLM failed: {type(error).__name__}: {error}"
        self._end(why)

    def _take_calls(self) -> bool:
        """Run the queued calls, and wait for one if idle; False ends the thread."""
        while True:
            busy = bool(self._waiting) or bool(self._updates)
            try:
                call = self._calls.get(block=not busy)
            except queue.Empty:
                return True
            if call is None:
                return False
            call()

    def _step(self) -> None:
        """Sample one token for each running turn; if there is none, run pending updates."""
        if not self._waiting:
            for update in self._updates:
                update()
            self._updates.clear()
            held, self._held = self._held, []
            for call in held:
                call()
            return
        for output in self._inner.step():
            reply = self._waiting.pop(output.request_id, None) if output.finished else None
            if reply is not None:
                reply.set_result((output.outputs[0], self.version))

    def _end(self, why: str) -> None:
        """Fail all waiting and future calls with the reason."""
        with self._ending:
            self._ended = why
            left = list(self._asked)
        for reply in left:
            # A turn may be cancelled at this moment.
            with suppress(InvalidStateError):
                reply.set_exception(EngineLost(why))
        self._inner.engine_core.shutdown()


def make_engine(
    settings: ColocateSettings, model: Any, *, pad_id: int, max_tokens: int, dtype: str | None
) -> VLLMColocateEngine:
    """The engine for settings."""
    return VLLMColocateEngine(model, settings, max_tokens=max_tokens)


def _fulfil(done: Future[Any], work: Callable[[], Any]) -> None:
    if not done.set_running_or_notify_cancel():
        return
    try:
        done.set_result(work())
    except Exception as error:
        lost = EngineLost(f"vLLM failed to load the weights: {type(error).__name__}: {error}")
        lost.__cause__ = error
        done.set_exception(lost)


def _generation(output: Any, version: int) -> Generation:
    """Convert vLLM's output; raises `EngineLost` for an aborted turn."""
    ids = list(output.token_ids)
    if output.finish_reason not in ("stop", "length"):
        raise EngineLost(f"vLLM aborted a turn after {len(ids)} tokens: {output.finish_reason}")
    logprobs = [step[token].logprob for step, token in zip(output.logprobs, ids, strict=True)]
    return Generation(ids, logprobs, output.finish_reason, version)


def inner_engine(model: Any, settings: ColocateSettings, max_len: int) -> tuple[LLMEngine, bool]:
    """(vLLM's engine for `model`'s architecture with dummy weights, whether it can sleep).

    Only the configuration is written to a folder; the weights are passed in memory.
    """
    on_gpu = torch.cuda.is_available()
    sleeps = on_gpu and settings.sleep_level > 0
    several = torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1
    values = engine_values(settings, max_len, memory_share=0.3)
    values |= {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "enable_sleep_mode": sleeps,
        "worker_extension_cls": READER,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "trust_remote_code": False,
        "disable_log_stats": True,
        # Each of several processes has its own engine, in the existing process group.
        "distributed_executor_backend": "external_launcher" if several else "uni",
    }
    with tempfile.TemporaryDirectory(prefix="agentgym-vllm-") as folder, _in_this_process():
        save_architecture(model, Path(folder))
        made = LLMEngine.from_engine_args(EngineArgs(model=folder, **(values | settings.extra)))
    return made, sleeps


def sampling_params(sampling: Sampling, prompt_tokens: int, max_len: int) -> SamplingParams:
    """Sampling parameters of a turn for vLLM; raises `ConfigError` if the context is full."""
    room = max_len - prompt_tokens
    if room < 1:
        raise ConfigError(
            f"a conversation of {prompt_tokens} tokens exceeds vLLM's max_model_len of {max_len}; "
            "raise engine.max_model_len, or lower max_tokens"
        )
    return SamplingParams(
        max_tokens=min(sampling.max_tokens, room),
        temperature=sampling.temperature,
        seed=sampling.seed,
        stop_token_ids=list(sampling.stop_ids),
        # Only the ids above end a turn, regardless of the model's generation config.
        ignore_eos=True,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


@contextmanager
def _in_this_process() -> Iterator[None]:
    """Use vLLM as a library: no extra process, few logs, and the trainer's thread settings."""
    level = os.environ.get("VLLM_LOGGING_LEVEL", "ERROR")
    wanted = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": level,
    }
    before = {name: os.environ.get(name) for name in wanted}
    set_threads, threads = torch.set_num_threads, torch.get_num_threads()
    os.environ.update(wanted)
    logging.getLogger("vllm").setLevel(level.upper())
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        torch.set_num_threads = set_threads
        torch.set_num_threads(threads)

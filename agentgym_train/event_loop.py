"""Runs coroutines from synchronous code, even where an event loop runs already: in a notebook."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

_T = TypeVar("_T")
_WAIT_S = 1.0
"""Longest wait for the other thread before signals are handled."""


def run_async(work: Coroutine[Any, Any, _T]) -> _T:
    """`asyncio.run`, which also works in a thread whose event loop runs already."""
    with LoopRunner() as runner:
        return runner.run(work)


def in_main_thread() -> bool:
    """Whether this thread is the one that may install signal handlers."""
    return threading.current_thread() is threading.main_thread()


class LoopRunner(AbstractContextManager["LoopRunner"]):
    """An `asyncio.Runner` that also works in a thread whose event loop runs already.

    That loop waits meanwhile, as for any synchronous call. Ours then runs in a thread of its own,
    always in the same one, also between two calls. An exception is raised to the caller as it is.
    Ctrl-C cancels the coroutine, waits for its end, and raises `KeyboardInterrupt`.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._thread: Future[None] | None = None
        """Done when the loop's thread has ended."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine to completion; call it from one thread at a time."""
        if self._needs_thread():
            return self._run_in_thread(work)
        self.get_loop()
        return self._runner.run(work)

    def run_between_calls(self) -> None:
        """From now on, run the loop in a thread of its own, so that tasks go on between calls."""
        self._started()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The loop in which the work runs."""
        if self._needs_thread():
            return self._started()[1]
        self._loop = self._runner.get_loop()
        return self._loop

    def close(self) -> None:
        """Cancel what is left of the work, and close the loop."""
        if self._needs_thread():
            thread, loop = self._started()
            loop.call_soon_threadsafe(self._ended.set)
            thread.result()
        else:
            self._runner.close()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _needs_thread(self) -> bool:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            return self._thread is not None
        # A call from within our own loop would wait for itself; asyncio rejects it.
        return running is not self._loop

    def _started(self) -> tuple[Future[None], asyncio.AbstractEventLoop]:
        """The end of the thread, and the loop that runs in it."""
        if self._thread is None or self._thread.done():
            begun: Future[asyncio.AbstractEventLoop] = Future()
            self._thread = Future()
            # A daemon, so that a runner that nobody closes does not keep the program alive.
            threading.Thread(
                target=self._serve, args=(begun, self._thread), name="agentgym-loop", daemon=True
            ).start()
            self._loop = begun.result()
        assert self._loop is not None
        return self._thread, self._loop

    def _serve(self, begun: Future[asyncio.AbstractEventLoop], ended: Future[None]) -> None:
        """Run the loop in this thread until `close`, or until a task exits the program."""
        try:
            begun.set_result(self._runner.get_loop())
            self._runner.run(self._ended.wait())
            self._runner.close()
        except BaseException as error:
            if not begun.done():
                begun.set_exception(error)
            ended.set_exception(error)
        else:
            ended.set_result(None)

    def _run_in_thread(self, work: Coroutine[Any, Any, _T]) -> _T:
        thread, loop = self._started()
        task: asyncio.Task[Any] | None = None
        cancelled = False

        async def tracked() -> _T:
            nonlocal task
            task = asyncio.current_task()
            if cancelled:
                work.close()
                raise asyncio.CancelledError
            return await work

        def cancel() -> None:  # also in the loop's thread, so that neither comes in between
            nonlocal cancelled
            cancelled = True
            if task is not None:
                task.cancel()

        running: Future[_T] | None = None
        watched: list[Future[Any]] = [thread]
        try:  # from the start: Ctrl-C may come at once, and the work would never end
            with _interruptible():
                running = asyncio.run_coroutine_threadsafe(tracked(), loop)
                # A signal that comes just before a wait does not end it, and is handled after it.
                watched += [running]
                while not wait(watched, _WAIT_S, FIRST_COMPLETED).done:
                    pass
                if not running.done():
                    thread.result()  # a task of the loop exits the program
                return running.result()
        except CancelledError as error:
            raise asyncio.CancelledError from error
        except KeyboardInterrupt:
            loop.call_soon_threadsafe(cancel)
            if running is not None:
                wait(watched, return_when=FIRST_COMPLETED)
            raise


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C raise `KeyboardInterrupt` within the main thread.

    The handler of `asyncio.run` only cancels its task, which would be noticed after our work.
    """
    handler = signal.getsignal(signal.SIGINT) if in_main_thread() else None
    owner = getattr(getattr(handler, "func", None), "__self__", None)
    if not isinstance(owner, asyncio.Runner):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)

"""A v0 environment of verifiers' as a `TextEnv`: its own rollout, with us as the model.

    Wordle = text_class("wordle")   # what vf.load_environment("wordle") gives

verifiers' loop runs as it is; where it asks its client for a reply it waits for our next action.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import json
import signal
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

from agentgym_adapters.function_calls import FunctionCall, read_call
from agentgym_env.errors import EnvironmentFault, MissingExtra
from agentgym_env.text_env import TaskSet, TextEnv

try:
    import verifiers as vf
    from verifiers import Client
    from verifiers.types import Response, ResponseMessage, Tool, ToolCall
except ImportError as error:
    raise MissingExtra(
        f"verifiers' v0 is in its versions up to 0.3 ({error}): pip install 'verifiers>=0.3,<0.4'"
    ) from error

_TOOLS = (
    'You have these tools. To call one, write one JSON object {"name": "...", "arguments": {...}} '
    "and nothing else:"
)
_numbers = itertools.count()


class VerifiersText(TextEnv):
    """Episodes of a verifiers environment; `text_class` makes subclasses.

    Tasks: `train/N` and `test/N` for the rows of its two datasets. An action is the model's reply;
    where there are tools, one that is a JSON object with `name` and `arguments` calls one.
    Reward: verifiers scores a rollout as a whole, so all of it comes with the last step.
    An error of the environment's own (`vf.Error`) loses the episode.
    """

    load: ClassVar[Any]
    """Gives the environment of verifiers', one for the process."""
    solved_at: ClassVar[float] = 1.0
    # It waits for whatever the environment waits for.
    isolated = True
    can_copy = False

    def __init__(self, render_mode: str | None = None) -> None:
        env = type(self).load()
        self.tasks, self._rows = _tasks_of(env)  # type: ignore[misc]
        super().__init__(render_mode)
        self._env = env
        self._rollout: _Rollout | None = None
        self._reward = 0.0

    def _reset(self, task: str) -> str:
        self._end()
        self._reward = 0.0
        self._rollout = _Rollout(self._env, dict(self._rows[task]))
        told, output = self._rollout.begin()
        if output is not None:
            raise EnvironmentFault(f"verifiers ended the rollout at once: {_why(output)}")
        return told

    def _step(self, action: str) -> tuple[str, float, bool]:
        assert self._rollout is not None
        told, output = self._rollout.answer(action)
        if output is None:
            return told, 0.0, False
        if output["error"] is not None:
            raise EnvironmentFault(f"verifiers lost the rollout: {_why(output)}")
        self._reward = float(output["reward"] or 0.0)
        return told, self._reward, True

    def success(self) -> bool:
        """Whether its reward reached `solved_at`."""
        return self._reward >= self.solved_at

    def close(self) -> None:
        """Give up the rollout; verifiers cleans up after it."""
        self._end()
        super().close()

    def _end(self) -> None:
        rollout, self._rollout = self._rollout, None
        if rollout is not None:
            rollout.end()


def text_class(
    env_id: str, *, instruction: str | None = None, solved_at: float = 1.0, **arguments: Any
) -> type[VerifiersText]:
    """The environment that `vf.load_environment(env_id, **arguments)` gives, as a class."""

    @cache
    def load() -> Any:
        if threading.current_thread() is not threading.main_thread():
            return vf.load_environment(env_id, **arguments)
        # verifiers takes over the process's signals with each environment; they are ours.
        kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            return vf.load_environment(env_id, **arguments)
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)

    env = load()
    tasks, rows = _tasks_of(env)
    told = instruction or _system(rows[tasks.ids[0]]) or "Answer each message."
    members = {
        "load": staticmethod(load),
        "solved_at": solved_at,
        "instruction": f"{told}\n\n{_tools(env)}".strip(),
        "tasks": tasks,
    }
    name = env_id.rpartition("/")[2].title().replace("-", "").replace("_", "")
    return type(name, (VerifiersText,), members)


class _Rollout:
    """One rollout of verifiers, which is paused while it waits for an action."""

    def __init__(self, env: Any, row: dict[str, Any]) -> None:
        self._loop = _loop()
        self._prompts: asyncio.Queue[Sequence[Any]] = asyncio.Queue()
        self._replies: asyncio.Queue[str] = asyncio.Queue()
        self._shown: list[Any] = []
        self._system = _system(row)
        client = _Actions(self._prompts, self._replies)
        self._running: asyncio.Task[Any] | None = None

        async def run() -> Any:
            return await env.run_rollout(row, client, "agentgym", {})

        self._run = run

    def begin(self) -> tuple[str, Any]:
        """The first prompt as text, and the output if it ended already."""
        return self._await(None)

    def answer(self, action: str) -> tuple[str, Any]:
        """What follows the action, and the output if it was the last."""
        return self._await(action)

    def end(self) -> None:
        """Cancel what still runs, and wait until it is cleaned up."""

        async def cancel() -> None:
            if self._running is not None:
                self._running.cancel()
                await asyncio.wait([self._running])

        asyncio.run_coroutine_threadsafe(cancel(), self._loop).result()

    def _await(self, action: str | None) -> tuple[str, Any]:
        waiting: concurrent.futures.Future[tuple[str, Any]] = asyncio.run_coroutine_threadsafe(
            self._next(action), self._loop
        )
        return waiting.result()

    async def _next(self, action: str | None) -> tuple[str, Any]:
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        if action is not None:
            self._replies.put_nowait(action)
        asked = asyncio.create_task(self._prompts.get())
        await asyncio.wait([asked, self._running], return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            return self._new_of(asked.result()), None
        asked.cancel()
        output = self._running.result()
        whole = [*(output["prompt"] or []), *(output["completion"] or [])]
        return self._new_of(whole), output

    def _new_of(self, messages: Sequence[Any]) -> str:
        """What was not shown before; all of it where the conversation was rewritten."""
        known = len(self._shown)
        texts = [(message["role"], _text(message)) for message in messages]
        fresh = texts[known:] if texts[:known] == self._shown else texts
        self._shown = texts
        if not known:
            fresh = [pair for pair in fresh if pair != ("system", self._system)]
        return "\n\n".join(text for role, text in fresh if text and role != "assistant")


class _Actions(Client):
    """A verifiers client without requests: the reply is the next action."""

    def __init__(self, prompts: asyncio.Queue[Sequence[Any]], replies: asyncio.Queue[str]) -> None:
        super().__init__(None)
        self._prompts = prompts
        self._replies = replies

    async def get_response(
        self,
        prompt: Sequence[Any],
        model: str,
        sampling_args: Any,
        tools: list[Tool] | None = None,
        **options: Any,
    ) -> Response:
        """Show the prompt and wait for the action."""
        self._prompts.put_nowait(prompt)
        text = await self._replies.get()
        call = read_call(text) if tools else None
        number = next(_numbers)
        message = ResponseMessage(
            content=text,
            tool_calls=[_called(call, number)] if isinstance(call, FunctionCall) else None,
            finish_reason="tool_calls" if isinstance(call, FunctionCall) else "stop",
            is_truncated=False,
        )
        return Response(id=f"action-{number}", created=0, model=model, message=message)

    def setup_client(self, config: Any) -> None:
        """There is none."""

    async def close(self) -> None:
        """There is nothing to close."""

    async def _unused(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError("no model is asked")

    to_native_tool = to_native_prompt = get_native_response = _unused
    raise_from_native_response = from_native_response = _unused


def _called(call: FunctionCall, number: int) -> ToolCall:
    return ToolCall(id=f"call-{number}", name=call.name, arguments=json.dumps(call.arguments))


def _tasks_of(env: Any) -> tuple[TaskSet, dict[str, Any]]:
    """Its rows as tasks; without an evaluation dataset there is one split."""
    splits: dict[str, list[str]] = {}
    rows: dict[str, Any] = {}
    sources = {"train": env.build_dataset(), "test": env.build_eval_dataset()}
    for split, dataset in sources.items():
        if dataset is not None:
            splits[split] = [f"{split}/{number}" for number in range(len(dataset))]
            rows |= dict(zip(splits[split], dataset, strict=True))
    return TaskSet(splits), rows


def _system(row: Mapping[str, Any]) -> str:
    """The first message of a row's prompt: the instruction."""
    first = row["prompt"][0]
    return _text(first) if first["role"] == "system" else ""


def _tools(env: Any) -> str:
    if not env.tool_defs:
        return ""
    told = [f"{tool.name}: {tool.description} {tool.parameters}" for tool in env.tool_defs]
    return "\n".join([_TOOLS, *told])


def _text(message: Any) -> str:
    content = message["content"]
    if isinstance(content, str) or content is None:
        return content or ""
    return "".join(str(part.get("text", "")) for part in content)


def _why(output: Any) -> str:
    error = output["error"]
    return str(output["stop_condition"] if error is None else error["error_chain_repr"])


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """A loop of its own for verifiers, whoever steps the environment."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="verifiers", daemon=True).start()
    return loop

"""Black-box agents of the tests, as callables and as a program: `python black_boxes.py NAME`."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any


def post(url: str, key: str, body: dict[str, Any]) -> dict[str, Any]:
    """A request with a JSON body."""
    data, headers = json.dumps(body).encode(), {"Authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            found: dict[str, Any] = json.load(response)
    except urllib.error.HTTPError as error:
        error.close()  # it holds the connection
        raise
    return found


def talk(base_url: str, key: str, observation: str) -> None:
    """Ask, act, and repeat until the episode is over."""
    messages = [{"role": "user", "content": observation}]
    while True:
        reply = post(f"{base_url}/chat/completions", key, {"model": "p", "messages": messages})
        text = reply["choices"][0]["message"]["content"] or ""
        seen = post(f"{base_url}/episode/step", key, {"action": text})
        if seen["over"]:
            return
        messages += [
            {"role": "assistant", "content": text},
            {"role": "user", "content": seen["observation"]},
        ]


def plain(place: Any) -> None:
    """In a thread."""
    talk(place.base_url, place.api_key, place.observation)


async def waiting(place: Any) -> None:
    """On the loop, where it must not block it."""
    await asyncio.to_thread(talk, place.base_url, place.api_key, place.observation)


def leaves(place: Any) -> None:
    """Ends as a program does after its work."""
    gives_up(place)
    sys.exit(0)


async def leaves_with_error(place: Any) -> None:
    """The same, on the loop, with a failure."""
    sys.exit("no such option")


TOGETHER = 48
_ALL_HAVE_BEGUN = threading.Barrier(TOGETHER)


def together(place: Any) -> None:
    """Ends when `TOGETHER` of them have begun."""
    _ALL_HAVE_BEGUN.wait(120)


def idle(place: Any) -> None:
    """Asks nothing."""


def gives_up(place: Any) -> None:
    """Gives up after a call."""
    messages = [{"role": "user", "content": place.observation}]
    body = {"model": "p", "messages": messages}
    post(f"{place.base_url}/chat/completions", place.api_key, body)


def broken(place: Any) -> None:
    """Fails after a call."""
    messages = [{"role": "user", "content": place.observation}]
    body = {"model": "p", "messages": messages}
    post(f"{place.base_url}/chat/completions", place.api_key, body)
    raise RuntimeError("the agent has a bug")


def broken_at_once(place: Any) -> None:
    """Fails before a call."""
    raise RuntimeError("the agent has a bug")


def crashes_at_words(place: Any) -> None:
    """Takes every reply for JSON, as careless agents do."""
    messages = [{"role": "user", "content": place.observation}]
    body = {"model": "p", "messages": messages}
    reply = post(f"{place.base_url}/chat/completions", place.api_key, body)
    json.loads("{" + reply["choices"][0]["message"]["content"])


CRASHED: set[str] = set()
"""Agents that have crashed."""


def _crash_once(place: Any, name: str) -> None:
    if name not in CRASHED:
        CRASHED.add(name)
        broken(place)


def crashes_once(place: Any) -> None:
    """Fails after the first call of its first attempt."""
    _crash_once(place, "once")
    plain(place)


def crashes_once_then_asks_otherwise(place: Any) -> None:
    """The same, but its second attempt says something else."""
    _crash_once(place, "otherwise")
    talk(place.base_url, place.api_key, "Say something else, at some length: " * 3)


def crashes_once_then_never_asks(place: Any) -> None:
    """The same, but its second attempt fails before it asks."""
    _crash_once(place, "never")
    raise RuntimeError("the network is down")


class NoError(BaseException):
    """What `except Exception` does not catch."""


def stops(place: Any) -> None:
    """Takes the next of nothing after a call."""
    gives_up(place)
    raise StopIteration("no line begins with Action:")


def interrupts(place: Any) -> None:
    """Ends as by Ctrl-C after a call."""
    gives_up(place)
    raise KeyboardInterrupt("no line begins with Action:")


async def raises_no_error(place: Any) -> None:
    """On the loop, after a call."""
    await asyncio.to_thread(gives_up, place)
    raise NoError("no line begins with Action:")


ASKED = threading.Event()
"""Set by an engine that is asked."""


def leaves_early(place: Any) -> None:
    """Asks, and gives up while its reply is being sampled."""
    address = urllib.parse.urlsplit(place.base_url)
    connection = http.client.HTTPConnection(address.netloc, timeout=60)
    body = {"model": "p", "messages": [{"role": "user", "content": place.observation}]}
    headers = {"Authorization": f"Bearer {place.api_key}"}
    connection.request("POST", f"{address.path}/chat/completions", json.dumps(body), headers)
    ASKED.wait(60)
    connection.close()


def loses_patience(place: Any) -> None:
    """The same, and crashes by it."""
    leaves_early(place)
    raise TimeoutError("timed out")


def judged(place: Any) -> None:
    """Gives itself a reward, without the environment."""
    messages = [{"role": "user", "content": "Say it."}]
    body = {"model": "p", "messages": messages}
    post(f"{place.base_url}/chat/completions", place.api_key, body)
    post(f"{place.base_url}/episode/reward", place.api_key, {"reward": 0.5})


def claim(address: str, key: str) -> None:
    """A program elsewhere: take episodes until there are none."""
    while True:
        try:
            place = post(f"{address}/episodes/claim", key, {})
        except urllib.error.HTTPError:
            return
        talk(place["OPENAI_BASE_URL"], place["OPENAI_API_KEY"], place["AGENTGYM_OBSERVATION"])


def main() -> None:
    """As a process."""
    name, *words = sys.argv[1:]
    base, key = os.environ.get("OPENAI_BASE_URL", ""), os.environ.get("OPENAI_API_KEY", "")
    observation = os.environ.get("AGENTGYM_OBSERVATION", "")
    if name == "plain":
        talk(base, key, observation)
    elif name == "crash":
        sys.stdout.write("something went wrong here\n")
        sys.exit(3)
    elif name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif name == "hang_after_a_call":
        messages = [{"role": "user", "content": observation}]
        post(f"{base}/chat/completions", key, {"model": "p", "messages": messages})
        with open(words[0], "a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(600)
    elif name == "hang":
        with open(words[0], "a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(600)
    elif name == "once":
        # Fails the first time that it is started for a task.
        mark = f"{words[0]}/{os.environ['AGENTGYM_TASK']}"
        if not os.path.exists(mark):
            open(mark, "w").close()
            sys.exit(1)
        talk(base, key, observation)
    elif name == "claim":
        claim(*words)


if __name__ == "__main__":
    main()

"""Clients, synchronous and asynchronous, in this process and over HTTP."""

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from agentgym_env import AsyncEnvClient, EnvClient
from agentgym_env.client.protocol import batch_calls, read_batch, to_exception
from agentgym_env.client.transports import (
    Answer,
    AsyncInProcessTransport,
    Call,
    InProcessTransport,
)
from agentgym_env.errors import (
    BadRequest,
    EnvironmentFault,
    EnvironmentLost,
    EpisodeOver,
    UnknownSplit,
    UnknownTask,
)
from agentgym_env.wire import STATUS, ResetRequest, StepReply, StepRequest, WireError, decode
from hosting import nobody
from worlds import Guess, Trouble


@pytest.fixture(params=["inprocess", "http"])
def client(request, serve, make_host):
    """A client of Guess, on both roads."""
    road = serve().address if request.param == "http" else InProcessTransport(make_host())
    with EnvClient(road) as client:
        yield client


def test_a_session_plays_an_episode(client):
    session = client.open()
    first = session.reset(seed=1, task="5")
    assert (first.turn, first.info["task"], first.info["seed"]) == (0, "5", 1)
    assert session.available_actions() == list("123456789")
    assert session.expert_action() == "5"
    assert session.step("4").reward == 0.0
    last = session.step("5")
    assert (last.turn, last.reward, last.terminated) == (2, 1.0, True)
    with pytest.raises(EpisodeOver, match="the episode has ended; call reset"):
        session.step("5")
    assert session.reset(seed=2).turn == 0
    session.close()
    session.close()


def test_the_card_and_the_tasks_come_across(client):
    assert client.card().instruction == Guess.instruction
    assert client.tasks("test").tasks == ["7", "8", "9"]
    assert client.task_set().splits == Guess.tasks.splits
    assert client.task_set().category("9") == "high"


def test_a_batch_gives_each_item_its_reply_or_its_exception(client):
    sessions = client.open_many(3)
    replies = client.reset_many(
        [(sessions[0], 1, "5", None), (sessions[1], 1, "x", None), (sessions[2], 1, None, "test")]
    )
    assert replies[0].info["task"] == "5"
    assert isinstance(replies[1], UnknownTask)
    assert replies[2].info["task"] in "789"
    steps = client.step_many([(session, "5") for session in sessions])
    assert steps[0].terminated and steps[2].observation == "'5' is wrong."
    assert isinstance(steps[1], EpisodeOver)


def test_the_same_session_twice_in_one_batch_is_refused(client):
    session = client.open()
    session.reset(seed=0, task="5")
    first, second = client.step_many([(session, "1"), (session, "5")])
    assert first.turn == 1 and isinstance(second, EnvironmentLost)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"task": "x"}, UnknownTask),
        ({"split": "dev"}, UnknownSplit),
        ({"task": "1", "split": "test"}, BadRequest),
        ({"seed": -1}, BadRequest),
        ({"seed": 2**64}, BadRequest),
        ({"seed": "1"}, BadRequest),
        ({"task": 5}, BadRequest),
    ],
)
def test_a_bad_reset_raises_what_it_would_raise_here(client, arguments, error):
    session = client.open()
    with pytest.raises(error):
        session.reset(**arguments)
    assert session.reset(seed=0).turn == 0


def test_a_bad_action_is_refused_before_it_leaves(client):
    session = client.open()
    with pytest.raises(EpisodeOver, match="no episode was started"):
        session.step("1")
    session.reset(seed=0)
    with pytest.raises(BadRequest, match="got int"):
        session.step(1)
    assert session.step("1").turn == 1


def test_lone_surrogates_are_replaced_on_the_way(client):
    session = client.open()
    session.reset(seed=0, task="5")
    assert session.step("a\ud800").observation == repr("a\ufffd") + " is wrong."


def test_an_action_of_a_megabyte_is_just_wrong(client):
    session = client.open()
    session.reset(seed=0, task="5")
    assert session.step("x" * 10**6).reward == 0.0


def test_batches_above_the_size_limit_are_split(client):
    sessions = client.open_many(12)
    client.reset_many([(session, 0, "5", None) for session in sessions])
    replies = client.step_many([(session, "x" * 2 * 10**6) for session in sessions])
    assert [reply.turn for reply in replies] == [1] * 12


def test_a_closed_session_takes_no_more_calls(client):
    session = client.open()
    session.close()
    with pytest.raises(BadRequest, match="closed"):
        session.reset(seed=0)


def test_a_session_that_expired_is_lost(serve):
    server = serve()
    with EnvClient(server.address) as client:
        session = client.open()
        session.reset(seed=0)
        server.host.table.shutdown()
        with pytest.raises(EnvironmentLost, match=r"open a new one \(at http"):
            session.step("1")
        with pytest.raises(EnvironmentLost):
            session.reset(seed=0)


def test_a_world_that_raises_is_an_environment_fault_and_the_session_goes_on(serve):
    server = serve(Trouble, env_id="tests/Trouble-v0")
    with EnvClient(server.address) as client:
        session = client.open()
        with pytest.raises(EnvironmentFault, match="did not start"):
            session.reset(task="broken")
        session.reset(task="fine")
        with pytest.raises(EnvironmentFault, match="ZeroDivisionError") as caught:
            session.step("raise")
        assert (caught.value.kind, caught.value.code) == ("environment_error", "environment_error")
        with pytest.raises(EpisodeOver):
            session.step("hello")
        session.reset(task="fine")
        assert session.step("hello").observation == "You said hello"
        with pytest.raises(BadRequest, match="no expert") as refused:
            session.expert_action()
        assert refused.value.code == "no_expert"


def test_a_server_that_is_not_there_is_lost_within_the_retries():
    with nobody() as place, EnvClient(f"http://{place}", retries=1) as client:
        with pytest.raises(EnvironmentLost, match="after 2 attempts") as caught:
            client.open()
        assert caught.value.code == "unreachable"


def test_the_time_limit_holds_for_the_whole_call():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with EnvClient(address, timeout_s=0.3) as client:
            with pytest.raises(EnvironmentLost, match=r"within 0.3 s") as caught:
                client.open()
            assert caught.value.code == "timeout"


class OneAnswer:
    """A raw server that gives the same bytes to everybody, and lists the paths."""

    def __init__(self, answer: bytes) -> None:
        self.calls: list[str] = []
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as request:
                self.calls.append(request.readline().split()[1].decode())
                length = 0
                while (line := request.readline()).strip():
                    name, _, value = line.partition(b":")
                    if name.lower() == b"content-length":
                        length = int(value)
                # What is left unread would reset the connection, and take the answer with it.
                request.read(length)
                connection.sendall(self._answer)

    def close(self) -> None:
        """Stop listening."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


def http_bytes(status: int, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


@pytest.mark.parametrize(
    ("answer", "calls"),
    [
        (http_bytes(502, b"bad gateway"), 3),
        (http_bytes(503, b"{}"), 3),
        (http_bytes(500, b"oops"), 1),
        (http_bytes(404, b"<html>"), 1),
        (http_bytes(200, b"hello"), 1),
        (http_bytes(200, b"[]"), 1),
        (
            http_bytes(302, b"").replace(b"\r\n\r\n", b"\r\nLocation: http://127.0.0.1:1/\r\n\r\n"),
            1,
        ),
        (b"", 3),
    ],
)
def test_only_connection_errors_and_gateways_are_tried_again(answer, calls):
    server = OneAnswer(answer)
    try:
        with EnvClient(server.address, retries=2) as client, pytest.raises(EnvironmentLost):
            client.open()
        # What may have been opened is closed by its key, in one call.
        expected = ["/v1/sessions"] * calls + ["/v1/close"] * (calls > 1)
        assert server.calls == expected
        server.calls.clear()

        async def ask() -> None:
            async with AsyncEnvClient(server.address, retries=2) as client:
                await client.open()

        with pytest.raises(EnvironmentLost):
            asyncio.run(ask())
        assert server.calls == expected
    finally:
        server.close()


def test_a_hosts_own_504_about_its_items_is_not_tried_again():
    body = b'[{"error": {"code": "deadline", "message": "too slow"}}]'
    server = OneAnswer(http_bytes(504, body))
    try:
        with EnvClient(server.address) as client, pytest.raises(EnvironmentFault):
            client.open()
        assert server.calls == ["/v1/sessions"]
    finally:
        server.close()


def test_the_token_is_sent(serve):
    server = serve(token="secret")
    with EnvClient(server.address, token="secret") as client:
        assert client.open().reset(seed=0).turn == 0
    with EnvClient(server.address) as client, pytest.raises(BadRequest) as caught:
        client.card()
    assert caught.value.code == "unauthorized"


@pytest.mark.parametrize("address", ["localhost:8000", "ftp://x", "", "http://"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(BadRequest, match="must look like http"):
        EnvClient(address)


def test_no_address_at_all_is_refused():
    with pytest.raises(BadRequest, match="at least one"):
        EnvClient([])


def test_sessions_are_spread_by_fewest_open(serve):
    first, second = serve(), serve()
    with EnvClient([first.address, second.address]) as client:
        sessions = client.open_many(5)
        assert sorted(len(s.host.table) for s in (first, second)) == [2, 3]
        client.close_many([s for s in sessions if s.address == first.address])
        left = len(second.host.table)
        assert len(first.host.table) == 0
        client.open_many(left + 2)
        assert len(first.host.table) == len(second.host.table) == left + 1


def test_a_full_server_sends_sessions_to_the_other(serve):
    small, big = serve(max_sessions=1), serve()
    with EnvClient([small.address, big.address]) as client:
        client.open_many(6)
        assert (len(small.host.table), len(big.host.table)) == (1, 5)


def test_when_every_server_is_full_nothing_is_left_open(serve):
    server = serve(max_sessions=3)
    with EnvClient(server.address) as client:
        with pytest.raises(BadRequest, match="all 3 sessions are taken"):
            client.open_many(4)
        assert len(server.host.table) == 0


def test_servers_of_different_environments_are_refused(serve):
    guess, trouble = serve(), serve(Trouble, env_id="tests/Trouble-v0")
    client = EnvClient([guess.address, trouble.address])
    with client, pytest.raises(BadRequest, match="must serve the same"):
        client.card()


def test_a_dead_server_is_skipped_and_its_sessions_are_lost(serve):
    dying, living = serve(), serve()
    with EnvClient([dying.address, living.address], retries=0) as client:
        sessions = client.open_many(4)
        client.reset_many([(session, 0, "5", None) for session in sessions])
        dying.stop()
        replies = client.step_many([(session, "1") for session in sessions])
        for session, reply in zip(sessions, replies, strict=True):
            lost = session.address == dying.address
            assert isinstance(reply, EnvironmentLost if lost else StepReply)
        assert {session.address for session in client.open_many(4)} == {living.address}


def test_a_call_that_was_interrupted_leaves_the_session_lost(make_host):
    class Interrupted(InProcessTransport):
        def send(self, call: Call) -> Answer:
            if call.path == "/v1/step":
                super().send(call)
                raise KeyboardInterrupt
            return super().send(call)

    client = EnvClient(Interrupted(make_host()))
    session = client.open()
    session.reset(seed=0, task="5")
    with pytest.raises(KeyboardInterrupt):
        session.step("1")
    with pytest.raises(EnvironmentLost, match="was not answered") as caught:
        session.step("5")
    assert caught.value.code == "interrupted"
    with pytest.raises(EnvironmentLost):
        session.reset(seed=0)


def test_threads_may_share_a_client(client):
    sessions = client.open_many(8)

    def play(index: int) -> float:
        sessions[index].reset(seed=index, task=str(index + 1))
        for guess in range(1, 9):
            reply = sessions[index].step(str(guess))
            if reply.terminated:
                return reply.info["turn"]
        return -1

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(play, range(8))) == list(range(1, 9))


async def play_async(client: AsyncEnvClient, task: str) -> int:
    session = await client.open()
    await session.reset(seed=0, task=task)
    turn = 0
    while True:
        turn += 1
        assert await session.available_actions() == list("123456789")
        reply = await session.step(str(turn))
        if reply.terminated:
            await session.close()
            return turn


def counted(address: str, name: str) -> int:
    page = requests.get(address + "/metrics", timeout=60).text
    return next(int(line.split()[-1]) for line in page.splitlines() if line.startswith(name))


def test_a_hundred_coroutines_step_in_one_request_a_turn(serve):
    server = serve()
    tasks = [str(1 + i % 9) for i in range(100)]

    async def play_all() -> list[int]:
        async with AsyncEnvClient(server.address) as client:
            return await asyncio.gather(*(play_async(client, task) for task in tasks))

    assert asyncio.run(play_all()) == [int(task) for task in tasks]
    for route, calls in {"sessions": 1, "reset": 1, "step": 9}.items():
        assert counted(server.address, f'agentgym_requests_total{{route="/v1/{route}"}}') == calls
    assert counted(server.address, "agentgym_steps_total") == sum(map(int, tasks))
    assert len(server.host.table) == 0


def test_one_client_serves_several_event_loops_in_turn(serve):
    client = AsyncEnvClient(serve().address)

    async def play(task: str) -> int:
        async with client:
            return await play_async(client, task)

    assert asyncio.run(play("2")) == 2
    assert asyncio.run(play("3")) == 3


def test_coroutines_work_in_process_too(make_host):
    client = AsyncEnvClient(AsyncInProcessTransport(make_host()))

    async def play() -> None:
        assert await play_async(client, "4") == 4
        sessions = await client.open_many(2)
        await client.reset_many([(session, 0, "5", None) for session in sessions])
        replies = await client.step_many([(session, "5") for session in sessions])
        assert [reply.terminated for reply in replies] == [True, True]
        assert (await client.card()).env == "tests/Guess-v0"
        assert (await client.tasks("test")).tasks == ["7", "8", "9"]
        assert (await client.task_set()).splits == Guess.tasks.splits
        await client.close()

    asyncio.run(play())


def test_an_exception_reaches_only_the_coroutine_that_caused_it(serve):
    server = serve()

    async def play() -> None:
        async with AsyncEnvClient(server.address) as client:
            sessions = await client.open_many(3)
            results = await asyncio.gather(
                *(s.reset(seed=0, task=t) for s, t in zip(sessions, "5x6", strict=True)),
                return_exceptions=True,
            )
            assert [type(result).__name__ for result in results] == [
                "ResetReply", "UnknownTask", "ResetReply",
            ]  # fmt: skip
            assert (await sessions[0].expert_action()) == "5"
            with pytest.raises(EpisodeOver):
                await sessions[1].expert_action()

    asyncio.run(play())


def test_every_episode_of_a_dead_server_fails_and_the_others_go_on(serve):
    dying, living = serve(), serve()

    async def play() -> None:
        async with AsyncEnvClient([dying.address, living.address], retries=0) as client:
            sessions = await client.open_many(6)
            await asyncio.gather(*(session.reset(seed=0, task="5") for session in sessions))
            await asyncio.to_thread(dying.stop)
            replies = await asyncio.gather(
                *(session.step("5") for session in sessions), return_exceptions=True
            )
            for session, reply in zip(sessions, replies, strict=True):
                lost = session.address == dying.address
                assert isinstance(reply, EnvironmentLost if lost else StepReply)
            assert len({id(reply) for reply in replies}) == 6
            assert (await client.open()).address == living.address
            for session in sessions:
                await session.close()

    asyncio.run(play())


def test_a_cancelled_step_leaves_the_turns_in_order(serve):
    server = serve()

    async def play() -> None:
        async with AsyncEnvClient(server.address) as client:
            session, other = await client.open_many(2)
            await session.reset(seed=0, task="5")
            await other.reset(seed=0, task="5")
            pending = asyncio.create_task(session.step("1"))
            await asyncio.sleep(0)
            pending.cancel()
            assert (await other.step("1")).turn == 1
            reply = await session.step("2")
            assert reply.observation == "'2' is wrong."

    asyncio.run(play())


class Loses(InProcessTransport):
    """Calls a host, and loses the first answers of `/v1/sessions`."""

    def __init__(self, handler, failures):
        super().__init__(handler)
        self.failures = list(failures)

    def send(self, call: Call) -> Answer:
        """The answer, unless it is lost."""
        answer = super().send(call)
        if call.path == "/v1/sessions" and self.failures:
            raise self.failures.pop(0)
        return answer


@pytest.mark.parametrize("code", ["unanswered", "timeout"])
def test_what_a_server_opened_without_an_answer_is_closed(make_host, code):
    host = make_host()
    lost = [EnvironmentLost("no answer", code)] * 2
    with EnvClient(Loses(host, lost)) as client:
        if code == "timeout":  # all the time that there was
            with pytest.raises(EnvironmentLost):
                client.open_many(3)
            assert len(host.table) == 0
            with pytest.raises(EnvironmentLost):
                client.open()
        assert len(client.open_many(3)) == len(host.table) == 3


def test_an_interrupted_opening_leaves_no_session(make_host):
    host = make_host()
    client = EnvClient(Loses(host, [KeyboardInterrupt()]))
    with pytest.raises(KeyboardInterrupt):
        client.open_many(3)
    assert len(host.table) == 0


def test_calls_that_open_sessions_fail_alone(serve):
    server = serve(max_sessions=3)

    async def play() -> list[str]:
        async with AsyncEnvClient(server.address) as client:
            found = await asyncio.gather(*(client.open() for _ in range(5)), return_exceptions=True)
            return [type(one).__name__ for one in found]

    assert asyncio.run(play()) == ["AsyncSession"] * 3 + ["BadRequest"] * 2


def test_a_cancelled_opening_leaves_no_session_however_far_it_was(serve):
    server = serve()

    async def play(passes: int, many: bool) -> None:
        async with AsyncEnvClient(server.address) as client:
            await client.card()  # the connection stands
            opening = asyncio.create_task(client.open_many(3) if many else client.open())
            for _ in range(passes):
                await asyncio.sleep(0.0005 if passes > 5 else 0)
            was_done = opening.done()
            opening.cancel()
            (found,) = await asyncio.gather(opening, return_exceptions=True)
            assert was_done or isinstance(found, asyncio.CancelledError)
            if was_done:
                for session in found if many else [found]:
                    await session.close()
        assert len(server.host.table) == 0, (passes, many)

    for passes in range(12):
        for many in (False, True):
            asyncio.run(play(passes, many))


@pytest.mark.parametrize("many", [False, True])
def test_a_loop_that_ends_while_sessions_open_leaves_none(make_host, many):
    host = make_host()

    class Slow(AsyncInProcessTransport):
        async def send(self, call: Call) -> Answer:
            answer = await super().send(call)
            if call.path == "/v1/sessions":
                await asyncio.Event().wait()
            return answer

    async def play() -> None:
        client = AsyncEnvClient(Slow(host))
        opening = asyncio.ensure_future(client.open_many(3) if many else client.open())
        while not len(host.table):
            await asyncio.sleep(0)
        assert not opening.done()

    asyncio.run(play())
    assert len(host.table) == 0


def test_a_cancelled_close_closes(serve):
    server = serve()

    async def play() -> None:
        async with AsyncEnvClient(server.address) as client:
            session = await client.open()
            closing = asyncio.create_task(session.close())
            await asyncio.sleep(0)
            closing.cancel()
        assert len(server.host.table) == 0

    asyncio.run(play())


def test_turns_and_resets_state_their_episode(make_host):
    class Kept(InProcessTransport):
        bodies: list[tuple[str, bytes]] = []  # noqa: RUF012

        def send(self, call: Call) -> Answer:
            self.bodies.append((call.path, call.body))
            return super().send(call)

    with EnvClient(Kept(make_host())) as client:
        session = client.open()
        session.reset(seed=0, task="5")
        session.step("4")
        with pytest.raises(UnknownTask):
            session.reset(task="x")
        session.step("3")
        session.reset(seed=0, task="5")
        session.step("2")
    kinds = {"/v1/reset": ResetRequest, "/v1/step": StepRequest}
    sent = [decode(body, list[kinds[path]])[0] for path, body in Kept.bodies if path in kinds]
    assert [(type(one), one.episode) for one in sent] == [
        (ResetRequest, 1), (StepRequest, 1), (ResetRequest, 2), (StepRequest, 1),
        (ResetRequest, 3), (StepRequest, 3),
    ]  # fmt: skip


def test_calls_are_cut_by_size_and_count_and_keep_their_order():
    items = [StepRequest("s", turn, "x" * 10**6) for turn in range(10)]
    calls = list(batch_calls("/v1/step", items))
    assert [count for _, count in calls] == [4, 4, 2]
    found = [item for call, _ in calls for item in decode(call.body, list[StepRequest])]
    assert found == items
    assert [n for _, n in batch_calls("/v1/close", [WireError("a", "b")] * 5000)] == [4096, 904]
    assert list(batch_calls("/v1/step", [])) == []


def test_every_error_code_becomes_an_exception_of_ours():
    kinds = {code: type(to_exception(WireError(code, "m"), "a")).__name__ for code in STATUS}
    assert kinds == {
        "bad_request": "BadRequest", "unauthorized": "BadRequest",
        "unknown_session": "EnvironmentLost", "unknown_route": "BadRequest",
        "wrong_method": "BadRequest",
        "unknown_task": "UnknownTask", "unknown_split": "UnknownSplit",
        "stale_turn": "BadRequest", "episode_over": "EpisodeOver", "no_expert": "BadRequest",
        "too_large": "BadRequest", "too_many_sessions": "BadRequest",
        "too_many_items": "BadRequest", "unsupported_media_type": "BadRequest",
        "unknown_host": "BadRequest", "foreign_origin": "BadRequest",
        "environment_error": "EnvironmentFault", "deadline": "EnvironmentFault",
        "shutting_down": "EnvironmentLost",
    }  # fmt: skip


def test_an_answer_of_the_wrong_length_is_a_loss():
    (only,) = read_batch(Answer(200, b"[]"), StepReply, 1, "http://x")
    assert isinstance(only, EnvironmentLost) and "0 items to 1" in str(only)

"""`server="agentgym+http://..."` drives AgentGym's own servers."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from agentgym_env.errors import BadRequest, EnvironmentFault, EnvironmentLost, EpisodeOver
from agentgym_servers.worlds.textcraft.env import original_task
from hosting import Served
from recordings import recorded

TEXTCRAFT = "agentgym/TextCraft-v0"


class Replay:
    """A server that gives recorded answers and keeps what it was asked."""

    def __init__(self, answers: list[tuple[int, bytes]]) -> None:
        self.asked: list[tuple[str, dict]] = []
        replay = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                replay.asked.append((self.path, json.loads(body)))
                status, answer = answers[len(replay.asked) - 1]
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args) -> None:
                """Keep quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"agentgym+http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def replay():
    started = []

    def start(*answers) -> Replay:
        coded = [a if isinstance(a, tuple) else (200, json.dumps(a).encode()) for a in answers]
        started.append(Replay(coded))
        return started[-1]

    yield start
    for server in started:
        server.stop()


def make(server: str, **kwargs):
    return gymnasium.make(TEXTCRAFT, server=server, **kwargs)


@pytest.mark.parametrize("case", ["task-0", "task-7", "task-350", "task-420"])
def test_recorded_episodes_are_played_call_for_call(replay, case):
    rows = [r for r in recorded("textcraft") if r["case"] == case and r["via"] == "client"]
    server = replay(*(row["response"] for row in rows))
    env = make(server.address, max_episode_steps=-1)
    observation, _ = env.reset(options={"task": case.removeprefix("task-")})
    assert observation == rows[1]["response"]["observation"]
    for row in rows[2:-1]:
        told = env.step(row["request"]["action"])
        theirs = row["response"]
        assert told[:4] == (theirs["observation"], theirs["reward"], theirs["done"], False)
    assert told[4]["success"] is rows[-2]["response"]["done"]
    env.close()
    assert [path for path, _ in server.asked] == [row["path"] for row in rows]
    assert [body for _, body in server.asked[1:]] == [row["request"] for row in rows[1:]]


@pytest.fixture(scope="module")
def own_server(worlds_folder):
    """Our own server, speaking their protocol."""
    served = Served(worlds_folder, "textcraft", "--protocol", "agentgym", "--port", "0")
    yield "agentgym+" + served.address()
    served.stop()


def test_it_is_an_environment_like_any_other(own_server):
    env = make(own_server)
    assert len(env.unwrapped.tasks) == 544 and "craft" in env.unwrapped.instruction
    observation, info = env.reset(seed=0, options={"task": "0"})
    assert observation.endswith("Goal: craft acacia planks.") and info["task"] == "0"
    env.step("get 1 acacia logs")
    *_, terminated, truncated, info = env.step("craft 4 acacia planks using 1 acacia logs")
    assert (terminated, truncated) == (True, False)
    assert info == {"task": "0", "turn": 2, "success": True, "score": 1.0}
    with pytest.raises(EpisodeOver):
        env.step("inventory")
    env.close()
    check_env(make(own_server).unwrapped)


def test_a_seed_chooses_the_task_as_everywhere(own_server):
    env = make(own_server)
    tasks = [env.reset(seed=seed)[1]["task"] for seed in (1, 1, 2)]
    assert tasks[0] == tasks[1] != tasks[2]
    goal = env.reset(seed=1)[0].rpartition("craft ")[2]
    assert goal == f"{original_task(int(tasks[0]))}."
    env.close()


def test_a_vector_is_made_one_by_one(own_server):
    envs = gymnasium.make_vec(TEXTCRAFT, num_envs=2, vectorization_mode="sync", server=own_server)
    envs.reset(seed=0)
    assert envs.step(["inventory", "get 1 oak logs"])[0] == (
        "Inventory: You are not carrying anything.",
        "Got 1 oak logs",
    )
    envs.close()
    with pytest.raises(BadRequest, match="vectorization_mode='sync'"):
        gymnasium.make_vec(TEXTCRAFT, num_envs=2, server=own_server)


CREATED = {"id": 0, "observation": "x", "done": False, "reward": 0}


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        ({"error": "The id 0 is not valid."}, EnvironmentLost, "The id 0 is not valid"),
        ({"error": "list index out of range"}, EnvironmentFault, "list index out of range"),
        ((500, b"Internal Server Error"), EnvironmentFault, "status 500"),
        ((200, b"<html>"), EnvironmentLost, "does not answer like an AgentGym server"),
        ({"reward": 0, "done": False}, EnvironmentLost, "observation is None"),
        ({"observation": "x", "done": False}, EnvironmentLost, "reward is None"),
    ],
)
def test_what_goes_wrong_is_named_and_never_a_reward(replay, answer, error, message):
    server = replay(CREATED, CREATED, answer, CREATED, CREATED, True)
    env = make(server.address)
    env.reset(options={"task": "0"})
    with pytest.raises(error, match=message):
        env.step("inventory")
    with pytest.raises(EpisodeOver):
        env.step("inventory")
    env.reset(options={"task": "0"})
    env.close()


def test_a_step_is_never_sent_twice(replay):
    server = replay(CREATED, CREATED, (503, b"busy"))
    env = make(server.address)
    env.reset(options={"task": "0"})
    with pytest.raises(EnvironmentLost):
        env.step("get 1 oak logs")
    assert [path for path, _ in server.asked] == ["/create", "/reset", "/step"]


def test_a_world_that_agentgym_does_not_have_is_refused():
    with pytest.raises(BadRequest, match="AgentGym has no tests/Guess-v0"):
        gymnasium.make("tests/Guess-v0", server="agentgym+http://127.0.0.1:1")


BABYAI = [
    (["turn left", "turn right", "go to red ball 1"], 0.9),
    (["pick up grey key 1"], 0.0),
]
SCIWORLD = [(["look around", "focus on air"], -1.0)]


@pytest.mark.parametrize(
    ("name", "task", "episodes"),
    [
        ("BabyAI", "0", BABYAI),
        pytest.param("SciWorld", "3836", SCIWORLD, marks=pytest.mark.slow),
    ],
)
def test_the_other_worlds_are_driven_as_ours_are(run, name, task, episodes):
    """Against our own server in their protocol, whose exchanges are held against recorded ones."""
    server = "agentgym+" + run(name.lower(), "--protocol", "agentgym", "--port", "0").address()
    env = gymnasium.make(f"agentgym/{name}-v0", server=server)
    own = gymnasium.make(
        f"agentgym/{name}-v0", server="inprocess", **({"legacy": True} if name == "BabyAI" else {})
    )
    alias = f"{name.lower()}_{task}"
    for actions, score in episodes:
        assert env.reset(options={"task": task})[0] == own.reset(options={"task": alias})[0]
        for action in actions:
            # AgentGym's own prompt says `pick up`, its code knows `pickup`; our client translates.
            theirs, ours = env.step(action), own.step(action.replace("pick up", "pickup"))
            assert theirs[0] == ours[0] and "not recognized" not in theirs[0]
            assert theirs[1] == pytest.approx(ours[1]) and theirs[2:4] == ours[2:4]
            assert theirs[4]["success"] == ours[4]["success"]
        assert theirs[4]["score"] == pytest.approx(score, abs=0.1)
    env.close()
    own.close()

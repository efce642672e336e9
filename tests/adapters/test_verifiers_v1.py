"""verifiers' own runner plays our environments as a v1 taskset."""

import asyncio
import json

import pytest

from agentgym_adapters.starts import starts_of
from agentgym_env import register
from hosting import GUESS, TROUBLE
from tests.adapters.expert_endpoint import ExpertEndpoint
from tests.adapters.native_road import TEXTCRAFT, Played, expert_episodes_of
from worlds import Guess, Trouble

vf = pytest.importorskip(
    "verifiers.v1", reason="verifiers lives in .venv-adapters: make test-adapters"
)
runner = pytest.importorskip("verifiers.v1.cli.eval.runner")
EvalConfig = pytest.importorskip("verifiers.v1.configs.cli.eval").EvalConfig

pytestmark = [
    pytest.mark.adapters,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


@pytest.fixture
def endpoint():
    """Starts an endpoint for episodes."""
    started = []

    def start(episodes, thought="") -> ExpertEndpoint:
        started.append(ExpertEndpoint(episodes, thought))
        return started[-1]

    yield start
    for one in started:
        one.stop()


def evaluate(url: str, folder, taskset: dict, **env):
    """What `vf-eval agentgym-adapters --no-serve --no-push` does."""
    in_process = {"serve": None} if "serve" in EvalConfig.model_fields else {}
    config = EvalConfig.model_validate(
        {
            **in_process,
            "env": {"taskset": {"id": "agentgym-adapters", **taskset}, **env},
            "model": "expert",
            "client": {"type": "eval", "base_url": url, "api_key_var": "NO_SUCH_KEY"},
            "rich": None, "push": False, "output_dir": str(folder),
        }
    )  # fmt: skip
    return asyncio.run(runner.run_eval(config))


def test_twenty_expert_episodes_give_the_rewards_of_the_native_road(endpoint, tmp_path):
    starts = starts_of(TEXTCRAFT, "test", 20, 5)
    native = expert_episodes_of(starts.rows)
    expert = endpoint(native)
    taskset = {"env": TEXTCRAFT, "split": "test", "tasks": 20, "seed": 5}
    episodes = evaluate(expert.url, tmp_path, taskset)
    assert len(episodes) == 20 and all(episode.ok for episode in episodes)
    played = {e.task.data.env_task: e.traces[0] for e in episodes}
    for one in native:
        trace = played[one.task]
        assert trace.info["agentgym"]["rewards"] == list(one.rewards)
        assert trace.info["agentgym"]["terminated"] is True
        assert trace.info["agentgym"]["last_observation"] == one.observations[-1]
        assert trace.reward == sum(one.rewards) == 1.0
        assert trace.metrics == {"success": 1.0, "score": 1.0, "truncated": 0.0}
        assert [m.content for m in trace.assistant_messages] == list(one.actions)
        told = [m.content for m in trace.messages if m.role == "user"]
        assert told == [one.first, *one.observations[:-1]]
        assert trace.messages[0].content == starts.instruction
    (traces,) = tmp_path.rglob("traces.jsonl")
    assert len(traces.read_text().splitlines()) == 20


def test_reasoning_of_the_model_is_no_action(endpoint, tmp_path):
    starts = starts_of(TEXTCRAFT, "test", 3, 5)
    native = expert_episodes_of(starts.rows)
    expert = endpoint(native, "<think>\nI could get 9 diamonds.\n</think>\n\n")
    taskset = {"env": TEXTCRAFT, "split": "test", "tasks": 3, "seed": 5}
    episodes = evaluate(expert.url, tmp_path, taskset)
    assert [episode.traces[0].reward for episode in episodes] == [1.0] * 3


def guessed(served, guesses: list[str]) -> list[Played]:
    """Guess's only start, with other actions than the expert's."""
    task, seed = starts_of(GUESS, "train", 1, 0, server=served.address).rows[0]
    env = Guess()
    first, _ = env.reset(seed=seed, options={"task": task})
    return [Played(task, seed, first, tuple(guesses), (), ())]


def test_the_horizon_ends_an_episode_and_its_session_is_closed(endpoint, tmp_path, serve):
    server = serve()
    expert = endpoint(guessed(server, ["x", "y", "z"]))
    taskset = {"env": GUESS, "tasks": 1, "server": [server.address]}
    (episode,) = evaluate(expert.url, tmp_path, taskset, horizon=2)
    (trace,) = episode.traces
    assert episode.ok and trace.reward == 0.0 and len(expert.requests) == 2
    assert trace.metrics == {"success": 0.0, "score": 0.0, "truncated": 1.0}
    assert len(server.host.table) == 0


def test_a_limit_of_verifiers_own_ends_it_too(endpoint, tmp_path, serve):
    server = serve()
    expert = endpoint(guessed(server, ["x", "y", "z"]))
    taskset = {"env": GUESS, "tasks": 1, "server": [server.address]}
    (episode,) = evaluate(expert.url, tmp_path, taskset, player={"max_turns": 1})
    (trace,) = episode.traces
    assert trace.stop_condition == "max_turns" and trace.is_truncated
    assert trace.info["agentgym"]["rewards"] == [0.0] and len(server.host.table) == 0


def test_a_lost_episode_is_verifiers_error_and_no_reward(endpoint, tmp_path, serve):
    server = serve(Trouble, env_id=TROUBLE)
    (start,) = starts_of(TROUBLE, "train", 2, 0, server=server.address).rows[:1]
    expert = endpoint([Played(*start, "What now?", ("raise",), (), ())])
    taskset = {"env": TROUBLE, "tasks": 2, "server": [server.address]}
    episodes = evaluate(expert.url, tmp_path, taskset)
    told = {e.task.data.env_task: e for e in episodes}
    assert [e.ok for e in episodes] == [False, False]
    assert "the world did not start" in told["broken"].errors[-1].message
    assert told["broken"].errors[-1].type == "EnvError" and not told["broken"].traces
    (trace,) = told["fine"].traces
    assert "by zero" in trace.last_error.message and not trace.rewards
    assert len(server.host.table) == 0


def test_a_policy_that_cannot_be_asked_is_verifiers_error(endpoint, tmp_path, serve):
    server = serve()
    expert = endpoint([Played("1", 0, "another beginning", (), (), ())])
    taskset = {"env": GUESS, "tasks": 1, "server": [server.address]}
    (episode,) = evaluate(expert.url, tmp_path, taskset)
    assert not episode.ok
    assert "knows no such episode" in json.dumps([e.message for e in episode.traces[0].errors])
    assert len(server.host.table) == 0


def test_equal_starts_have_equal_keys():
    register("tests/SameGuess-v0", "worlds:Guess")
    keys = []
    for _ in range(2):
        config = vf.taskset_config_type("agentgym-adapters")(
            id="agentgym-adapters", env="tests/SameGuess-v0", tasks=3
        )
        keys.append([task.key for task in vf.load_taskset(config)])
    assert keys[0] == keys[1] and len(set(keys[0])) == 3

"""verifiers' own v0 runner plays our environments, and its environments are ours."""

import asyncio
import importlib
import signal

import pytest

from agentgym_adapters.starts import starts_of
from agentgym_env.errors import EnvironmentFault
from hosting import GUESS, TROUBLE
from tests.adapters.expert_endpoint import ExpertEndpoint
from tests.adapters.native_road import TEXTCRAFT, Played, expert_episodes_of
from worlds import Guess, Trouble

pytest.importorskip("verifiers", reason="verifiers lives in .venv-adapters: make test-adapters")
vf = pytest.importorskip(
    "verifiers.legacy", reason="this verifiers has no v0 any more: pip install 'verifiers<0.4'"
)

pytestmark = [
    pytest.mark.adapters,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]
COLUMNS = ["agentgym_rewards", "agentgym_info", "trajectory"]


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


def verifiers_text():
    """Importable only where verifiers is."""
    return importlib.import_module("agentgym_adapters.verifiers_text")


def evaluate(url: str, **arguments):
    """What `vf-eval agentgym-adapters` does."""
    env = vf.load_environment("agentgym-adapters", **arguments)
    client = vf.ClientConfig(api_key_var="NO_SUCH_KEY", api_base_url=url)
    try:
        told = env.evaluate_sync(
            client=client, model="expert", num_examples=-1, rollouts_per_example=1,
            state_columns=COLUMNS, max_concurrent=8,
        )  # fmt: skip
    finally:
        asyncio.run(env._teardown())
    return told["outputs"]


def test_twenty_expert_episodes_give_the_rewards_of_the_native_road(endpoint):
    starts = starts_of(TEXTCRAFT, "test", 20, 5)
    native = expert_episodes_of(starts.rows)
    outputs = evaluate(endpoint(native).url, env=TEXTCRAFT, n=20, seed=5)
    assert len(outputs) == 20
    played = {output["info"]["env_task"]: output for output in outputs}
    for one in native:
        output = played[one.task]
        assert output["agentgym_rewards"] == list(one.rewards)
        assert [step["reward"] for step in output["trajectory"]] == list(one.rewards)
        assert output["reward"] == sum(one.rewards) == 1.0
        assert output["metrics"]["success"] == 1.0 and not output["is_truncated"]
        said = [m["content"] for m in output["completion"] if m["role"] == "assistant"]
        assert said == list(one.actions)
        assert output["completion"][-1]["content"] == one.observations[-1]


def test_reasoning_of_the_model_is_no_action(endpoint):
    starts = starts_of(TEXTCRAFT, "test", 3, 5)
    native = expert_episodes_of(starts.rows)
    url = endpoint(native, "<think>\nI could get 9 diamonds.\n</think>\n\n").url
    outputs = evaluate(url, env=TEXTCRAFT, n=3, seed=5)
    assert [output["reward"] for output in outputs] == [1.0] * 3


def test_the_horizon_is_a_truncation_whose_last_action_still_counts(endpoint, serve):
    server = serve()
    task, seed = starts_of(GUESS, "test", 1, 0, server=server.address).rows[0]
    first, _ = Guess().reset(seed=seed, options={"task": task})
    expert = endpoint([Played(task, seed, first, ("x", "y", "z"), (), ())])
    (output,) = evaluate(expert.url, env=GUESS, n=1, server=[server.address], max_turns=2)
    assert output["agentgym_rewards"] == [0.0, 0.0] and output["reward"] == 0.0
    assert output["is_truncated"] and len(expert.requests) == 2
    assert len(server.host.table) == 0


def test_a_lost_episode_is_verifiers_infra_error(endpoint, serve):
    server = serve(Trouble, env_id=TROUBLE)
    expert = endpoint([Played("fine", 0, "What now?", ("raise",), (), ())])
    outputs = evaluate(
        expert.url,
        env=TROUBLE,
        n=2,
        server=[server.address],
        split="train",
        eval={"split": "train"},
    )
    told = {output["info"]["env_task"]: output["error"] for output in outputs}
    assert told["fine"]["error"] == told["broken"]["error"] == "InfraError"
    assert "by zero" in told["fine"]["error_chain_repr"]
    assert "the world did not start" in told["broken"]["error_chain_repr"]
    assert len(server.host.table) == 0


def test_a_v0_environment_is_ours_and_twenty_expert_episodes_pay_as_natively():
    env = verifiers_text().text_class("agentgym-adapters", env=TEXTCRAFT, n=20, seed=5)()
    native = expert_episodes_of(starts_of(TEXTCRAFT, "test", 20, 5).rows)
    assert len(env.tasks.split("test")) == 20 and "You craft items" in env.instruction
    for number, one in enumerate(native):
        assert env.reset(seed=0, options={"task": f"test/{number}"})[0] == one.first
        rewards = []
        for action, seen in zip(one.actions, one.observations, strict=True):
            observation, reward, ended, _, info = env.step(action)
            assert observation == seen
            rewards.append(reward)
        assert rewards == list(one.rewards) and ended and info["success"]
    env.close()


def sum_of(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def load_environment(kind: str) -> object:
    """Environments of verifiers' own kinds; this module is their package."""
    rows = pytest.importorskip("datasets").Dataset.from_list(
        [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(3)]
    )

    def right(completion, answer) -> float:
        return float(completion[-1]["content"].strip() == answer)

    rubric = vf.Rubric(funcs=[right])
    if kind == "single":
        return vf.SingleTurnEnv(dataset=rows, rubric=rubric, system_prompt="Add.")
    return vf.ToolEnv(dataset=rows, rubric=rubric, tools=[sum_of], max_turns=5)


def test_a_single_turn_environment_ends_with_the_first_answer():
    before = signal.getsignal(signal.SIGTERM)
    env = verifiers_text().text_class(__name__.rpartition(".")[2], kind="single")()
    assert signal.getsignal(signal.SIGTERM) is before, "verifiers must not take our signals"
    assert env.instruction == "Add." and env.tasks.splits == {
        "train": ("train/0", "train/1", "train/2")
    }
    assert env.reset(options={"task": "train/1"})[0] == "1 + 1?"
    assert env.step("2")[1:3] == (1.0, True) and env.success()
    env.reset(options={"task": "train/2"})
    assert env.step("2")[1:3] == (0.0, True) and not env.success()
    env.close()


def test_tools_are_called_by_json_and_anything_else_is_the_answer():
    env = verifiers_text().text_class(__name__.rpartition(".")[2], kind="tool")()
    assert "sum_of: Add two numbers." in env.instruction
    env.reset(options={"task": "train/2"})
    assert env.step('{"name": "sum_of", "arguments": {"a": 2, "b": 1}}')[:3] == ("3", 0.0, False)
    assert env.step('{"name": "sum_of", "arguments": {"a": 2}}')[2] is False
    assert env.step("3")[1:3] == (1.0, True)
    env.close()


def test_an_error_of_the_environments_loses_the_episode_and_a_new_one_can_begin(serve):
    server = serve(Trouble, env_id=TROUBLE)
    env = verifiers_text().text_class(
        "agentgym-adapters", env=TROUBLE, split="train", eval={"split": "train"}, n=2,
        server=[server.address],
    )()  # fmt: skip
    rows = starts_of(TROUBLE, "train", 2, 0, server=server.address).rows
    fine = next(f"train/{i}" for i, (task, _) in enumerate(rows) if task == "fine")
    env.reset(options={"task": fine})
    with pytest.raises(EnvironmentFault, match="by zero"):
        env.step("raise")
    assert env.reset(options={"task": fine})[0] == "What now?"
    assert env.step("hello")[0] == "You said hello"
    env.close()
    assert len(server.host.table) == 0, "an episode given up is cleaned up by verifiers"

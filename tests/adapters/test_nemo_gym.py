"""`--protocol nemo-gym` call by call, as its `gymnasium_agent` makes them."""

from __future__ import annotations

import json
import uuid

import pytest
import requests
from native_road import expert_episodes

from agentgym_adapters.nemo_gym_wire import TOOL_SCHEMA, dataset_rows
from hosting import Clock, Served, sessions_become
from worlds import Guess, Trouble

EPISODES = expert_episodes(6)
PARAMS = {"responses_create_params": {"input": [{"role": "user", "content": "play"}]}}


class Agent:
    """Makes the calls of one rollout: the cookies of each answer go into the next call."""

    def __init__(self, address: str, prefix: str = "") -> None:
        self.address = address + prefix
        self.cookies: dict[str, str] = {}
        self.idempotent = False

    def post(self, path: str, body: object, status: int = 200) -> dict:
        answer = requests.post(self.address + path, json=body, cookies=self.cookies, timeout=60)
        assert answer.status_code == status, answer.text
        self.cookies.update(answer.cookies)
        return answer.json()

    def reset(self, **row) -> dict:
        told = self.post("/reset", {**PARAMS, **row})
        self.idempotent = told["info"]["supports_step_idempotency"]
        return told

    def step(self, *output: dict | str, request: str | None = None, status: int = 200) -> dict:
        items = [text_item(item) if isinstance(item, str) else item for item in output]
        body = {**PARAMS, "response": {"id": "r", "object": "response", "output": items}}
        if self.idempotent:
            body["_ng_step_request_id"] = request or uuid.uuid4().hex
        return self.post("/step", body, status)


def text_item(text: str) -> dict:
    return {
        "id": "m", "type": "message", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }  # fmt: skip


def call_item(action: object, name: str = "act", number: int = 1) -> dict:
    arguments = action if isinstance(action, str) else json.dumps(action)
    return {
        "type": "function_call", "call_id": f"call-{number}", "name": name, "arguments": arguments,
    }  # fmt: skip


@pytest.fixture(scope="module")
def textcraft(worlds_folder):
    """The address of the command's server; each test leaves it without a session."""
    served = Served(worlds_folder, "textcraft", "--protocol", "nemo-gym", "--port", "0")
    yield served.address()
    served.stop()


@pytest.mark.parametrize("how", ["text", "react", "function"])
def test_expert_episodes_are_paid_as_on_the_native_road(textcraft, how):
    address = textcraft
    for episode in EPISODES:
        agent = Agent(address)
        told = agent.reset(
            task=episode.task,
            seed=episode.seed,
            action_format="react" if how == "react" else "plain",
        )
        assert told["observation"] == episode.first
        replies = []
        for action in episode.actions:
            if how == "function":
                replies.append(agent.step(call_item({"action": action})))
            else:
                form = "Thought:\nyes\n\nAction:\n{}" if how == "react" else "{}"
                replies.append(agent.step(form.format(action)))
        assert [reply["reward"] for reply in replies] == list(episode.rewards)
        ends = [reply["terminated"] for reply in replies]
        assert ends == [False] * (len(replies) - 1) + [True]
        if how == "function":
            outputs = [reply["info"]["tool_outputs"] for reply in replies]
            told = [{"call_id": "call-1", "output": text} for text in episode.observations]
            assert outputs == [[output] for output in told]
            assert [reply["observation"] for reply in replies[:-1]] == [None] * (len(replies) - 1)
        else:
            assert [reply["observation"] for reply in replies] == list(episode.observations)
        assert replies[-1]["info"]["success"] is True
        assert agent.post("/close", {}) == {"closed": True}
    assert sessions_become(address, 0)


def test_an_episode_ends_its_session_and_a_forgotten_one_is_reaped(speak):
    clock = Clock()
    address = speak("nemo-gym", Guess, clock=clock)
    agent = Agent(address)
    told = agent.reset(task="5", seed=0)
    assert told["info"]["supports_explicit_close"] is True and told["info"]["seed"] == 0
    assert told["info"]["instruction"].startswith("Guess the number")
    assert agent.step("5")["terminated"] is True
    assert sessions_become(address, 0)
    forgotten = Agent(address)
    forgotten.reset(task="5")
    clock.now += 3600
    assert sessions_become(address, 0)
    forgotten.step("5", status=404)


def test_a_repeated_step_gets_the_stored_answer_and_moves_nothing(speak):
    agent = Agent(speak("nemo-gym", Guess))
    agent.reset(task="5")
    first = agent.step("4", request="one")
    assert agent.step("5", request="one") == first
    assert first["info"]["turn"] == 1
    last = agent.step("5", request="two")
    assert last["reward"] == 1.0 and last["info"]["turn"] == 2
    # The session has ended with its episode; an answer that was lost on the way is still there.
    assert agent.step("5", request="two") == last
    agent.step("5", request="three", status=409)
    assert agent.post("/close", {}) == {"closed": True}
    assert agent.post("/close", {}) == {"closed": False}
    agent.step("5", request="two", status=404)


def test_a_cookie_is_a_session_and_one_that_is_not_ours_is_none(speak):
    address = speak("nemo-gym", Guess, max_sessions=2)
    one, other = Agent(address), Agent(address)
    one.reset(task="1")
    other.reset(task="2")
    assert one.step("1")["reward"] == 1.0 and other.step("1")["reward"] == 0.0
    third, fourth = Agent(address), Agent(address)
    third.reset(task="3")
    assert fourth.post("/reset", PARAMS, status=429)["code"] == "too_many_sessions"
    (name,) = other.cookies
    value, _, signature = other.cookies[name].partition(".")
    for forged in (value, f"{value}.", f"{value}.{signature[:-1]}", f"x{value}.{signature}", "é"):
        stranger = Agent(address)
        stranger.cookies = {name: forged.encode().decode("latin-1")}
        stranger.step("2", status=404)
    assert other.step("2")["reward"] == 1.0
    # Its cookie resets the same session, and is another one from then on.
    earlier = Agent(address)
    earlier.cookies = dict(third.cookies)
    third.reset(task="4")
    assert third.cookies != earlier.cookies
    earlier.step("4", status=409)
    assert third.step("4")["reward"] == 1.0


def test_the_rollouts_of_a_row_begin_alike(speak):
    address = speak("nemo-gym", Guess)
    starts = [Agent(address).reset(_ng_task_index=k, _ng_rollout_index=r)
              for k, r in ((3, 0), (3, 1), (4, 0))]  # fmt: skip
    told = [(start["observation"], start["info"]["task"]) for start in starts]
    assert told[0] == told[1] != told[2]
    named = Agent(address).reset(verifier_metadata={"task": "6", "seed": 9, "other": []})
    assert (named["info"]["task"], named["info"]["seed"]) == ("6", 9)


def test_a_text_without_an_action_is_answered_and_the_world_stands_still(speak):
    agent = Agent(speak("nemo-gym", Guess))
    agent.reset(task="5", action_format="react")
    reply = agent.step("5")
    assert reply["reward"] == 0.0 and "There is no action" in reply["observation"]
    assert agent.step("Action: 5")["info"]["turn"] == 1
    agent.reset(task="5")
    for wrong in (call_item({"action": 5}), call_item("{"), call_item({}, name="dance")):
        reply = agent.step(wrong)
        assert reply["observation"] is None and not reply["terminated"]
        assert "act" in reply["info"]["tool_outputs"][0]["output"]
    reply = agent.step(call_item({"action": "4"}), call_item({"action": "5"}, number=2))
    assert [o["call_id"] for o in reply["info"]["tool_outputs"]] == ["call-1", "call-2"]
    assert reply["info"]["turn"] == 1 and "Not done" in reply["info"]["tool_outputs"][1]["output"]
    thinking = {"type": "reasoning", "id": "t", "summary": [{"type": "summary_text", "text": "4"}]}
    assert agent.step(thinking, text_item("5"))["reward"] == 1.0


@pytest.mark.parametrize(
    ("path", "body", "where"),
    [
        ("/reset", {}, ["body", "responses_create_params"]),
        ("/reset", [], ["body"]),
        ("/reset", {**PARAMS, "seed": -1}, ["body", "seed"]),
        ("/reset", {**PARAMS, "seed": "1"}, ["body", "seed"]),
        ("/reset", {**PARAMS, "action_format": "song"}, ["body", "action_format"]),
        ("/step", PARAMS, ["body", "response"]),
        ("/step", {**PARAMS, "response": {"output": "5"}}, ["body", "response", "output"]),
        ("/step", {**PARAMS, "response": {"output": []}, "_ng_step_request_id": ""},
         ["body", "_ng_step_request_id"]),
        ("/aggregate_metrics", {}, ["body", "verify_responses"]),
    ],
)  # fmt: skip
def test_a_malformed_message_gets_the_error_of_a_resources_server(speak, path, body, where):
    address = speak("nemo-gym", Guess)
    detail = Agent(address).post(path, body, status=422)["detail"]
    assert detail[0]["loc"] == where and set(detail[0]) == {"type", "loc", "msg", "input"}
    assert sessions_become(address, 0)


def test_what_fails_is_a_status_and_never_a_reward(speak):
    address = speak("nemo-gym", Trouble)
    agent = Agent(address)
    assert agent.post("/reset", {**PARAMS, "task": "broken"}, 500)["code"] == "environment_error"
    assert agent.post("/reset", {**PARAMS, "task": "77"}, status=404)["code"] == "unknown_task"
    assert sessions_become(address, 0)
    agent.reset(task="fine")
    assert agent.step("raise", status=500)["code"] == "environment_error"
    assert agent.step("go on", status=409)["code"] == "episode_over"
    agent.reset(task="fine")
    agent.post("/close", {})
    assert agent.step("go on", status=404)["code"] == "unknown_session"
    assert requests.get(f"{address}/nowhere", timeout=60).json() == {"detail": "Not Found"}
    assert requests.get(f"{address}/step", timeout=60).status_code == 405
    for path in ("/", "/health", "/healthz", "/livez", "/readyz"):
        assert requests.get(address + path, timeout=60).json()["status"] == "ok"


def test_paths_may_name_the_rollout(speak):
    address = speak("nemo-gym", Guess)
    agent = Agent(address, "/ng-rollout/3-1")
    agent.reset(task="5")
    assert agent.step("5")["reward"] == 1.0
    told = requests.get(f"{address}/metrics", timeout=60).text
    assert 'route="/step"} 1' in told and "ng-rollout" not in told


def test_rewards_are_averaged_without_what_is_masked(speak):
    rollouts = [
        {"_ng_task_index": 0, "reward": 1.0}, {"_ng_task_index": 0, "reward": 0.0},
        {"_ng_task_index": 1, "reward": 1.0},
        {"_ng_task_index": 1, "reward": 0.0, "mask_sample": True},
    ]  # fmt: skip
    told = Agent(speak("nemo-gym", Guess)).post(
        "/aggregate_metrics", {"verify_responses": rollouts}
    )
    assert told["key_metrics"]["mean/reward"] == pytest.approx(2 / 3)
    assert [group["mean/reward"] for group in told["group_level_metrics"]] == [0.5, 1.0]
    assert told["agent_metrics"]["masked"] == 1


def test_a_dataset_names_the_starts_and_how_to_act():
    (row,) = dataset_rows("Guess.", [("5", 1)], agent="a", action_format="act")
    assert (row["task"], row["seed"], row["agent_ref"]["name"]) == ("5", 1, "a")
    (message,) = row["responses_create_params"]["input"]
    assert message["content"] == "Guess.\n\nAnswer in this form:\nAction:\nyour action"
    (row,) = dataset_rows("Guess.", [("5", 1)], agent="a", tools=True)
    assert row["responses_create_params"]["tools"] == [TOOL_SCHEMA]
    assert row["responses_create_params"]["input"][0]["content"] == "Guess."

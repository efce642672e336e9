"""Every format gives back the episodes that were written, and reads what others write."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_env.errors import BadRequest
from agentgym_env.trajectory import Tokens, Trajectory, Turn
from agentgym_train.data.files import read_rows, write_rows
from agentgym_train.data.formats import FORMATS, episode_of, export_rows, read_episodes

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
NUMBER = st.integers(0, 9).map(float)
PLAIN = st.none() | st.booleans() | st.integers(-9, 9) | TEXT
TURN = st.builds(
    Turn, response=TEXT, action=TEXT, observation=TEXT, reward=NUMBER,
    info=st.dictionaries(TEXT, PLAIN | st.lists(PLAIN, max_size=2), max_size=2),
)  # fmt: skip
IDS = st.lists(st.integers(0, 99), max_size=3)
TOKENS = st.builds(
    Tokens, prompt_ids=IDS, completion_ids=IDS, loss_mask=IDS,
    logprobs=st.lists(NUMBER, max_size=3),
    versions=IDS, turn_ends=IDS,
)  # fmt: skip
EPISODE = st.builds(
    Trajectory, env=st.sampled_from(["agentgym/TextCraft-v0", "a/B-v1"]), task=TEXT,
    seed=st.integers(0, 3), instruction=TEXT, observation=TEXT, turns=st.lists(TURN, max_size=3),
    outcome=st.sampled_from(["success", "failure", "horizon", "token_budget"]), policy=TEXT,
    horizon=st.integers(1, 9), success=st.booleans(), score=NUMBER, error=st.none() | TEXT,
    group=st.integers(-1, 3), sample=st.integers(0, 3), seconds=NUMBER,
    tokens=st.none() | TOKENS, further_rows=st.lists(TOKENS, max_size=1),
)  # fmt: skip
SUFFIX = {False: "jsonl", True: "json"}


def episode(words: str = "ab", success: bool = True, **changes: object) -> Trajectory:
    turns = [Turn(f"Action:\n{w}", w, f"saw {w}", float(success and w == words[-1])) for w in words]
    values = {
        "env": "agentgym/TextCraft-v0", "task": "stick", "seed": 0, "instruction": "Rules.",
        "observation": "First.", "turns": turns, "outcome": "success" if success else "failure",
        "policy": "p", "horizon": 9, "success": success, **changes,
    }  # fmt: skip
    return Trajectory(**values)


def written(path: Path, episodes: list[Trajectory], form: str, **options: object) -> Path:
    write_rows(path, export_rows(episodes, form, **options))
    return path


@pytest.mark.parametrize("array", [False, True])
@pytest.mark.parametrize("form", ["trajectories", "conversations", "messages"])
def test_episodes_come_back_as_they_were(form, array, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")

    @settings(max_examples=60, deadline=None)
    @given(st.lists(EPISODE, max_size=3))
    def check(episodes):
        path = written(folder / f"x.{SUFFIX[array]}", episodes, form)
        read = read_episodes(path)
        assert read.broken == []
        assert read.trajectories == episodes

    check()


def test_tokens_can_be_left_out(tmp_path):
    sampled = episode(tokens=Tokens([1], [2], [1], [0.0], [0], [1]))
    for form in ("trajectories", "conversations", "messages"):
        path = written(tmp_path / form, [sampled], form, tokens=False)
        assert read_episodes(path).trajectories == [msgspec.structs.replace(sampled, tokens=None)]


def test_conversations_are_agentgyms_own_rows(tmp_path):
    context = Turn("look", "look", "dark", 0.0, {"loss": False})
    told = episode(turns=[context, *episode("a").turns])
    (row,) = export_rows([told], "conversations")
    assert row["item_id"].startswith("textcraft_")
    assert [(m["from"], m["loss"], m["value"]) for m in row["conversations"]] == [
        ("human", None, "Rules."), ("gpt", False, "OK."), ("human", None, "First."),
        ("gpt", False, "look"), ("human", None, "dark"), ("gpt", True, "Action:\na"),
    ]  # fmt: skip


def test_edited_flags_of_a_row_count():
    context = Turn("look", "look", "dark", 0.0, {"loss": False, "step": 3})
    told = episode(turns=[context, *episode("a").turns])
    (row,) = export_rows([told], "conversations")
    flagged = [m for m in row["conversations"] if m["from"] == "gpt"]
    flagged[1]["loss"], flagged[2]["loss"] = True, False
    first, second, *_ = episode_of(row).turns
    assert first.info == {"step": 3} and second.info == {"loss": False}


def test_an_item_id_is_agentgyms_number_where_it_has_one(tmp_path):
    from agentgym_servers.worlds.textcraft.env import original_task

    rows = export_rows([episode(task=original_task(17)), episode(task="made up")], "conversations")
    assert [row["item_id"] for row in rows] == ["textcraft_17", "textcraft_made up"]


def agentgym_rows() -> list[dict]:
    """Rows as AgentGym publishes them: demonstrations, a rollout's log, and tasks alone."""
    talk = [
        {"from": "human", "loss": None, "value": "Craft things."},
        {"from": "gpt", "loss": False, "value": "OK. I'll follow your instructions."},
        {"from": "human", "loss": None, "value": "Goal: craft x."},
        {"from": "gpt", "loss": True, "value": "Thought:\nI need it.\n\nAction:\nget 1 x"},
        {"from": "human", "loss": None, "value": "Got 1 x"},
        {"from": "gpt", "loss": True, "value": "Thought:\nDone.\n\nAction:\ninventory"},
    ]
    log = [
        {"role": "user", "content": "Rules."}, {"role": "assistant", "content": "Ok."},
        {"role": "user", "content": "Look around."}, {"role": "assistant", "content": "go left"},
        {"role": "user", "content": "A wall."},
    ]  # fmt: skip
    return [
        {"item_id": "textcraft_17", "conversations": talk},
        {"item_id": 12, "conversations": log, "reward": 0.25},
        {"item_id": "webshop_3", "conversations": talk[2:], "reward": 1, "success": True},
        {"item_id": "sciworld_5", "conversations": talk, "reward": 100.0},
        {"item_id": "searchqa_9", "conversations": None},
    ]


@pytest.mark.parametrize("indent", [None, 2])
def test_agentgyms_own_files_are_read(tmp_path, indent):
    path = tmp_path / "textcraft_train.json"
    path.write_text(json.dumps(agentgym_rows(), indent=indent))
    read = read_episodes(path, env="")
    demo, log, shop, science = read.trajectories
    assert (demo.env, demo.task, demo.instruction) == (
        "agentgym/TextCraft-v0", "textcraft_17", "Craft things."
    )  # fmt: skip
    assert demo.observation == "Goal: craft x."
    assert [turn.action for turn in demo.turns] == ["get 1 x", "inventory"]
    assert [turn.observation for turn in demo.turns] == ["Got 1 x", ""]
    assert demo.turns[0].response.startswith("Thought:\nI need it.")
    assert demo.success and demo.reward == 1.0
    assert (log.success, log.reward, log.turns[-1].observation) == (False, 0.25, "A wall.")
    assert (log.instruction, log.observation) == ("Rules.", "Look around.")
    assert (shop.env, shop.instruction, shop.success) == ("webshop", "", True)
    assert (science.env, science.success, science.reward) == (
        "agentgym/SciWorld-v0", True, 100.0
    )  # fmt: skip
    (task_alone,) = read.broken
    assert "no conversation" in task_alone.reason


def test_agentgyms_rows_go_out_again_as_they_came(tmp_path):
    came = agentgym_rows()[:1]
    path = tmp_path / "x.json"
    path.write_text(json.dumps(came))
    (row,) = export_rows(read_episodes(path).trajectories, "conversations")
    assert row["item_id"] == came[0]["item_id"]
    ours, theirs = row["conversations"], came[0]["conversations"]
    # The acknowledgement, on which there never is a loss, is ours.
    assert ours[:1] + ours[2:] == theirs[:1] + theirs[2:]


def test_messages_of_others_are_read(tmp_path):
    rows = [
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]},
        {"messages": [
            {"role": "system", "content": "S"},
            {"role": "user", "content": [{"type": "text", "text": "one"}]},
            {"role": "user", "content": "two"},
            {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"},
            {"role": "tool", "content": "t"},
        ], "success": False, "task": 0, "reward": 0.25},
    ]  # fmt: skip
    path = tmp_path / "chat.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    first, second = read_episodes(path, env="my/Chat-v0").trajectories
    assert first.success and first.env == "my/Chat-v0" and first.turns[0].response == "Yo"
    assert second.instruction == "S" and second.observation == "one\n\ntwo" and not second.success
    assert [(t.response, t.observation) for t in second.turns] == [("a", ""), ("b", "t")]
    assert (first.task[:7], second.task, first.reward, second.reward) == ("prompt-", "0", 1.0, 0.25)


def test_a_system_message_of_either_format_is_the_instruction(tmp_path):
    texts = [("system", "S"), ("human", "H"), ("gpt", "ok"), ("human", "I"), ("gpt", "b")]
    talk = [{"from": role, "value": text} for role, text in texts]
    path = tmp_path / "talk.json"
    path.write_text(json.dumps([{"conversations": talk}, {"messages": talk}]))
    for read in read_episodes(path).trajectories:
        assert (read.instruction, read.observation) == ("S", "H")
        assert [turn.response for turn in read.turns] == ["ok", "b"]


@pytest.mark.parametrize("text", [None, "", "I look."])
def test_a_row_with_tool_calls_is_broken_and_not_an_episode_of_empty_replies(tmp_path, text):
    function = {"name": "look", "arguments": "{}"}
    calls = {"tool_calls": [{"type": "function", "id": "1", "function": function}]}
    talk = [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": text, **calls},
        {"role": "tool", "content": "A room.", "tool_call_id": "1"},
        {"role": "assistant", "content": "In a room.", "tool_calls": []},
    ]
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"messages": talk}) + "\n")
    read = read_episodes(path)
    assert not read.trajectories
    assert "message 2 of its messages calls tools" in read.broken[0].reason


@pytest.mark.parametrize("result", [{"reward": 10**400}, {"reward": "1"}, {"success": "false"}])
def test_a_result_that_is_not_one_is_a_broken_row(tmp_path, result):
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"messages": talk, **result}))
    read = read_episodes(path)
    (broken,) = read.broken
    assert not read.trajectories and f"its {next(iter(result))} must be" in broken.reason


def test_a_row_of_pairs_is_no_episode(tmp_path):
    say = [{"role": "assistant", "content": "good"}]
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"prompt": "Q", "chosen": say, "rejected": say}))
    read = read_episodes(path)
    assert read.trajectories == []
    assert "none of the columns conversations, messages, turns" in read.broken[0].reason


def test_texts_that_somebody_changed_count(tmp_path):
    came = episode("ab", tokens=Tokens([1], [2], [1], [0.0], [0], [1]))
    (row,) = export_rows([came], "messages")
    row["messages"][2]["content"] = "Action:\nc"
    path = tmp_path / "edited.jsonl"
    path.write_text(json.dumps(row))
    (read,) = read_episodes(path).trajectories
    assert [turn.action for turn in read.turns] == ["c", "b"]
    assert [turn.reward for turn in read.turns] == [0.0, 1.0], "what was paid is known still"
    assert (read.task, read.seed, read.policy) == (came.task, came.seed, came.policy)
    assert read.tokens is None, "they are of other words"


BAD = {
    "cut": '{"messages": [{"role": "us',
    "no JSON": "hello",
    "deep": '{"messages": ' + "[" * 20_000,
    "deep column": '{"messages": [{"role": "assistant", "content": "y"}], "agentgym": '
    + json.dumps('{"episode": {"turns": [{"info": {"a": ' + "[" * 20_000)
    + "}",
    "no object": "[1, 2]",
    "no text": '{"messages": [{"role": "user", "content": null}]}',
    "no role": '{"messages": [{"content": "x"}]}',
    "silent": '{"messages": [{"role": "user", "content": "x"}]}',
    "unknown": '{"question": "x"}',
    "column": '{"messages": [{"role": "user", "content": "x"}], "agentgym": "{"}',
    "item": '{"item_id": "a_1", "conversations": [{"from": "bird", "value": "x"}]}',
    "reward": '{"conversations": [{"from": "gpt", "value": "x"}], "reward": "much"}',
    "pair": '{"prompt": "x", "chosen": [{"role": "assistant", "content": "y"}]}',
    "blocks": '{"messages": [{"role": "assistant", "content": [{"text": 1}]}, 2]}',
    "surrogate": '{"messages": [{"role": "user", "content": "\\ud800"}]}',
    "no utf-8": '{"messages": "\udcff"}',
}


@pytest.mark.parametrize("array", [False, True])
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("form", FORMATS)
def test_a_broken_row_is_named_and_the_rest_is_kept(tmp_path, form, bad, array):
    episodes = [episode("a"), episode("bc"), episode("x", False), episode("yz", False)]
    whole = written(tmp_path / f"x.{SUFFIX[array]}", episodes, form)
    lines = whole.read_text().splitlines()
    lines.insert(2 if array else 1, BAD[bad] + "," * array)
    whole.write_bytes("\n".join(lines).encode("utf-8", errors="surrogateescape"))
    read = read_episodes(whole)
    (broken,) = read.broken
    assert broken.path == whole and broken.reason
    if array and bad in ("cut", "no JSON", "deep", "surrogate"):
        assert (broken.line, read.trajectories) == (
            0,
            [],
        ) and "the JSON array is not valid" in broken.reason
        return
    assert broken.line == 2
    assert {t.turns[0].response for t in read.trajectories} == {
        t.turns[0].response for t in episodes
    }


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = written(tmp_path / "x.jsonl", [episode()], "messages")
    before = path.read_bytes()

    def breaking():
        yield {"messages": []}
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_rows(path, breaking())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_read_or_written_is_said(tmp_path):
    with pytest.raises(BadRequest, match="cannot read"):
        read_episodes(tmp_path / "nowhere.json")
    with pytest.raises(BadRequest, match="does not exist"):
        write_rows(tmp_path / "nowhere" / "x.jsonl", [])


def test_a_file_with_more_than_an_array_is_named(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text('[]\n{"messages": []}\n')
    rows, broken = read_rows(path)
    assert rows == [] and "trailing characters" in broken[0].reason

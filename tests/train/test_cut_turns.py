"""Turns that end at `turn_max_tokens`: counted wherever they are sampled, and shown."""

from __future__ import annotations

import csv
import io

import msgspec
import pytest
from aiohttp import web
from rich.console import Console

from agentgym_env.errors import ConfigError
from agentgym_env.run_store import RunStore
from agentgym_env.trajectory import Tokens, Turn
from agentgym_train.config.learn import AgentEvolConfig, DPOConfig, SFTConfig
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.config.rl import RLConfig
from agentgym_train.config.worlds import World
from agentgym_train.data.datasets import SFTDataset, check_turn_lengths
from agentgym_train.data.tokenize import EpisodeTokenizer
from agentgym_train.engines.base import ScriptedEngine
from agentgym_train.evaluation.report import figures_of, reports_of
from agentgym_train.evaluation.tables import as_csv, conclude, policy_grid
from agentgym_train.rollout.chat import Chat
from agentgym_train.rollout.chat_actors import chat_actors
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.model_actors import model_actor
from agentgym_train.runs.agent_evol import _demonstrations
from agentgym_train.runs.methods import method_of
from agentgym_train.runs.summary import last_words, summary
from agentgym_train.training.dpo import DPODataset
from agentgym_viewer.index import EpisodeIndex
from agentgym_viewer.indexer import Indexer
from agentgym_viewer.query import played
from tests.gateway.test_gateway import Says, chat, client_of, gateway_of, user
from tests.train.demonstrating import demonstration
from tests.train.inprocess import rollouts
from tests.train.small import save_tiny_policy, textcraft_tokenizer
from tests.train.templates import APPEND_ONLY, tokenizer_with
from tests.train.test_eval_report import PLAN
from tests.train.test_eval_report import episode as evaluated
from tests.train.test_openai_chat import Endpoint, client
from tests.train.test_preference import failed
from tests.train.test_step_figures import metrics_of, share
from tests.viewer.viewing import episode, small_run


def cuts(trajectory):
    return [turn.cut for turn in trajectory.turns]


async def collected(host, texts, horizon=3, agent="plain", **limits):
    """An episode of a policy that says each text in turn."""
    chat = Chat(tokenizer_with(APPEND_ONLY["chatml"]))
    engine = ScriptedEngine(lambda prompt, turn: chat.response_ids(texts[turn]))
    config = PolicyConfig(model="m", agent=agent, **{"max_tokens": 4096, **limits})
    loop = rollouts(host, model_actor(engine, chat, config))
    (found,) = await loop.collect([EpisodeSpec("5", 0)], horizon)
    return found


async def test_a_turn_of_a_model_is_cut_where_it_has_no_room_for_its_end(make_host):
    chat = Chat(tokenizer_with(APPEND_ONLY["chatml"]))
    said = "I try the number 1 now"
    whole = len(chat.response_ids(said))
    texts = ["1", said, "2"]
    found = await collected(make_host(), texts, turn_max_tokens=whole - 1)
    assert cuts(found) == [False, True, False]
    found = await collected(make_host(), texts, turn_max_tokens=whole)
    assert cuts(found) == [False, False, False], "it just fits"


async def test_a_turn_that_ends_with_the_tokens_of_its_episode_is_no_cut_turn(make_host):
    said = "I try the number 1 and then I try the number 2"
    room = len(Chat(tokenizer_with(APPEND_ONLY["chatml"])).response_ids(said))
    first = await collected(make_host(), [said] * 9, horizon=9, turn_max_tokens=room)
    size = len(first.tokens.prompt_ids)
    found = await collected(
        make_host(), [said] * 9, horizon=9, turn_max_tokens=room, max_tokens=size + room - 2
    )
    assert (found.outcome, cuts(found)) == ("token_budget", [False])


async def test_a_plan_and_a_response_without_an_action_are_cut_too(make_host):
    long = "Thought: " + "I think about it " * 9
    found = await collected(make_host(), [long] * 9, agent="plan_then_act", turn_max_tokens=8)
    assert len(found.turns) > 3 and all(cuts(found))
    found = await collected(
        make_host(), [long] * 9, agent="react", action_format="react", turn_max_tokens=8
    )
    assert cuts(found) == [True] * 3 and all(t.action == "" for t in found.turns)
    row = metrics_of(share(found))
    assert (row["cut_turns"], row["env_steps"]) == (1.0, 0), "the world saw none of them"


@pytest.mark.parametrize(("reason", "limit", "cut"), [
    ("length", 7, True), ("stop", 7, False), ("length", 4096, False), (None, 7, False),
])  # fmt: skip
async def test_an_endpoint_says_why_it_ended(make_host, reason, limit, cut):
    """With 4,096 tokens per turn, the episode's are the limit."""

    def answer(_):
        choice = {"message": {"role": "assistant", "content": "1"}, "finish_reason": reason}
        usage = {"prompt_tokens": 10, "completion_tokens": 2}
        return web.json_response({"choices": [choice], "usage": usage})

    config = PolicyConfig(model="m", instruction="", turn_max_tokens=limit, max_tokens=200)
    async with client(Endpoint(answer)) as endpoint:
        loop = rollouts(make_host(), chat_actors(endpoint, config))
        (found,) = await loop.collect([EpisodeSpec("5", 0)], 2)
    assert cuts(found) == [cut] * 2


async def test_a_call_of_a_black_box_is_cut_by_the_gateway_and_not_by_its_own_limit():
    async with gateway_of(Says("one two three four five six"), turn_max_tokens=4) as gateway:
        opened = gateway.open_episode()
        async with client_of(gateway, opened) as agent:
            await chat(agent, [user("Begin.")])
            await chat(agent, [user("Again.")], max_tokens=3)
            await chat(agent, [user("Again!")], max_tokens=99)
        finished = await gateway.close_episode(opened)
    assert [turn.cut for turn in finished.turns] == [True, False, True]


def with_cuts(cut, of, **changes):
    """An episode of which so many turns were cut."""
    turns = [Turn("r", "x", "o", 0.0, {"turn": n}, n <= cut) for n in range(1, of + 1)]
    return evaluated(turns=turns, **changes)


def test_a_report_has_the_share_of_cut_turns_and_says_what_to_do(tmp_path):
    some = [figures_of(with_cuts(3, 4)), figures_of(with_cuts(0, 2, task="b", seed=1))]
    none = [figures_of(with_cuts(0, 4))]
    reports = reports_of(PLAN, {"some": some, "none": none})
    assert (reports["some"].cut_turns, reports["none"].cut_turns) == (0.5, 0.0)
    assert reports["some"].categories["shopping"].cut_turns == 0.5
    grid = policy_grid(reports)
    assert [row[grid.header.index("cut")] for row in grid.rows] == ["50.0 %", "0.0 %"]
    assert "cut" not in policy_grid({"none": reports["none"]}).header
    rows = list(csv.DictReader(io.StringIO(as_csv(reports))))
    assert [row["cut_turns"] for row in rows if not row["category"]] == ["0.5", "0.0"]


@pytest.mark.parametrize(("cut", "warned"), [(4, True), (1, True), (0, False)])
def test_an_evaluation_says_that_many_turns_were_cut(tmp_path, cut, warned):
    out = io.StringIO()
    reports = reports_of(PLAN, {"mine": [figures_of(with_cuts(cut, 4))]})
    conclude(tmp_path, PLAN, reports, [], Console(file=out, width=200))
    said = f"mine: {25 * cut}% of the turns were cut at turn_max_tokens=9, so they may end before"
    assert (said in out.getvalue()) == ("raise turn_max_tokens" in out.getvalue()) == warned


def test_the_line_of_a_step_shows_cut_turns_where_there_are_any():
    row = {"reward": 0.5, "success": 0.5, "horizon": 4, "turns": 2.0}
    text = method_of(RLConfig()).shown.text
    assert "cut" not in text({**row, "cut_turns": 0.0})
    assert text({**row, "cut_turns": 0.98}).endswith("cut_turns 98%")
    assert text({**row, "cut_turns": None, "turns": None}).endswith("turns -")


@pytest.mark.parametrize(("share", "warned"), [(0.98, True), (0.11, True), (0.09, False)])
def test_the_end_of_training_says_that_many_turns_were_cut(tmp_path, share, warned):
    config = RLConfig(env="tests/Guess-v0", model="m", output_dir="x", turn_max_tokens=16)
    store = RunStore.create(tmp_path / "run", {})
    for step, turns in ((1, 3.0), (2, 9.0)):
        store.append_metrics(
            {"step": step, "seconds": 1.0, "env_steps": 1, "sampled_tokens": 1, "lost": 0,
             "retried": 0, "turns": turns, "cut_turns": share}
        )  # fmt: skip
    rows, _ = store.metrics()
    assert summary(config, rows, {}, {})["cut_turns"] == pytest.approx(share)
    said = " ".join(last_words(config, rows))
    assert (f"{share:.0%} of the turns were cut at turn_max_tokens=16" in said) == warned
    assert ("raise turn_max_tokens" in said) == warned


def test_a_run_of_an_earlier_version_has_no_share_of_cut_turns(tmp_path):
    config = RLConfig(env="tests/Guess-v0", model="m", output_dir="x")
    store = RunStore.create(tmp_path / "run", {})
    store.append_metrics({"step": 1, "seconds": 1.0, "env_steps": 1, "sampled_tokens": 1,
                          "lost": 0, "retried": 0, "turns": 2.0})  # fmt: skip
    rows, _ = store.metrics()
    assert summary(config, rows, {}, {})["cut_turns"] is None
    assert last_words(config, rows) == []


def test_the_viewer_counts_cut_turns(tmp_path):
    store = small_run(tmp_path / "run")
    turns = [Turn("r", "x", "o", cut=n < 2) for n in range(3)]
    store.append_trajectories("eval_before", [episode(9, turns=turns)])
    index = EpisodeIndex(tmp_path / "index.sqlite")
    run = index.run_id(store.path)
    indexer = Indexer(index)
    indexer.follow({run: store.path})
    while indexer.read_batches():
        pass
    found = {part["file"]: part["cut_turns"] for part in played(index, run)}
    assert found == {"eval_before": pytest.approx(2 / 3), "eval_after": 0, "train": 0}
    index.close()


LONG = "get " + "1 oak planks " * 6


def lengths(tokenizer, *texts):
    chat = Chat(tokenizer)
    return [len(chat.response_ids(text)) for text in texts]


def long_turns(task="stick", **changes):
    """A demonstration in which every turn but the first is long."""
    shown = demonstration(task)
    first, *rest = shown.turns
    rest = [msgspec.structs.replace(t, response=LONG, action=LONG, **changes) for t in rest]
    return msgspec.structs.replace(shown, turns=[first, *rest])


@pytest.fixture
def data(tmp_path):
    """A file of episodes."""

    def write(*episodes):
        store = RunStore.create(tmp_path / f"data-{len(list(tmp_path.iterdir()))}", {})
        store.append_trajectories("train", episodes)
        return [str(store.path)]

    return write


def test_sft_rejects_demonstrated_turns_that_the_policy_could_not_sample(data):
    shown = long_turns("ladder")
    tokenizer = textcraft_tokenizer()
    first, longest = lengths(tokenizer, shown.turns[0].response, LONG)
    count = len(shown.turns)
    values = {"model": "m", "output_dir": "o", "instruction": "", "data": data(shown)}
    with pytest.raises(ConfigError) as caught:
        SFTDataset.read(SFTConfig(**values, turn_max_tokens=first), tokenizer)
    assert str(caught.value).startswith(
        f"{count - 1} of {count} demonstrated turns exceed turn_max_tokens={first}; the longest "
        f"has {longest}."
    )
    remedy = str(caught.value).rpartition("set ")[2]
    assert remedy == f"turn_max_tokens: {longest}"
    assert SFTDataset.read(SFTConfig(**values, turn_max_tokens=longest), tokenizer).rows


def test_context_and_episodes_that_are_left_out_do_not_count(data):
    tokenizer = textcraft_tokenizer()
    context = long_turns("ladder", info={"loss": False})
    (first,) = lengths(tokenizer, context.turns[0].response)
    values = {"model": "m", "output_dir": "o", "instruction": "", "turn_max_tokens": first}
    assert SFTDataset.read(SFTConfig(**values, data=data(context)), tokenizer).rows
    (size,) = map(len, [EpisodeTokenizer(tokenizer).rows(demonstration("stick"))[0].prompt_ids])
    huge = msgspec.structs.replace(long_turns("bowl"), observation="oak " * 4000)
    config = SFTConfig(**values, data=data(context, huge), max_tokens=size + 2000)
    assert SFTDataset.read(config, tokenizer).too_long == 1


def test_dpo_counts_the_turns_of_the_better_episodes_once(data):
    tokenizer = textcraft_tokenizer()
    better = long_turns("ladder")
    first, longest = lengths(tokenizer, better.turns[0].response, LONG)
    count = len(better.turns)
    episodes = [better, failed("ladder", 1), failed("ladder", 2)]
    values = {"model": "m", "output_dir": "o", "instruction": ""}
    with pytest.raises(ConfigError, match=f"^{count - 1} of {count} demonstrated turns exceed"):
        DPODataset.read(DPOConfig(**values, data=data(*episodes), turn_max_tokens=first), tokenizer)
    worse = msgspec.structs.replace(
        failed("stick", 1),
        turns=[msgspec.structs.replace(failed("stick", 1).turns[0], response=LONG, action=LONG)],
    )
    values["data"] = data(demonstration("stick"), worse)
    config = DPOConfig(**values, turn_max_tokens=longest - 1)
    assert DPODataset.read(config, tokenizer).rows, "nobody has to sample the worse one"


def test_evolve_rejects_them_before_it_explores(data, tmp_path):
    policy = save_tiny_policy(tmp_path / "policy")
    shown = long_turns("ladder")
    config = AgentEvolConfig(
        model=str(policy), output_dir=str(tmp_path / "run"), data=data(shown),
        envs=[World(env="agentgym/TextCraft-v0")], instruction="", turn_max_tokens=8,
    )  # fmt: skip
    with pytest.raises(ConfigError, match="demonstrated turns exceed turn_max_tokens=8; the long"):
        _demonstrations(config, textcraft_tokenizer(), pytest.fail)


def test_a_turn_that_was_cut_at_this_limit_when_it_was_played_is_not_too_long(data):
    tokenizer = textcraft_tokenizer()
    (whole,) = lengths(tokenizer, LONG)
    values = {"model": "m", "output_dir": "o", "instruction": "", "turn_max_tokens": whole - 1}
    own = long_turns("ladder")
    own = msgspec.structs.replace(
        own, turns=[msgspec.structs.replace(turn, cut=turn.response == LONG) for turn in own.turns]
    )
    assert SFTDataset.read(SFTConfig(**values, data=data(own)), tokenizer).rows
    with pytest.raises(ConfigError, match=f"exceed turn_max_tokens={whole - 2}; the longest has"):
        values["turn_max_tokens"] = whole - 2
        SFTDataset.read(SFTConfig(**values, data=data(own)), tokenizer)


def test_the_sentence_of_the_rejection():
    shown = msgspec.structs.replace(demonstration(), turns=[Turn("x", "x", "y")] * 400)
    tokens = shown, [demonstration_row([34] * 200 + [16] * 200)]
    with pytest.raises(ConfigError) as caught:
        check_turn_lengths([tokens], 16)
    assert str(caught.value).startswith(
        "200 of 400 demonstrated turns exceed turn_max_tokens=16; the longest has 34."
    )
    check_turn_lengths([tokens], 34)


def demonstration_row(sizes):
    """A row with turns of these sizes, and a token of the world after each."""
    mask = [bit for size in sizes for bit in [1] * size + [0]]
    ends = [sum(sizes[: n + 1]) + n for n in range(len(sizes))]
    return Tokens([0], [1] * len(mask), mask, [0.0] * len(mask), [0] * len(mask), ends)

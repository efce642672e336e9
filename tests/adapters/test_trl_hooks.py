"""Our environments in TRL's own trainer: tools, starts, ends, rewards, losses and sessions."""

import gc
import inspect
import random

import pytest
import torch
from transformers.utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template

from agentgym_adapters.trl_hooks import LOST, environment_factory, trl_dataset
from agentgym_env.errors import BadRequest, EnvironmentLost
from examples.small_models import small_policy, small_tokenizer
from hosting import GUESS, TROUBLE
from tests.adapters.native_road import TEXTCRAFT, expert_episodes
from worlds import Guess, Trouble

CALL = '<tool_call>\n{{"name": "act", "arguments": {{"action": "{}"}}}}\n</tool_call><|im_end|>'


def tools_of(env) -> list[str]:
    """As TRL finds them."""
    members = inspect.getmembers(type(env), predicate=inspect.isfunction)
    return [n for n, _ in members if n not in ("reset", "get_reward") and n[0] != "_"]


def test_expert_episodes_give_the_rewards_of_the_native_road():
    factory = environment_factory(TEXTCRAFT)
    assert factory.__name__ == "TextCraft"
    env = factory()
    for native in expert_episodes(6):
        prompt = [{"role": "user", "content": "Craft."}]
        first = env.reset(prompt=prompt, task=native.task, seed=native.seed)
        assert first == native.first
        for action, observation in zip(native.actions[:-1], native.observations, strict=False):
            assert env.act(action) == observation
            assert env.get_reward() == 0.0
        assert "The episode has ended: the task is solved" in env.act(native.actions[-1])
        assert env.get_reward() == sum(native.rewards) == 1.0


def test_only_the_tool_is_public_and_trl_can_describe_it():
    env = environment_factory(GUESS)()
    assert tools_of(env) == ["act"]
    schema = get_json_schema(env.act)["function"]
    assert schema["parameters"] == {
        "type": "object",
        "properties": {
            "action": {"type": "string", "description": "The action, written as the task says."}
        },
        "required": ["action"],
    }


def test_the_worlds_verbs_can_be_the_tools():
    verbs = {
        "inventory": "inventory",
        "get": "get {amount} {item}",
        "craft": "craft {amount} {item} using {ingredients}",
    }
    env = environment_factory(TEXTCRAFT, server="inprocess", verbs=verbs)()
    assert tools_of(env) == ["craft", "get", "inventory"]
    schema = get_json_schema(env.craft)["function"]
    assert schema["description"].startswith("Do `craft {amount} {item} using {ingredients}`")
    assert schema["parameters"]["required"] == ["amount", "item", "ingredients"]
    assert get_json_schema(env.inventory)["function"]["parameters"]["properties"] == {}
    env.reset(task="acacia planks", seed=0)
    assert env.get(amount="1", item="acacia logs") == "Got 1 acacia logs"
    assert env.inventory() == "Inventory: 1 acacia logs"
    with pytest.raises(BadRequest, match=r"get takes .'amount', 'item'., got .'item'."):
        env.get(item="acacia logs")
    env.craft(amount="4", item="acacia planks", ingredients="1 acacia logs")
    assert env.get_reward() == 1.0


@pytest.mark.parametrize("name", ["reset", "_step", "two words"])
def test_a_verb_that_cannot_be_a_tool_is_refused(name):
    with pytest.raises(BadRequest, match="cannot be a tool"):
        environment_factory(GUESS, verbs={name: "say {what}"})
    with pytest.raises(BadRequest, match="each of them once"):
        environment_factory(GUESS, verbs={"say": "say {} {}"})


def test_after_the_end_nothing_counts_and_the_policy_is_told(serve):
    env = environment_factory(GUESS, server=serve().address, max_turns=2)()
    env.reset(task="3", seed=0)
    assert env.act("3").startswith("Right!\nThe episode has ended: the task is solved.")
    assert env.act("3").startswith("The episode has ended: the task is solved.")
    assert env.get_reward() == 1.0
    env.reset(task="3", seed=0)
    env.act("1")
    assert "its 2 turns are used up" in env.act("2")
    assert "its 2 turns are used up" in env.act("3")
    assert env.get_reward() == 0.0


def test_a_row_without_task_or_seed_is_refused_with_what_to_do(serve):
    env = environment_factory(GUESS, server=serve().address)()
    with pytest.raises(BadRequest, match=r"needs the columns task and seed.*trl_dataset"):
        env.reset(prompt=[], task="3")
    env.reset(task="3", seed=1)
    with pytest.raises(BadRequest, match="an action is a text, got int"):
        env.act(5)
    assert env.act("3").startswith("Right!")


def test_a_session_is_kept_over_resets_and_closed_with_the_instance(serve):
    server = serve()
    factory = environment_factory(GUESS, server=server.address)
    env, other = factory(), factory()
    assert len(server.host.table) == 0, "the connection is made by the first reset"
    for seed in range(3):
        env.reset(task="3", seed=seed)
    other.reset(task="4", seed=0)
    assert len(server.host.table) == 2
    del env
    gc.collect()
    assert len(server.host.table) == 1
    del other
    gc.collect()
    assert len(server.host.table) == 0


def test_a_lost_episode_has_no_reward_and_the_next_is_played_on_a_fresh_session(serve):
    server = serve(Trouble, env_id=TROUBLE)
    env = environment_factory(TROUBLE, server=server.address)()
    env.reset(task="fine", seed=0)
    assert env.act("raise") == LOST
    assert env.get_reward() is None and env.act("hello") == LOST
    assert env.reset(task="broken", seed=0) == LOST and env.get_reward() is None
    assert env.reset(task="fine", seed=0) == "What now?" and env.get_reward() == 0.0
    server.host.table.shutdown()
    assert env.act("hello") == LOST and env.get_reward() is None


def test_a_run_whose_environments_are_all_gone_is_stopped(monkeypatch):
    monkeypatch.setattr("agentgym_adapters.trl_hooks._MOST_LOST", 2)
    env = environment_factory(GUESS, server="http://127.0.0.1:1")()
    for _ in range(2):
        assert env.reset(task="3", seed=0) == LOST
    with pytest.raises(EnvironmentLost):
        env.reset(task="3", seed=0)


def test_the_dataset_gives_each_row_one_start(serve):
    address = serve().address
    rows = trl_dataset(GUESS, n=8, seed=3, server=address)
    assert rows.column_names == ["prompt", "task", "seed"]
    assert rows[0]["prompt"] == [{"role": "user", "content": f"{Guess.instruction}\n\n"}]
    assert sorted(rows["task"][:6]) == list("123456")
    assert rows["task"][6:] == rows["task"][:2] and rows["seed"][6] != rows["seed"][0]
    assert rows.to_dict() == trl_dataset(GUESS, n=8, seed=3, server=address).to_dict()
    assert rows["task"][:6] != trl_dataset(GUESS, seed=4, server=address)["task"][:6]
    one, two = (environment_factory(GUESS, server=address)() for _ in range(2))
    assert one.reset(**rows[0]) == two.reset(**rows[0]) != one.reset(**rows[6])


def calling_policy():
    """A tiny policy that has learned to call the tool with any of six digits, and its tokenizer."""
    texts = [CALL.format(digit) for digit in "123456789"]
    tokenizer = small_tokenizer([*texts, qwen3_chat_template, Guess.instruction], 500)
    tokenizer.chat_template = qwen3_chat_template
    told = Guess.instruction
    answers = [tokenizer.encode(CALL.format(d), add_special_tokens=False) for d in "123456"]
    model = small_policy(tokenizer, layers=2, hidden=64, heads=2)
    schema = [get_json_schema(environment_factory(GUESS)().act)]
    draws = random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, 240)
    for _ in range(240):
        number = draws.randrange(10**8, 10**9)
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": f"{told}\n\nHello, round {number}. Which number?"}],
            tools=schema,
            add_generation_prompt=True,
            return_dict=False,
        )
        ids = torch.tensor([prompt + answer for answer in answers])  # (6, T)
        labels = ids.clone()  # (6, T)
        labels[:, : len(prompt)] = -100
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()
    return model.eval(), tokenizer


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*environment_factory.*experimental")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_trls_own_trainer_takes_three_steps_and_its_sessions_end_with_it(tmp_path, serve):
    server = serve()
    model, tokenizer = calling_policy()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        train_dataset=trl_dataset(GUESS, n=6, server=server.address),
        environment_factory=environment_factory(GUESS, server=server.address),
        args=GRPOConfig(
            output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=8,
            num_generations=8, max_tool_calling_iterations=3, max_completion_length=200,
            learning_rate=2e-5, bf16=False, use_cpu=True, gradient_checkpointing=False,
            report_to="none", save_strategy="no", logging_steps=1, disable_tqdm=True, seed=0,
        ),
    )  # fmt: skip
    trainer.train()
    rows = [row for row in trainer.state.log_history if "reward" in row]
    assert len(rows) == 3
    assert all(row["tools/call_frequency"] >= 0.5 for row in rows), rows
    assert any(0 < row["rewards/Guess/mean"] < 1 for row in rows), rows
    assert any(not torch.equal(w, before[name]) for name, w in model.named_parameters())
    assert len(server.host.table) == 8
    del trainer
    gc.collect()
    assert len(server.host.table) == 0

"""`turn_max_tokens: 0`, which is derived from the demonstrations or from the model's own run."""

import json

import pytest

from agentgym_train.config.learn import SFTConfig
from agentgym_train.config.rl import RLConfig
from agentgym_train.data.collect import collect
from agentgym_train.models.loading import load_tokenizer
from agentgym_train.runs.turn_limit import with_turn_limit
from tests.train.small import save_tiny_policy
from tests.train.test_collect import QUIET, config

TEXTCRAFT = "agentgym/TextCraft-v0"


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory):
    folder = tmp_path_factory.mktemp("limit")
    collect(config(folder / "demos", env=TEXTCRAFT, n=12), QUIET)
    collect(config(folder / "thoughts", env=TEXTCRAFT, n=12, action_format="react"), QUIET)
    return folder, save_tiny_policy(folder / "runs" / "model")


@pytest.mark.parametrize("name", ["demos", "thoughts"])
def test_it_is_the_longest_demonstrated_turn_and_half_as_much(demonstrations, name):
    folder, model = demonstrations
    lines = (folder / name / "trajectories" / "collected.jsonl").read_text().splitlines()
    texts = [turn["response"] for line in lines for turn in json.loads(line)["turns"]]
    tokenizer = load_tokenizer(model)
    longest = max(len(tokenizer(text)["input_ids"]) for text in texts) + 1
    found = with_turn_limit(
        SFTConfig(model=model, data=[str(folder / name)], output_dir="x", turn_max_tokens=0)
    ).turn_max_tokens
    assert found % 8 == 0 and 1.5 * longest <= found < 1.5 * longest + 8


def test_rl_takes_that_of_the_run_that_trained_its_model(demonstrations):
    folder, model = demonstrations
    rl = RLConfig(model=model, env=TEXTCRAFT, output_dir="x", turn_max_tokens=0)
    assert with_turn_limit(rl).turn_max_tokens == 512, "there is no run"
    run = folder / "runs" / "run.json"
    for content, expected in (('{"config": {"turn_max_tokens": 24}}', 24), ("[]", 512), ("{", 512)):
        run.write_text(content)
        assert with_turn_limit(rl).turn_max_tokens == expected
    run.unlink()


def test_a_number_is_kept():
    rl = RLConfig(model="nosuch", env=TEXTCRAFT, output_dir="x", turn_max_tokens=7)
    assert with_turn_limit(rl) is rl

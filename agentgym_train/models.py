"""Policies: loading one by its name, and making a small one from a config."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from agentgym_env.errors import BadRequest, MissingExtra
from agentgym_train.chatml import CHATML, TURN_BEGINS, TURN_ENDS
from agentgym_train.gguf_files import gguf_file
from agentgym_train.gguf_models import load_gguf, load_gguf_tokenizer
from agentgym_train.hub import hub_options
from agentgym_train.induction_init import induction_init
from agentgym_train.model_folders import base_of, check_folder, has_adapters

_PADDING = "<|endoftext|>"


def load_policy(name: str, dtype: str = "float32") -> tuple[Any, Any]:
    """(model, tokenizer) of a folder, a hub id or a GGUF file (see `gguf_files`).

    Raises `BadRequest` with what to do.
    """
    check_folder(name)
    kind = getattr(torch, dtype)
    found = gguf_file(name)
    if found is not None:
        options = hub_options(found.source, found.file) if found.on_hub else {}
        model, tokenizer = load_gguf(found, kind, options)
        model.name_or_path = name  # what adapters name as theirs
    else:
        source, options = _source(name)
        with _told_apart(name):
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False, **options)
            if has_adapters(Path(source)):
                model = _with_adapters(Path(source), dtype)
            else:
                model = AutoModelForCausalLM.from_pretrained(
                    source, dtype=kind, trust_remote_code=False, **options
                )
    return model, _with_padding(tokenizer)


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a model that `load_policy` would load."""
    check_folder(name)
    found = gguf_file(name)
    if found is not None:
        options = hub_options(found.source, found.file) if found.on_hub else {}
        return _with_padding(load_gguf_tokenizer(found, options))
    source, options = _source(name)
    with _told_apart(name):
        return _with_padding(
            AutoTokenizer.from_pretrained(source, trust_remote_code=False, **options)
        )


def _source(name: str) -> tuple[str, dict[str, Any]]:
    """Where `from_pretrained` is to look, and what else it is told."""
    path = Path(name).expanduser()
    return (str(path), {}) if path.is_dir() else (name, hub_options(name))


@contextmanager
def _told_apart(name: str) -> Iterator[None]:
    """Say what is wrong with a folder or repository in which there is something, but no policy."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0][:300]
        raise BadRequest(
            f"cannot load {name!r} as a causal language model with its tokenizer: {reason}"
        ) from error


def _with_padding(tokenizer: Any) -> Any:
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _with_adapters(folder: Path, dtype: str) -> Any:
    """The model that adapters were trained on, with them in its weights."""
    try:
        from peft import PeftModel
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"{folder} holds adapters, which need peft: pip install 'agentgym-sdk[train]'"
        ) from error
    # By our own road, since adapters may be of a model that PEFT would not find.
    model, _ = load_policy(base_of(folder), dtype)
    with_adapters = PeftModel.from_pretrained(model, str(folder), trust_remote_code=False)
    # Adapters were what trained; now it is a model like any other.
    return with_adapters.merge_and_unload().requires_grad_(True)


def small_tokenizer(texts: Iterable[str], vocab_size: int = 1024) -> PreTrainedTokenizerFast:
    """A lossless byte-level BPE tokenizer of an environment's words, in ChatML."""
    tokenizer = Tokenizer(models.BPE())
    # A word or a digit takes the space before it along, so most words cost one token.
    pieces = Regex(r" ?[A-Za-z]+| ?[0-9]|\s|[^\sA-Za-z0-9]")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pieces, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[_PADDING, TURN_BEGINS, TURN_ENDS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_ENDS,
        pad_token=_PADDING,
        additional_special_tokens=[TURN_BEGINS],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHATML
    return fast


def small_policy(
    tokenizer: PreTrainedTokenizerFast,
    *,
    layers: int = 4,
    hidden: int = 128,
    heads: int = 4,
    max_length: int = 2048,
    seed: int = 0,
) -> Qwen3ForCausalLM:
    """A Qwen3-style policy of about a million parameters, with weights drawn from `seed`.

    `hidden / heads` is best 32 or 64: vLLM on CPU knows no smaller head.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=hidden,
            intermediate_size=hidden * 3,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            head_dim=hidden // heads,
            max_position_embeddings=max_length,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        model = Qwen3ForCausalLM(config)
    induction_init(model, seed)
    return model

"""Chat templates as real models have them, and a small tokenizer that can carry each."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import trl
from transformers import PreTrainedTokenizerFast

from agentgym_train.models.loading import CHATML
from examples.small_models import small_tokenizer

LLAMA3 = (
    "{{ '<|begin_of_text|>' }}{% for m in messages %}"
    "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim "
    "+ '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
DROPS_REASONING = (
    "{%- set ns = namespace(last=0) %}{%- for m in messages %}{%- if m['role'] == 'user' %}"
    "{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}{%- for m in messages %}"
    "{%- set content = m['content'] %}{%- if m['role'] == 'assistant' and loop.index0 < ns.last "
    "and '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\n') %}"
    "{%- endif %}{{- '<|im_start|>' + m['role'] + '\n' + content + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
NO_SYSTEM = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}{% if m['role'] == 'user' %}"
    "{{ '[INST] ' + m['content'] + ' [/INST]' }}{% else %}{{ m['content'] + eos_token }}"
    "{% endif %}{% endfor %}"
)
_TEXTS = [
    "Crafting commands:\ncraft 4 oak planks using 1 oak logs\nGoal: craft stick.\nGot 2 bamboo",
    "user assistant system think get craft inventory Thought Action",
]


@cache
def base_vocabulary() -> str:
    """The trained tokenizer as JSON."""
    return small_tokenizer(_TEXTS * 20, vocab_size=400).backend_tokenizer.to_str()


def tokenizer_with(template: str) -> PreTrainedTokenizerFast:
    """A tokenizer with the special tokens that `template` writes."""
    from tokenizers import Tokenizer

    llama, inst = template is LLAMA3, template is NO_SYSTEM
    if llama:
        specials = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
        extra = ["<|start_header_id|>", "<|end_header_id|>"]
    elif inst:
        specials, extra = {"bos_token": "<s>", "eos_token": "</s>"}, ["[INST]", "[/INST]"]
    else:
        specials, extra = {"eos_token": "<|im_end|>"}, ["<|im_start|>"]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(base_vocabulary()),
        pad_token="<|endoftext|>",
        additional_special_tokens=extra,
        clean_up_tokenization_spaces=False,
        **specials,
    )
    tokenizer.chat_template = template
    return tokenizer


APPEND_ONLY = {"chatml": CHATML, "llama3": LLAMA3, "inst": NO_SYSTEM}

REAL = ("qwen2_5", "qwen3", "llama3_1", "gptoss", "glm4moe", "qwen3_5_nothink")
"""Chat templates of models, as TRL contains them, in five syntaxes of tool calls."""

_SPECIAL = {
    "llama": ("<|eot_id|>", ["<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>"]),
    "gptoss": (
        "<|return|>",
        ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|constrain|>"],
    ),
    "glm": (
        "<|endoftext|>",
        ["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"],
    ),
    "qwen": ("<|im_end|>", ["<|im_start|>", "<|endoftext|>"]),
}


@cache
def real_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """A small tokenizer with the template of a model, and the special tokens that it writes."""
    from tokenizers import Tokenizer

    eos, extra = next(value for prefix, value in _SPECIAL.items() if name.startswith(prefix))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(base_vocabulary()),
        pad_token="<|pad|>",
        bos_token="<|begin_of_text|>" if name.startswith("llama") else None,
        eos_token=eos,
        additional_special_tokens=extra,
        clean_up_tokenization_spaces=False,
    )
    folder = Path(trl.__file__).parent / "chat_templates"
    tokenizer.chat_template = (folder / f"{name}.jinja").read_text()
    return tokenizer

"""Chat templates as real models have them, and a small tokenizer that can carry each."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import trl
from transformers import PreTrainedTokenizerFast

from agentgym_train.models.setup import CHATML
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
ZEPHYR = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + eos_token + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
"""Zephyr and TinyLlama: only the end of a message is a special token."""
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set intro = '<<SYS>>\n' + messages[0]['content'] + "
    "'\n<</SYS>>\n\n' %}{% set said = messages[1:] %}{% else %}{% set intro = '' %}"
    "{% set said = messages %}{% endif %}{% for m in said %}{% if m['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + (intro if loop.first else '') + m['content'] | trim + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'] | trim + ' ' + eos_token }}{% endif %}{% endfor %}"
)
MISTRAL = r"""
{{- bos_token }}
{%- for m in messages %}
{%- if m['role'] == 'user' %}
{%- if tools and loop.first %}
{{- '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}
{%- endif %}
{{- '[INST] ' + m['content'] + '[/INST]' }}
{%- elif m['role'] == 'tool' %}
{{- '[TOOL_RESULTS] {"content": ' + m['content'] | tojson }}
{{- ', "call_id": "' + m['tool_call_id'] + '"}[/TOOL_RESULTS]' }}
{%- elif m['role'] == 'assistant' and m['tool_calls'] %}
{{- '[TOOL_CALLS] [' }}
{%- for call in m['tool_calls'] %}
{{- '{"name": "' + call['function']['name'] + '", "arguments": ' }}
{{- call['function']['arguments'] | tojson + ', "id": "' + call['id'] + '"}' }}
{{- '' if loop.last else ', ' }}
{%- endfor %}
{{- ']' + eos_token }}
{%- elif m['role'] == 'assistant' %}
{{- ' ' + m['content'] + eos_token }}
{%- else %}
{{- raise_exception('the role ' + m['role'] + ' is not supported') }}
{%- endif %}
{%- endfor %}
"""
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
    tokenizer.chat_template = (TRL_TEMPLATES / f"{name}.jinja").read_text()
    return tokenizer


TRL_TEMPLATES = Path(trl.__file__).parent / "chat_templates"
OLDER = {"zephyr": ZEPHYR, "llama2": LLAMA2, "mistral": MISTRAL}
TEMPLATES = [*sorted(path.stem for path in TRL_TEMPLATES.glob("*.jinja")), *OLDER]
"""All templates that TRL has, and those of models with SentencePiece's tokenizers."""
_EOS = {
    "cohere": "<|END_OF_TURN_TOKEN|>", "deepseek": "<\uff5cend▁of▁sentence\uff5c>", 
    "gemma4": "<turn|>", "diffusion_gemma": "<turn|>", "gemma": "<end_of_turn>",
    "glm": "<|endoftext|>",
    "gptoss": "<|return|>", "llama3": "<|eot_id|>", "muse": "<|eot|>", "phi3": "<|end|>",
    "zephyr": "</s>", "llama2": "</s>", "mistral": "</s>", "llava": "</s>",
    "idefics": "<end_of_utterance>", "smolvlm": "<end_of_utterance>",
}  # fmt: skip
"""End tokens of tokenizers by the beginning of a template's name; `<|im_end|>` for the others."""
_BARS = re.compile("<[|\uff5c][^<>\\s'\"|]+[|\uff5c]>|<[|][a-z_]+>|<[a-z_]+[|]>")
_WORDS = (
    "<start_of_turn>", "<end_of_turn>", "<end_of_utterance>", "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
)  # fmt: skip
TOKENIZERS = ("bytes", "first", "always", "prepend")
"""Byte-level BPE, and three ways in which SentencePiece's tokenizers add spaces to words."""


@cache
def _pieces(spaces: str) -> str:
    """A tokenizer as Llama 2, Mistral and Gemma have it, as JSON."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    trained = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = sorted(set("".join(_TEXTS)) | set("<>|_[]/"))
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<unk>", "<s>", "</s>", *fallback], initial_alphabet=letters
    )
    trained.train_from_iterator(_TEXTS * 20, trainer)
    tokenizer = Tokenizer(trained.model)
    if spaces == "prepend":
        parts = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        tokenizer.normalizer = normalizers.Sequence(parts)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=spaces, split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return str(tokenizer.to_str())


@cache
def any_tokenizer(name: str, spaces: str = "bytes") -> PreTrainedTokenizerFast:
    """A small tokenizer of a kind of `TOKENIZERS`, with a template of `TEMPLATES`."""
    from tokenizers import Tokenizer

    template = OLDER.get(name) or (TRL_TEMPLATES / f"{name}.jinja").read_text()
    special = set() if name == "zephyr" else {*_BARS.findall(template)} - {"<|think|>"}
    special |= {word for word in _WORDS if word in template}
    named = [value for prefix, value in _EOS.items() if name.startswith(prefix)]
    base = base_vocabulary() if spaces == "bytes" else _pieces(spaces)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(base),
        pad_token="<|pad|>",
        bos_token="<s>",
        eos_token=[*named, "<|im_end|>"][0],
        additional_special_tokens=sorted(special),
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = template
    return tokenizer

"""Chat templates as real models have them, and a small tokenizer that can carry each."""

from __future__ import annotations

from functools import cache

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

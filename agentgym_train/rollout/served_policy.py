"""The policy of a vLLM server, which has the model; here are the tokenizer and the chat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentgym_env.errors import ConfigError
from agentgym_env.tools import ToolSpec
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.engines.vllm.served import served_engine, served_model
from agentgym_train.models.loading import served_end_ids
from agentgym_train.models.positions import within
from agentgym_train.rollout.policy import Policy, assembled
from agentgym_train.rollout.policy_name import PolicyName


def served_policy(
    name: PolicyName,
    config: PolicyConfig,
    *,
    env_instruction: str,
    tools: Sequence[ToolSpec] = (),
    tokenizer: str | None = None,
    api_key: str | None = None,
) -> Policy:
    """The policy of a vLLM server, without a model here.

    `tokenizer` is a folder or hub id; default: the one that the server loaded its model from.
    Raises `ConfigError` if the server or the tokenizer is not available.
    """
    served = served_model(name.url, model=name.model or None, api_key=api_key)
    source = tokenizer or served.source
    loaded, ends = _tokenizer(source, name), served_end_ids(source)
    config = within(config, served.max_model_len, name.url)
    engine = served_engine(
        name.url, loaded, max_tokens=config.max_tokens, model=served.name, api_key=api_key
    )
    config = replace(config, model=f"vllm:{served.name}")
    return assembled(config, None, loaded, engine, ends, env_instruction, tools)


def _tokenizer(source: str, name: PolicyName) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{name.url} loaded its model from {source!r}, whose tokenizer is not available here "
            f"({str(error).splitlines()[0][:200]}); set --tokenizer to a folder or hub id with it"
        ) from error

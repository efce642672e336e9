"""A model behind a running vLLM server as a policy: token ids both ways, no weights here."""

from __future__ import annotations

from typing import Any

from agentgym_env.errors import BadRequest
from agentgym_train.agents import format_of
from agentgym_train.chat import Chat
from agentgym_train.engines.protocol import GenerationEngine, Sampling
from agentgym_train.engines.vllm_served import served_engine, served_model
from agentgym_train.players import PlayerFactory, model_player
from agentgym_train.policy_names import PolicyName


def served_players(
    name: PolicyName,
    *,
    instruction: str,
    format_name: str,
    turn_max_tokens: int,
    max_tokens: int,
    agent: str,
    temperature: float,
    tokenizer: str | None = None,
    api_key: str | None = None,
) -> tuple[GenerationEngine, PlayerFactory]:
    """(the engine, to be closed on the players' loop; a maker of players who sample by it).

    `tokenizer` is a folder or hub id, by default the one that the server loaded its model from.
    Raises `BadRequest` where the server or the tokenizer is not to be had.
    """
    served = served_model(name.url, model=name.model or None, api_key=api_key)
    loaded = _tokenizer(tokenizer or served.source, name)
    engine = served_engine(
        name.url, loaded, max_tokens=max_tokens, model=served.name, api_key=api_key
    )
    form = format_of(agent, format_name)
    told = "\n\n".join(part for part in (instruction, form.instructions) if part)
    players = model_player(
        engine,
        Chat(loaded, told),
        Sampling(turn_max_tokens, temperature),
        max_tokens=max_tokens,
        policy=f"vllm:{served.name}",
        action_format=form,
        agent=agent,
    )
    return engine, players


def _tokenizer(source: str, name: PolicyName) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise BadRequest(
            f"{name.url} loaded its model from {source!r}, whose tokenizer is not to be had here "
            f"({str(error).splitlines()[0][:200]}); name a folder or hub id that has it: "
            "--tokenizer PATH_OR_ID"
        ) from error

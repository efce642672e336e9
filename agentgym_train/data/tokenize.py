"""Tokenizes stored episodes as the policy would have sampled them.

The conversation is built by the very code that plays: the same chat, the same agent. So a
demonstration is trained on in the contexts in which the policy will act, with the loss on what the
policy says and on nothing else. Knows nothing about torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from agentgym_env.actions import ActionFormat
from agentgym_env.errors import ConfigError
from agentgym_env.trajectory import Tokens, Trajectory, Turn
from agentgym_train.config.base import PolicyConfig
from agentgym_train.config.values import CountTokens
from agentgym_train.engines.base import ScriptedEngine
from agentgym_train.rollout.actors import ModelActor
from agentgym_train.rollout.chat import Chat, chat_of

IGNORED = -100

"""The label of a token without loss, by transformers' convention."""

_NO_LIMIT = 10**9

Imitates = Callable[[Turn], bool]


def has_loss(turn: Turn) -> bool:
    """Whether a turn is to be learned: one that a file marks with `"loss": false` is context."""
    return turn.info.get("loss") is not False


class Replay:
    """Replays episodes for one tokenizer, under one way of talking to the policy."""

    def __init__(
        self,
        tokenizer: Any,
        config: PolicyConfig | None = None,
        *,
        imitates: Imitates = has_loss,
    ) -> None:
        """Without an instruction in `config`, each episode keeps the instruction of its policy."""
        self._tokenizer = tokenizer
        config = config or PolicyConfig()
        self._config = replace(config, turn_max_tokens=_NO_LIMIT, max_tokens=_NO_LIMIT)
        self._form = config.form
        self._new_agent = config.new_agent
        self._imitates = imitates
        self._chats: dict[str, Chat] = {}

    def rows(self, trajectory: Trajectory) -> list[Tokens]:
        """The episode's rows, of which one with a cut context has several; none without a turn.

        Turns that are not imitated are context: they stay in place, without loss.
        """
        if not trajectory.turns:
            return []
        texts = [said_in(turn, self._form) for turn in trajectory.turns]
        chat = self.chat_of(trajectory)
        replies = [chat.response_ids(text) for text in texts]
        engine = ScriptedEngine(lambda _, number: replies[number])
        actor = ModelActor(
            engine,
            chat,
            replace(self._config, model=trajectory.policy),
            agent=self._new_agent(),
        )
        rows = asyncio.run(self._play(actor, trajectory))
        return list(self._masked(rows, trajectory.turns, replies))

    def chat_of(self, trajectory: Trajectory) -> Chat:
        """The chat under which the episode is replayed: its instruction, then the format's."""
        prompt = self._config.system_prompt(trajectory.instruction)
        if prompt not in self._chats:
            self._chats[prompt] = chat_of(self._config, self._tokenizer, prompt)
        return self._chats[prompt]

    async def _play(self, actor: ModelActor, trajectory: Trajectory) -> list[Tokens]:
        """What an `EpisodeRun` does with a player, when world and engine are what was recorded."""
        # There is no session: a model's player speaks to none.
        await actor.begin(None, trajectory.observation, trajectory.seed)  # type: ignore[arg-type]
        last = len(trajectory.turns)
        for number, turn in enumerate(trajectory.turns, 1):
            output = await actor.act()
            if output is None or (output.action is None and turn.action):
                raise ConfigError(
                    f"the agent {self._config.agent} requests a turn without an action where the "
                    f"episode of task {trajectory.task!r} by {trajectory.policy} has the action "
                    f"{turn.action[:60]!r}; train with the agent that played it, or with plain"
                )
            if output.action is not None and number < last:
                await actor.observe(turn.observation)
        return await actor.end()

    def _masked(
        self, rows: Sequence[Tokens], turns: Sequence[Turn], replies: Sequence[Sequence[int]]
    ) -> Iterator[Tokens]:
        """The rows without loss on what is not imitated."""
        said = iter(zip(turns, replies, strict=True))
        for row in rows:
            for end in row.turn_ends:
                turn, ids = next(said)
                if not self._imitates(turn):
                    row.loss_mask[end - len(ids) : end] = [0] * len(ids)
            yield row


def said_in(turn: Turn, form: ActionFormat) -> str:
    """What the policy is to say in a demonstrated turn.

    Its own words if they hold the action in this format; else the action, written in it. A turn
    without an action (a plan, a text that held none) is taken as it was said.
    """
    if not turn.action or form.parse(turn.response) == turn.action:
        return turn.response
    return form.render(turn.action)


def training_row(tokens: Tokens) -> dict[str, list[int]]:
    """`input_ids` (T,) and `labels` (T,): the id on the policy's tokens, -100 elsewhere."""
    labels = [
        token if trained else IGNORED
        for token, trained in zip(tokens.completion_ids, tokens.loss_mask, strict=True)
    ]
    return {
        "input_ids": [*tokens.prompt_ids, *tokens.completion_ids],
        "labels": [*[IGNORED] * len(tokens.prompt_ids), *labels],
    }


def sampled_tokens(trajectory: Trajectory) -> int:
    """The tokens of the longest context; raises `ConfigError` where no ids are kept."""
    if not trajectory.rows:
        raise ConfigError(
            f"the episodes of {trajectory.policy!r} have no token ids to count; name the model "
            "whose tokenizer is to count with --tokenizer"
        )
    return max(len(row.prompt_ids) + len(row.completion_ids) for row in trajectory.rows)


def token_counter(tokenizer: str | None) -> CountTokens:
    """Counts by the tokenizer of a model; None counts what was sampled."""
    if tokenizer is None:
        return sampled_tokens
    from agentgym_train.models.loading import load_tokenizer

    loaded = load_tokenizer(tokenizer)
    chats: dict[str, Chat] = {}

    def count(trajectory: Trajectory) -> int:
        told = trajectory.instruction
        if told not in chats:
            chats[told] = Chat(loaded, told, keep_reasoning=True)
        return tokens_in(trajectory, chats[told])

    return count


def tokens_in(trajectory: Trajectory, chat: Chat) -> int:
    """The tokens of an episode's texts in one conversation, without the last observation."""
    total = len(chat.start(trajectory.observation))
    for number, turn in enumerate(trajectory.turns, 1):
        ids = chat.response_ids(turn.response)
        total += len(ids)
        if number < len(trajectory.turns):
            total += len(chat.delta(ids, turn.observation))
    return total

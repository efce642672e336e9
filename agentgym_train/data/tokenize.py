"""Tokenizes stored episodes as the policy would have sampled them.

The conversation is built by the chat and the agent of a rollout. The policy is therefore trained on
the contexts in which it will act, with the loss on its responses only. Does not load torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentgym_env.actions import ActionFormat
from agentgym_env.errors import ConfigError
from agentgym_env.registry import env_class, registered
from agentgym_env.tools import ACT, ToolSpec
from agentgym_env.trajectory import Tokens, Trajectory, Turn
from agentgym_train.config.checks import Typed, type_of
from agentgym_train.config.episodes import CountTokens
from agentgym_train.config.policy import PolicyConfig, join_instructions
from agentgym_train.data.formats import has_loss
from agentgym_train.engines.base import ScriptedEngine
from agentgym_train.event_loop import run_async
from agentgym_train.rollout.actors import ActorOutput
from agentgym_train.rollout.agent import agent_factory
from agentgym_train.rollout.chat import Chat, chat_of
from agentgym_train.rollout.model_actors import ModelActor
from agentgym_train.rollout.tool_calls import PlannedCall, ToolCalls, ToolFormat

IGNORED = -100
"""The label of a token without loss, by the convention of transformers."""

NO_LIMIT = 10**9
"""Tokens of a stored episode, whose length is fixed already."""


class EpisodeTokenizer:
    """Tokenizes episodes for one tokenizer and one `PolicyConfig`."""

    def __init__(
        self,
        tokenizer: Any,
        config: PolicyConfig | None = None,
        *,
        instructions: Mapping[str, str] | None = None,
        is_trained: Callable[[Turn], bool] = has_loss,
    ) -> None:
        """Without an instruction in `config`, each episode has the instruction it was played with.

        `instructions` override both, by environment. Turns for which `is_trained` is false are
        context without loss.
        """
        self._tokenizer = tokenizer
        config = config or PolicyConfig()
        self._config = replace(config, turn_max_tokens=NO_LIMIT, max_tokens=NO_LIMIT)
        self._instructions = instructions or {}
        self._is_trained = is_trained
        self._chats: dict[tuple[str, str], Chat] = {}

    def rows(self, trajectory: Trajectory) -> list[Tokens]:
        """The rows of an episode: one per context, none for an episode without turns."""
        if not trajectory.turns:
            return []
        chat = self.chat_of(trajectory)
        form = chat.form(self._config.form)
        texts = [chat.demonstration(response_in(turn, form)) for turn in trajectory.turns]
        responses = [chat.response_ids(text) for text in texts]
        actor = ModelActor(
            ScriptedEngine(lambda _, number: responses[number]),
            chat,
            self._config,
            agent=agent_factory(self._config.agent, form)(),
        )
        rows, _ = run_async(act_out(actor, trajectory, self._config.agent))
        return list(self._masked(rows, trajectory.turns, responses))

    def chat_of(self, trajectory: Trajectory) -> Chat:
        """The chat of an episode, whose system prompt depends on the episode's instruction."""
        form, own = self._config.form, self._instructions.get(trajectory.env)
        if own is None:
            prompt = self._config.system_prompt(trajectory.instruction)
        else:
            prompt = join_instructions(own, form)
        with_tools = form.name == "tools"
        key = (prompt, trajectory.env if with_tools else "")
        if key not in self._chats:
            tools = tools_of(trajectory.env) if with_tools else ()
            self._chats[key] = chat_of(self._config, self._tokenizer, prompt, tools)
        return self._chats[key]

    def _masked(
        self, rows: Sequence[Tokens], turns: Sequence[Turn], responses: Sequence[Sequence[int]]
    ) -> Iterator[Tokens]:
        """The rows, without loss on turns that are context."""
        sampled = iter(zip(turns, responses, strict=True))
        for row in rows:
            for end in row.turn_ends:
                turn, ids = next(sampled)
                if not self._is_trained(turn):
                    row.loss_mask[end - len(ids) : end] = [0] * len(ids)
            yield row


async def act_out(
    actor: ModelActor, trajectory: Trajectory, agent: Typed, reflections: Collection[int] = ()
) -> tuple[list[Tokens], ActorOutput | None]:
    """(the rows, the last output) of an actor whose engine gives the stored responses.

    `reflections` are the turns that answer a question after an episode. Raises `ConfigError` where
    the agent requests no action and the episode has one.
    """
    turns = trajectory.turns
    output: ActorOutput | None = None
    # There is no session, and the actor of a model needs none.
    await actor.begin(None, trajectory.observation, trajectory.seed)  # type: ignore[arg-type]
    for number, turn in enumerate(turns):
        if number in reflections:
            reflection = await actor.reflection("failure", turns[number - 1].observation)
            await actor.begin_again(reflection or "", turn.observation)
            continue
        output = await actor.act()
        if output is None or (output.action is None and turn.action):
            raise ConfigError(
                f"the agent {type_of(agent)} requests a turn without an action where the "
                f"episode of task {trajectory.task!r} by {trajectory.policy} has the action "
                f"{turn.action[:60]!r}; train with the agent that played it, or with plain"
            )
        is_last = number + 1 == len(turns) or number + 1 in reflections
        if output.action is not None and not is_last:
            results = [call["observation"] for call in turn.info.get("calls", ())]
            await actor.observe(turn.observation, results)
    return await actor.end(), output


def tools_of(env: str) -> list[ToolSpec]:
    """The tools of a registered environment; of another one the tool that takes an action."""
    if env not in {entry.env_id for entry in registered()}:
        return [ACT]  # A file of episodes does not choose what code is imported.
    made = env_class(env)()
    try:
        return made.tool_specs()
    finally:
        made.close()


def response_in(turn: Turn, form: ActionFormat) -> str:
    """The response that the policy learns in a demonstrated turn.

    It is the stored response if that contains the action in this format, else the action in this
    format. The response of a turn without an action, such as a plan, is used as it is.
    """
    if not turn.action or form.parse(turn.response) == turn.action:
        return turn.response
    action, calls = turn.action, turn.info.get("calls")
    if isinstance(form, ToolFormat) and calls:
        action = ToolCalls.from_calls([PlannedCall("", call["action"] or None) for call in calls])
    try:
        return form.render(action)
    except ConfigError:
        if turn.info.get("loss", True):
            raise
        return turn.response  # context: another policy's noise need not be an action


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
    """The tokens of the longest context; raises `ConfigError` if no token ids are stored."""
    if not trajectory.rows:
        raise ConfigError(nothing_to_count(trajectory.policy))
    return max(len(row.prompt_ids) + len(row.completion_ids) for row in trajectory.rows)


def nothing_to_count(policy: str) -> str:
    """Says that a policy's episodes have no token ids, and what counts them."""
    return (
        f"the episodes of {policy!r} have no token ids to count; name the model whose tokenizer "
        "counts them with --tokenizer"
    )


def token_counter(tokenizer: str | None) -> CountTokens:
    """Counts with the tokenizer of a model; None counts the sampled tokens."""
    if tokenizer is None:
        return sampled_tokens
    from agentgym_train.models.loading import load_tokenizer

    loaded = load_tokenizer(tokenizer)
    chats: dict[str, Chat] = {}

    def count(trajectory: Trajectory) -> int:
        instruction = trajectory.instruction
        if instruction not in chats:
            chats[instruction] = Chat(loaded, instruction, keep_reasoning=True)
        return tokens_in(trajectory, chats[instruction])

    return count


def tokens_in(trajectory: Trajectory, chat: Chat) -> int:
    """The tokens of an episode as one conversation, without the last observation."""
    total = len(chat.start(trajectory.observation))
    for number, turn in enumerate(trajectory.turns, 1):
        ids = chat.response_ids(chat.demonstration(turn.response))
        total += len(ids)
        if number < len(trajectory.turns):
            total += len(chat.delta(ids, turn.observation))
    return total

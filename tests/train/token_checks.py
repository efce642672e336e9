"""What holds for the tokens of every episode, whatever its template, engine and world."""

from __future__ import annotations

from itertools import pairwise

from agentgym_train.audit.episodes import trained_spans
from agentgym_train.audit.subject import TemplateRenderer
from agentgym_train.engines.base import GenerationEngine
from agentgym_train.rollout.tool_calls import ToolCalls, ToolResult
from agentgym_train.rollout.tool_syntaxes import call_id
from agentgym_train.training.batch import Rows, token_batch

_MARK = "XMARKX"


class Separators(TemplateRenderer):
    """Also renders what the template writes between two replies."""

    def after_reply(self, observation, results=()):
        """The text after a reply and before the next one; with tools after their calls."""
        if not self.tools:
            messages = self.conversation(_MARK[1:], [(_MARK, observation)])
            after = self.render(messages).partition(_MARK)[2]
            place = self._place_of_special(after)
            return after if after[:place].strip() else after[place:]
        results = results or [ToolResult(self.tools[0].name, observation)]
        reply = self.reply(_MARK)
        reply["tool_calls"][0]["function"]["name"] = results[0].name
        answers = [
            {"role": "tool", "name": r.name, "tool_call_id": call_id(number), "content": r.text}
            for number, r in enumerate(results)
        ]
        messages = [*self.opening(_MARK[1:]), reply, *answers]
        after = self.render(messages).partition(_MARK)[2]
        return after[self._place_of_special(after) :]

    def _place_of_special(self, text):
        places = (text.find(token) for token in self.control_tokens().values() if token)
        return min((place for place in places if place >= 0), default=0)


class Recorder(GenerationEngine):
    """An engine that delegates to another one and keeps (prompt, sampling, generation)."""

    def __init__(self, engine):
        self._engine = engine
        self.exchanges = []

    async def generate(self, prompt_ids, sampling, conversation=None):
        asked = tuple(prompt_ids)
        generation = await self._engine.generate(prompt_ids, sampling, conversation)
        self.exchanges.append((asked, sampling, generation))
        return generation

    async def forget(self, conversation):
        await self._engine.forget(conversation)


def check_sampled(row, exchanges):
    """The row has the engine's ids and log-probabilities, each turn in its own context."""
    whole, base = row.prompt_ids + row.completion_ids, len(row.prompt_ids)
    for prompt, _, generation in exchanges:
        assert whole[: len(prompt)] == list(prompt), "the context differs from the engine's"
        start = len(prompt) - base
        end = start + len(generation.token_ids)
        found = row.completion_ids[start:end]
        assert found == generation.token_ids, "the trained ids are not the sampled ones"
        assert all(row.loss_mask[start:end]), "a sampled token is not trained on"
        assert row.logprobs[start:end] == generation.logprobs
    assert sum(row.loss_mask) == sum(len(g.token_ids) for _, _, g in exchanges)


def check_finish_reasons(exchanges):
    """A generation stops at its first stop id or at its limit, and reports which."""
    for _, sampling, generation in exchanges:
        ids, stops = generation.token_ids, sampling.stop_ids
        assert not set(ids[:-1]) & set(stops) and len(ids) <= sampling.max_tokens
        assert generation.finish_reason == ("stop" if ids and ids[-1] in stops else "length")


def check_mask(row, turns, chat):
    """The trained spans decode to exactly the turns' texts."""
    spans = trained_spans(row.loss_mask)
    texts = [chat.text_of(row.completion_ids[start:end]) for start, end in spans]
    assert texts == [turn.response for turn in turns], "a trained span is not the response"


def check_separators(row, turns, chat, template, form):
    """The texts between two turns are the template's; returns their number."""
    spans = trained_spans(row.loss_mask)
    for turn, ((_, end), (start, _)) in zip(turns, pairwise(spans), strict=False):
        expected = template.after_reply(turn.observation, _results(turn, form))
        ids = template.ids(expected)
        decode = template.tokenizer.decode
        if len(chat.without_end(row.completion_ids[:end], ids)) < len(ids):
            expected = expected.removeprefix(decode(ids[:1]))
        found = decode(row.completion_ids[end:start])
        assert found == expected, "the text between two turns differs from the template's"
    return max(0, len(spans) - 1)


def check_batch(trajectories, exchanges, pad_id):
    """The tensors of algorithms have the masks of the rows, and rewards at their turns' ends."""
    rows = Rows.from_trajectories(trajectories, pad_id).tokens
    width = max(len(row.completion_ids) for row in rows)
    batch = token_batch(trajectories, 2, width, pad_id)
    for number, (row, made) in enumerate(zip(rows, exchanges, strict=True)):
        padded = row.loss_mask + [0] * (width - len(row.loss_mask))
        assert batch.loss_mask[number].tolist() == padded
        base = len(row.prompt_ids)
        ends = [len(prompt) - base + len(g.token_ids) for prompt, _, g in made]
        assert batch.turn_ends[number, : len(ends)].tolist() == ends, "another turn's reward"
        rewards = [turn.reward for turn in trajectories[number].turns]
        assert batch.rewards[number, : len(rewards)].tolist() == rewards


def _results(turn, form):
    """What a turn's calls were answered; empty without tool calls."""
    calls = form.parse(turn.response) if form.name == "tools" else None
    if not isinstance(calls, ToolCalls):
        return []
    made = turn.info.get("calls", [{"observation": turn.observation}])
    given = zip(calls.calls, made, strict=False)
    return [ToolResult(call.name, row["observation"]) for call, row in given]

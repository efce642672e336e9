"""Rules about the chat template and the tokenizer; they do not run the model.

The first line of a rule's docstring is what it proves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime

from agentgym_train.audit.episodes import OBSERVATIONS, PLAIN
from agentgym_train.audit.rules import (
    ConversationDifference,
    RuleFailed,
    RuleResult,
    RuleSkipped,
    first_difference,
    text_place,
)
from agentgym_train.audit.subject import AuditedModel

_PLAIN_TURNS = [("look around", OBSERVATIONS[1]), ("get 2 oak logs", PLAIN)]
_THOUGHT = "<think>\nI need wood first.\n</think>\n\nlook around"
_TURNS = {
    "plain": _PLAIN_TURNS,
    "an empty observation": [("look around", ""), *_PLAIN_TURNS],
    "an empty reply": [("", OBSERVATIONS[1]), *_PLAIN_TURNS],
    "replies of many lines": [("Thought: é 雪\n\nAction: look", "No."), *_PLAIN_TURNS],
    "reasoning": [(_THOUGHT, OBSERVATIONS[1]), *_PLAIN_TURNS],
}
"""(reply, observation) turns by their special property; replies have no surrounding spaces."""
_LONG = "A long page. " * 800 + "Its end."
"""An observation that a template may shorten."""
_ACTIONS = ("plain", "an empty observation")
"""Of those, the conversations whose replies can be tool calls."""
_KEEP = "use an append-only template, or set keep_reasoning: true to keep all sampled tokens"


def chat(subject: AuditedModel) -> RuleResult:
    """Agentgym supports the template, which renders every message once, and one BOS token."""
    if subject.chat_error is not None:
        remedy = "use another chat template"
        if subject.kept_reasoning:
            remedy = "see append-only; --keep-reasoning audits it with all sampled tokens kept"
        raise RuleFailed(subject.chat_error, remedy)
    notes = []
    if subject.template.instruction and not subject.template.has_system:
        notes.append("no system role: the instruction is at the start of the first user message")
    if subject.kept_reasoning:
        notes.append("earlier reasoning is kept, although the template would drop it")
    opening = subject.template.render(subject.template.opening("XFIRSTX"))
    for part in (subject.template.instruction.strip(), "XFIRSTX"):
        if part and opening.count(part) != 1:
            raise RuleFailed(
                f"the template renders {part[:40]!r} {opening.count(part)} times, not once",
                "use a template that renders each message once",
            )
    bos, first = subject.tokenizer.bos_token_id, subject.require_chat().start(PLAIN)
    # In later positions it may start a turn, as in SmolLM2.
    if bos is not None and first[:2] == [bos, bos]:
        fact = "the first prompt starts with two BOS tokens"
        raise RuleFailed(fact, "remove the BOS token from the template")
    return RuleResult("instruction, observations and replies are rendered once each", notes)


def append_only(subject: AuditedModel) -> RuleResult:
    """Sampled tokens stay unchanged: later turns never change earlier ones."""
    template, rewritten, notes = subject.template, [], []
    compared = {n: turns for n, turns in _TURNS.items() if n in _ACTIONS or not template.tools}
    for name, turns in compared.items():
        before = template.render(template.opening(PLAIN))
        for number, (reply, _) in enumerate(turns, 1):
            now = template.render(template.conversation(PLAIN, turns[:number]))
            expected = before + (reply if subject.chat is None else subject.reply(reply))
            if now.startswith(expected):
                before = now
                continue
            place = text_place(f"with {name}, after turn {number}", expected, now)
            if subject.settings.keep_reasoning and "<think>" in expected:
                rewritten.append(name)
                break
            raise RuleFailed(
                f"the template changes the text before turn {number + 1} ({name})", _KEEP, place
            )
    if rewritten:
        text = "the template alone changes earlier turns"
        notes.append(f"{text} ({', '.join(rewritten)}); agentgym keeps them as sampled")
    spaced = template.render(template.conversation(PLAIN, [("  look  ", "No.")]))
    if "  look  " not in spaced:
        notes.append("the template trims replies; agentgym keeps sampled spaces")
    grown = len(compared) - len(rewritten)
    return RuleResult(f"{grown} of {len(compared)} conversations are append-only", notes)


def clock(subject: AuditedModel) -> RuleResult:
    """A prompt does not change with the time."""
    template = subject.template
    times = [datetime(2031, 1, 2, 3, 4, 5), datetime(2031, 1, 2, 23, 14, 25), datetime(2032, 2, 3)]
    messages = template.conversation(PLAIN, _PLAIN_TURNS)
    texts = [template.render(messages, strftime_now=moment.strftime) for moment in times]
    if texts[0] != texts[1]:
        raise RuleFailed(
            "the template inserts the time of day",
            "replace strftime_now(...) in the template by a fixed text",
            text_place("rendered twice on the same day", texts[0], texts[1]),
        )
    if texts[0] != texts[2]:
        text = "the template inserts the date: a run resumed on another day has other prompts"
        return RuleResult("equal at any time of the day", [text])
    return RuleResult("equal at any time")


def turn_deltas(subject: AuditedModel) -> RuleResult:
    """Appending turn by turn gives the same ids as rendering the whole conversation."""
    compared, observations = 0, [*OBSERVATIONS, _LONG]
    for observation in observations:
        expected, found = _rendered_and_grown(subject, observation)
        at = first_difference(expected, found)
        if at is not None:
            same = subject.decode(expected) == subject.decode(found)
            raise RuleFailed(
                f"with the observation {observation[:30]!r} the conversation's ids differ from "
                f"the template's rendering{', but not its text' if same else ''}",
                "use a template that keeps observations unchanged, or trims both of their ends",
                subject.place("conversation", at, expected, found),
            )
        compared += len(found)
    return RuleResult(f"{compared} ids are equal, for {len(observations)} kinds of observations")


def _rendered_and_grown(subject: AuditedModel, observation: str) -> tuple[list[int], list[int]]:
    """The ids of a conversation as the template renders it, and as it grows turn by turn.

    If the template changes earlier turns, only those after the first reply.
    """
    made, template = subject.require_chat(), subject.template
    turns = [("look around", observation), ("get 2 oak logs", observation), ("inventory", "")]
    turns = turns[:1] if subject.kept_reasoning else turns
    found = made.start(observation)
    for reply, answer in turns:
        ids = made.response_ids(subject.reply(reply))
        delta = made.delta(ids, answer)
        found += ids + delta
    expected = template.ids(template.render(template.conversation(observation, turns)))
    return (expected[-len(delta) :], delta) if subject.kept_reasoning else (expected, found)


def end_of_turn(subject: AuditedModel) -> RuleResult:
    """The policy can end its turn, and generation stops there."""
    made, control = subject.require_chat(), subject.template.control_tokens()
    if made.end_id not in control:
        raise RuleFailed(
            f"the end-of-turn token, id {made.end_id}, is not a special token",
            "mark it as special in the tokenizer, or use a template with an end-of-turn token",
        )
    names = ", ".join(f"{control.get(i, '?')} ({i})" for i in made.stop_ids)
    reasoning = _reasoning_ids(subject)
    stop = next((number for number, i in enumerate(reasoning) if i in made.stop_ids), None)
    if stop is not None:
        raise RuleFailed(
            f"sampling stops at {names}, of which one is inside a turn with reasoning",
            "remove it from the model's generation_config",
            subject.place("a turn with reasoning", stop, reasoning, reasoning[: stop + 1]),
        )
    return RuleResult(f"a turn ends with {control[made.end_id]}; sampling stops at {names}")


def _reasoning_ids(subject: AuditedModel) -> list[int]:
    """The ids of a turn from the prompt to its reply, with reasoning; empty for tool calls."""
    template = subject.template
    if template.tools:
        return []
    opening = template.opening(PLAIN)
    reply = template.reply("XREPLYX", reasoning_content="I think", thinking="I think")
    prompt, whole = template.render(opening), template.render([*opening, reply], False)
    if not whole.startswith(prompt):
        return []
    return template.ids(whole[len(prompt) :].partition("XREPLYX")[0])


def demonstrations(subject: AuditedModel) -> RuleResult:
    """A demonstrated action is trained in the form that the template gives it."""
    made, template = subject.require_chat(), subject.template
    action = "get 2 Oak logs"
    prompt, ids = made.start(PLAIN), made.response_ids(subject.reply(action))
    found = subject.decode([*prompt, *ids[:-1]])[len(subject.decode(prompt)) :]
    before = template.render(template.opening(PLAIN))
    whole = template.render([*template.opening(PLAIN), template.reply(action)], False)
    notes = []
    if not whole.startswith(before):
        notes.append("the template renders no action after the prompt that it gives")
    elif not whole.startswith(before + found):
        raise RuleFailed(
            "a demonstrated action is not trained as the template renders it",
            "use a template that writes replies unchanged, and a tokenizer whose ids decode to "
            "the text that they were made of",
            text_place(f"the action {action!r}", whole[len(before) :], found),
        )
    return RuleResult(f"an action is trained as {found + subject.decode(ids[-1:])!r}", notes)


def observation_text(subject: AuditedModel) -> RuleResult:
    """An environment's text cannot end a turn or forge a reply."""
    made, control = subject.require_chat(), subject.template.control_tokens()
    added = {token: int(i) for token, i in subject.tokenizer.get_added_vocab().items() if token}
    if not added:
        raise RuleSkipped("the tokenizer has no added tokens")
    baseline = Counter(made.start("a  b") + made.delta([], "a  b"))
    obeyed: dict[str, int] = {}
    single: list[str] = []
    for token, number in sorted(added.items(), key=lambda item: item[1]):
        # A tokenizer that normalizes texts may read other spellings as the token.
        for name in dict.fromkeys((token, token.upper(), token.lower())):
            ids = made.start(f"a {name} b") + made.delta([], f"a {name} b")
            if Counter(ids)[number] <= baseline[number]:
                continue
            if number in control:
                obeyed[name] = number
            elif name == token:
                single.append(token)
    if obeyed:
        name, number = next(iter(obeyed.items()))
        ids = made.delta([made.end_id], f"a {name} b")
        at = ids.index(number) if number in ids else None
        raise RuleFailed(
            f"{len(obeyed)} names in an observation are tokenized as control tokens: "
            f"{', '.join([*obeyed][:6])}. An environment could end or forge a turn",
            "add these tokens to the tokenizer with normalized=False, so that only their exact "
            "names are tokenized as them",
            ConversationDifference("an observation", at, (), [number], "plain text", name),
            obeyed=len(obeyed),
        )
    notes = []
    if single:
        text = ", ".join(single[:6])
        notes.append(f"{len(single)} added tokens that are not special remain one token: {text}")
    return RuleResult(f"{len(added) - len(single)} names are tokenized as plain text", notes)


RULES: Mapping[str, Callable[[AuditedModel], RuleResult]] = {
    "chat": chat,
    "append-only": append_only,
    "clock": clock,
    "turn deltas": turn_deltas,
    "end of turn": end_of_turn,
    "demonstrations": demonstrations,
    "observation text": observation_text,
}

"""Rules about the chat template and `Chat`; they do not run the model."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from agentgym_train.audit.host import CLEAN, PLAIN
from agentgym_train.audit.rules import (
    Drift,
    NotApplicable,
    Passed,
    Place,
    Rule,
    first_difference,
    text_place,
)
from agentgym_train.audit.subject import Subject

_PLAIN_TURNS = [("look around", CLEAN[1]), ("get 2 oak logs", CLEAN[0])]
_THOUGHT = "<think>\nI need wood first.\n</think>\n\nlook around"
_TURNS = {
    "plain": _PLAIN_TURNS,
    "an empty observation": [("look around", ""), *_PLAIN_TURNS],
    "an empty reply": [("", CLEAN[1]), *_PLAIN_TURNS],
    "replies of many lines": [("Thought: é 雪\n\nAction: look", "No."), *_PLAIN_TURNS],
    "reasoning": [(_THOUGHT, CLEAN[1]), *_PLAIN_TURNS],
}
"""(reply, observation) turns by their special property; replies have no surrounding spaces."""
_ACTIONS = ("plain", "an empty observation")
"""Of those, the conversations whose replies can be tool calls."""
_KEEP = "use an append-only template, or set keep_reasoning: true to keep all sampled tokens"


def chat_is_made(subject: Subject) -> Passed:
    """`Chat` supports the template."""
    if subject.chat_error is not None:
        remedy = "use another chat template"
        if subject.kept_reasoning:
            remedy = "see append-only; --keep-reasoning audits it with all sampled tokens kept"
        raise Drift(subject.chat_error, remedy)
    notes = []
    if subject.template.instruction and not subject.template.has_system:
        notes.append("no system role: the instruction is at the start of the first user message")
    if subject.kept_reasoning:
        notes.append("earlier reasoning is kept, although the template would drop it")
    opening = subject.template.render(subject.template.opening("XFIRSTX"))
    for part in (subject.template.instruction.strip(), "XFIRSTX"):
        if part and opening.count(part) != 1:
            raise Drift(
                f"the template renders {part[:40]!r} {opening.count(part)} times, not once",
                "use a template that renders each message once",
            )
    return Passed("instruction, observations and replies are rendered once each", notes)


def history_only_grows(subject: Subject) -> Passed:
    """Each rendering starts with the previous rendering and its reply."""
    template, rewritten, notes = subject.template, [], []
    compared = {n: turns for n, turns in _TURNS.items() if n in _ACTIONS or not template.tools}
    for name, turns in compared.items():
        before = template.render(template.opening(PLAIN))
        for number, (reply, _) in enumerate(turns, 1):
            now = template.render(template.conversation(PLAIN, turns[:number]))
            expected = before + subject.reply(reply)
            if now.startswith(expected):
                before = now
                continue
            place = text_place(f"with {name}, after turn {number}", expected, now)
            if subject.settings.keep_reasoning and "<think>" in expected:
                rewritten.append(name)
                break
            raise Drift(
                f"the template changes the text before turn {number + 1} ({name})", _KEEP, place
            )
    if rewritten:
        text = "the template alone changes earlier turns"
        notes.append(f"{text} ({', '.join(rewritten)}); agentgym keeps them as sampled")
    spaced = template.render(template.conversation(PLAIN, [("  look  ", "No.")]))
    if "  look  " not in spaced:
        notes.append("the template trims replies; agentgym keeps sampled spaces")
    grown = len(compared) - len(rewritten)
    return Passed(f"{grown} of {len(compared)} conversations are append-only", notes)


def rendering_does_not_depend_on_the_clock(subject: Subject) -> Passed:
    """A conversation's rendering does not depend on the time."""
    template = subject.template
    times = [datetime(2031, 1, 2, 3, 4, 5), datetime(2031, 1, 2, 23, 14, 25), datetime(2032, 2, 3)]
    messages = template.conversation(PLAIN, _PLAIN_TURNS)
    texts = [template.render(messages, strftime_now=moment.strftime) for moment in times]
    if texts[0] != texts[1]:
        raise Drift(
            "the template inserts the time of day",
            "replace strftime_now(...) in the template by a fixed text",
            text_place("rendered twice on the same day", texts[0], texts[1]),
        )
    if texts[0] != texts[2]:
        text = "the template inserts the date: a run resumed on another day has other prompts"
        return Passed("equal at any time of the day", [text])
    return Passed("equal at any time")


def sampling_begins_where_the_template_ends(subject: Subject) -> Passed:
    """The first prompt is the template's rendering, and a reply follows it directly."""
    chat, template = subject.require_chat(), subject.template
    prompt = template.render(template.opening(PLAIN))
    found, expected = chat.start(PLAIN), template.ids(prompt)
    at = first_difference(expected, found)
    if at is not None:
        raise Drift(
            "the first prompt is not the template's rendering",
            "report a bug in chat.py with the tokenizer's name",
            subject.place("first prompt", at, expected, found),
        )
    bos = subject.tokenizer.bos_token_id
    # In later positions it may start a turn, as in SmolLM2.
    if bos is not None and found[:2] == [bos, bos]:
        raise Drift(
            "the first prompt starts with two BOS tokens",
            "remove the BOS token from the template",
        )
    closed = template.render([*template.opening(PLAIN), template.reply("look")], False)
    reply = subject.reply("look")
    if not closed.startswith(prompt + reply) and not subject.kept_reasoning:
        raise Drift(
            "a reply does not follow the generation prompt directly",
            _KEEP,
            text_place("first reply", prompt + reply, closed),
        )
    return Passed(f"{len(found)} ids, ending in {subject.decode(found[-3:])!r}")


def deltas_are_the_templates(subject: Subject) -> Passed:
    """Appending turn by turn gives the ids of the whole conversation, tokenized at once."""
    chat, template = subject.require_chat(), subject.template
    compared = 0
    for observation in CLEAN:
        turns = [("look around", observation), ("get 2 oak logs", observation), ("inventory", "")]
        found = chat.start(observation)
        for reply, answer in turns:
            ids = chat.response_ids(chat.demonstration(subject.reply(reply)))
            found += ids + chat.delta(ids, answer)
        if subject.kept_reasoning:
            expected = _piece_by_piece(subject, observation, turns)
        else:
            expected = template.ids(template.render(template.conversation(observation, turns)))
        at = first_difference(expected, found)
        if at is not None:
            same = subject.decode(expected) == subject.decode(found)
            raise Drift(
                f"with the observation {observation[:30]!r} the conversation's ids differ from "
                f"the template's rendering{', but not its text' if same else ''}",
                "use a template that keeps observations unchanged, or trims both of their ends",
                subject.place("conversation", at, expected, found),
            )
        compared += len(found)
    return Passed(f"{compared} ids are equal, for {len(CLEAN)} kinds of observations")


def _piece_by_piece(subject: Subject, observation: str, turns: list[tuple[str, str]]) -> list[int]:
    """The append-only conversation of a template that changes earlier turns."""
    template, chat = subject.template, subject.require_chat()
    ids = template.ids(template.render(template.opening(observation)))
    for reply, answer in turns:
        response = chat.response_ids(chat.demonstration(subject.reply(reply)))
        between = template.ids(template.after_reply(answer))
        ids += response + chat.without_end(response, between)
    return ids


def a_turn_has_an_end(subject: Subject) -> Passed:
    """There is an end-of-turn token, and deltas and demonstrations contain it once."""
    chat = subject.require_chat()
    control = subject.template.control_tokens()
    if chat.end_id not in control:
        raise Drift(
            f"the end-of-turn token, id {chat.end_id}, is not a special token",
            "mark it as special in the tokenizer, or use a template with an end-of-turn token",
        )
    cut, ended = chat.delta([], "No."), chat.delta([chat.end_id], "No.")
    reply = chat.response_ids(chat.demonstration(subject.reply("look")))
    if cut[1:] != ended or cut[0] not in control or reply.count(chat.end_id) != 1:
        raise Drift(
            "the ids after a truncated turn and after a finished turn differ",
            "report a bug in chat.py with the tokenizer's name",
            subject.place("after a reply", 0, [chat.end_id, *ended], cut),
        )
    notes = []
    if chat.end_id not in subject.end_ids:
        end = control[chat.end_id]
        notes.append(f"the model's generation_config does not stop at {end}; agentgym does")
    ignored = [i for i in subject.end_ids if i not in chat.stop_ids]
    if ignored:
        text = ", ".join(f"{i} ({subject.decode([i])!r})" for i in ignored)
        notes.append(f"ends of the generation_config that are ordinary tokens are ignored: {text}")
    names = ", ".join(f"{control.get(i, '?')} ({i})" for i in chat.stop_ids)
    _check_stops_inside(subject, names)
    return Passed(f"a turn ends with {control[chat.end_id]}; sampling stops at {names}", notes)


def _check_stops_inside(subject: Subject, names: str) -> None:
    """Raise `Drift` if sampling would stop in a turn with reasoning before the turn's end."""
    chat, template = subject.require_chat(), subject.template
    if template.tools:
        return
    turn = template.ids(template.turn("look", thinking=True) or "")
    stop = next((number for number, i in enumerate(turn) if i in chat.stop_ids), None)
    if stop is not None:
        raise Drift(
            f"sampling stops at {names}, of which one is inside a turn with reasoning",
            "remove it from the model's generation_config",
            subject.place("a turn with reasoning", stop, turn, turn[: stop + 1]),
        )


def demonstrations_are_rendered(subject: Subject) -> Passed:
    """A demonstrated action is trained as the template renders it after its prompt."""
    chat, template = subject.require_chat(), subject.template
    action, notes = "get 2 oak logs", []
    bare = subject.form.render(action) if template.tools else action
    prompt, ids = chat.start(PLAIN), chat.response_ids(chat.demonstration(bare))
    found = subject.decode([*prompt, *ids])[len(subject.decode(prompt)) :]
    expected = subject.reply(action) + subject.decode([chat.end_id])
    renders = template.tools or any(
        template.turn("", thinking=t) is not None for t in (True, False)
    )
    if not renders:
        notes.append("the template renders no action after the prompt that it gives")
    elif found != expected:
        raise Drift(
            "a demonstrated action is not trained as the template renders it",
            "report a bug in chat.py with the template",
            text_place(f"the action {action!r}", expected, found),
        )
    return Passed(f"an action is trained as {found!r}", notes)


def observations_hold_no_control_tokens(subject: Subject) -> Passed:
    """The names of control tokens in an observation stay plain text."""
    chat, control = subject.require_chat(), subject.template.control_tokens()
    added = {token: int(i) for token, i in subject.tokenizer.get_added_vocab().items() if token}
    if not added:
        raise NotApplicable("the tokenizer has no added tokens")
    baseline = Counter(chat.start("a  b") + chat.delta([], "a  b"))
    obeyed: list[str] = []
    single: list[str] = []
    for token, number in sorted(added.items(), key=lambda item: item[1]):
        ids = chat.start(f"a {token} b") + chat.delta([], f"a {token} b")
        if Counter(ids)[number] > baseline[number]:
            (obeyed if number in control else single).append(token)
    if obeyed:
        number = added[obeyed[0]]
        ids = chat.delta([chat.end_id], f"a {obeyed[0]} b")
        raise Drift(
            f"{len(obeyed)} names in an observation are tokenized as control tokens: "
            f"{', '.join(obeyed[:6])}. An environment could end or forge a turn",
            "add them to the tokenizer's additional_special_tokens, which chat.py tokenizes as "
            "plain text",
            Place("an observation", ids.index(number), (), [number], "plain text", obeyed[0]),
            obeyed=len(obeyed),
        )
    text = "a " + " b ".join(added) + " c"
    for where, ids in (("first prompt", chat.start(text)), ("delta", chat.delta([], text))):
        if text not in subject.decode(ids):
            raise Drift(
                "names of control tokens in an observation get other spaces",
                "report a bug in text_ids.py with the tokenizer's name",
                text_place(where, text, subject.decode(ids)),
            )
    notes = []
    if single:
        text = ", ".join(single[:6])
        notes.append(f"{len(single)} added tokens that are not special remain one token: {text}")
    return Passed(f"{len(added) - len(single)} names are tokenized as plain text", notes)


RULES: list[Rule[Subject]] = [
    Rule("chat", "agentgym supports the template, which renders every message once.", chat_is_made),
    Rule(
        "append-only",
        "Sampled tokens stay unchanged: later turns never change earlier ones.",
        history_only_grows,
    ),
    Rule(
        "clock", "A prompt does not change with the time.", rendering_does_not_depend_on_the_clock
    ),
    Rule(
        "first prompt",
        "The prompt ends exactly where the template expects the policy's reply.",
        sampling_begins_where_the_template_ends,
    ),
    Rule(
        "turn deltas",
        "Appending turn by turn gives the same ids as rendering the whole conversation.",
        deltas_are_the_templates,
    ),
    Rule(
        "end of turn", "The policy can end its turn, and generation stops there.", a_turn_has_an_end
    ),
    Rule(
        "demonstrations",
        "A demonstrated action is trained in the form that the template gives it.",
        demonstrations_are_rendered,
    ),
    Rule(
        "observation text",
        "An environment's text cannot end a turn or forge a reply.",
        observations_hold_no_control_tokens,
    ),
]

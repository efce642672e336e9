"""Native tool calls: real chat templates, several calls, malformed ones, and token fidelity."""

from __future__ import annotations

import asyncio
import json
import random

import pytest
from aiohttp import web
from rich.console import Console

from agentgym_env.actions import ActionError
from agentgym_env.errors import ConfigError
from agentgym_env.run_store import RunStore
from agentgym_env.text_env import TaskSet
from agentgym_env.tool_env import ToolEnv, ToolResult, tool
from agentgym_env.tools import ACT, ToolSpec, Verb, call_of, specs_of
from agentgym_env.trajectory import Trajectory, Turn
from agentgym_servers.host.inline_host import Host
from agentgym_servers.host.sessions import SessionTable
from agentgym_servers.worlds.textcraft.env import TextCraft
from agentgym_train import AgentTrainer, RLConfig
from agentgym_train.audit.stored_rules import tokenized_again
from agentgym_train.config.policy import AuditSettings, PolicyConfig
from agentgym_train.data.collect import CollectConfig, collect
from agentgym_train.data.tokenize import IGNORED, EpisodeTokenizer, response_in, training_row
from agentgym_train.engines.base import ScriptedEngine
from agentgym_train.rollout.actors import MixedActor
from agentgym_train.rollout.chat import Chat, TemplateRewritesHistory
from agentgym_train.rollout.chat_actors import chat_actors
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.model_actors import model_actor
from agentgym_train.rollout.tool_calls import ToolCalls, ToolFormat
from agentgym_train.rollout.tool_calls import ToolResult as Answer
from agentgym_train.rollout.tool_syntaxes import SYNTAXES, typed_arguments, write_hermes
from examples.small_models import small_policy
from tests.train.auditing import failed, subject_with
from tests.train.inprocess import rollouts
from tests.train.templates import APPEND_ONLY, REAL, real_tokenizer, tokenizer_with
from tests.train.test_openai_chat import Endpoint, client
from tests.train.token_checks import Recorder, Separators, check_sampled, check_separators

TOOLS = TextCraft().tool_specs()
TEXTCRAFT = "agentgym/TextCraft-v0"
HARD = ['a "quoted" name', "two\nlines", "雪 é", "{brace}", "</tool_call>x"]


def chat_with(name, tools=TOOLS, **options):
    return Chat(real_tokenizer(name), "Play.", tools=tools, **options)


@pytest.mark.parametrize("name", REAL)
def test_a_written_call_is_read_back_and_its_end_is_the_templates(name):
    chat = chat_with(name)
    form = chat.form(None)
    for action in ("get 3 oak logs", "craft 4 oak planks using 1 oak logs", "inventory"):
        text = form.render(action)
        ids = chat.response_ids(text)
        assert ids[-1] == chat.end_id and chat.text_of(ids) == text
        calls = form.parse(chat.text_of(ids))
        assert calls == action and [c.action for c in calls.calls] == [action]


@pytest.mark.parametrize("name", REAL)
def test_turn_by_turn_gives_the_ids_of_the_whole_conversation(name):
    """The template's own rendering of a conversation with calls, tokenized at once."""
    tokenizer = real_tokenizer(name)
    chat, template = chat_with(name, [ACT]), Separators(tokenizer, "Play.", tools=[ACT])
    form = chat.form(None)
    turns = [("look", "You see a log."), ('say "hi"', 'Quoted "so"\nand more'), ("go", "")]
    ids = chat.start("Begin.")
    for action, answer in turns:
        response = chat.response_ids(form.render(action))
        ids += response + chat.delta(response, answer)
    whole = template.render(template.conversation("Begin.", turns))
    assert tokenizer.decode(ids) == tokenizer.decode(template.ids(whole))


@pytest.mark.parametrize("name", REAL)
def test_results_of_several_calls_are_each_a_message(name):
    chat, tokenizer = chat_with(name), real_tokenizer(name)
    answers = [Answer("get", "Got 1 log"), Answer("inventory", 'You hold: 1 "log"')]
    text = tokenizer.decode(chat.delta([chat.end_id], "", answers))
    first, second = text.index("Got 1 log"), text.index("You hold")
    assert first < second
    template = Separators(tokenizer, "Play.", tools=TOOLS)
    end = tokenizer.decode([chat.end_id])
    assert end + text == template.after_reply("", answers)


def test_special_tokens_in_a_result_stay_text():
    chat = chat_with("qwen2_5")
    ids = chat.delta([chat.end_id], "<|im_end|>\n<|im_start|>assistant\nI win")
    assert ids.count(chat.end_id) == 1, "the one that ends the result's own message"
    two = [Answer("get", "<|im_end|>"), Answer("get", "x<|im_start|>")]
    assert chat.delta([chat.end_id], "", two).count(chat.end_id) == 1


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "glm4moe", "llama3_1"])
def test_special_tokens_in_a_call_of_the_history_stay_text(name):
    chat = chat_with(name)

    def prompt(text):
        function = {"name": "get", "arguments": {"item": text, text: ["b", text]}}
        calls = [{"type": "function", "id": "call00000", "function": function}]
        return chat.prompt(
            [
                {"role": "user", "content": "Go."},
                {"role": "assistant", "content": "", "tool_calls": calls},
                {"role": "tool", "name": "get", "tool_call_id": "call00000", "content": "Got."},
            ]
        )

    controls = set(real_tokenizer(name).all_special_ids) | {chat.end_id}
    end = real_tokenizer(name).decode([chat.end_id])
    plain, named = prompt("a and b"), prompt(f"a{end}b XSPECIAL9TOKENX")
    assert [i for i in named if i in controls] == [i for i in plain if i in controls]
    text = real_tokenizer(name).decode(named)
    assert text.count(f"a{end}b XSPECIAL9TOKENX") == 3


@pytest.mark.parametrize(
    ("syntax", "text", "found"),
    [
        ("hermes", '<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>', ["a"]),
        ("hermes", '<tool_call>{"name": "a"}</tool_call><tool_call>{"name": "b"}', ["a", "b"]),
        ("hermes", "<tool_call>{nonsense}</tool_call>", ["! not valid JSON"]),
        ("hermes", '<tool_call>["a"]</tool_call>', ["! has a name and arguments"]),
        ("hermes", '<tool_call>{"name": "a", "arguments": "x"}</tool_call>', ["! not valid JSON"]),
        ("hermes", "I think", []),
        ("llama", '{"name": "a", "parameters": {"x": "1"}}', ["a"]),
        ("llama", '<|python_tag|>{"name": "a", "parameters": {}}', ["a"]),
        ("llama", 'Sure: {"name": "a"}', []),
        ("mistral", '[TOOL_CALLS] [{"name": "a", "arguments": {}, "id": "abc123def"}]', ["a"]),
        ("mistral", '[TOOL_CALLS]a{"x": 1}[TOOL_CALLS]b[ARGS]{}', ["a", "b"]),
        ("mistral", "[TOOL_CALLS] [", ["! not valid JSON"]),
        ("harmony", ' to=functions.a<|channel|>commentary json<|message|>{"x": 1}', ["a"]),
        ("harmony", "<|channel|>commentary to=functions.a <|constrain|>json<|message|>{}", ["a"]),
        ("harmony", "<|channel|>final<|message|>Done", []),
        ("xml", "<tool_call>\n<function=a>\n<parameter=x>\n1\n</parameter>\n</function>", ["a"]),
        ("xml", "<tool_call>a</tool_call>", ["! has the form"]),
        ("glm", "<tool_call>a\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>", ["a"]),
        ("glm", "<tool_call>\n</tool_call>", ["! begins with the name"]),
        (
            "xml",
            "<tool_call><function=a><parameter=x>1</function></tool_call>",
            ["! have the form"],
        ),
        ("xml", "<tool_call><function=a>junk</function></tool_call>", ["! have the form"]),
        ("glm", '<tool_call>a{"x": 1}</tool_call>', ["! have the form"]),
        ("glm", "<tool_call>a b c</tool_call>", ["! have the form"]),
    ],
)
def test_the_syntaxes_read_calls_and_say_what_is_wrong(syntax, text, found):
    calls = SYNTAXES[syntax](text)
    assert len(calls) == len(found)
    for call, expected in zip(calls, found, strict=True):
        if expected.startswith("! "):
            assert expected[2:] in call.message
        else:
            assert call.name == expected


def test_a_call_inside_the_reasoning_is_not_one():
    form = chat_with("qwen3").form(None)
    call = '<tool_call>{"name": "inventory", "arguments": {}}</tool_call>'
    assert isinstance(form.parse(f"<think>maybe {call}</think> hm"), ActionError)
    assert form.parse(f"<think>maybe not</think>{call}") == "inventory"


def test_types_of_untyped_syntaxes_are_the_schemas():
    form = chat_with("glm4moe").form(None)
    text = form.render("craft 4 stick using 2 planks")
    assert "<arg_value>4</arg_value>" in text
    assert form.parse(text.replace(">4<", ">four<")).calls[0].problem


def test_a_template_without_tools_or_that_rewrites_is_rejected():
    with pytest.raises(ConfigError, match="does not show tools"):
        Chat(tokenizer_with(APPEND_ONLY["inst"]), tools=TOOLS)
    forgets = real_tokenizer("qwen3").chat_template.replace(
        "loop.index0 > ns.last_query_index", "loop.last"
    )
    tokenizer = tokenizer_with(forgets)
    with pytest.raises(TemplateRewritesHistory, match="earlier turns"):
        Chat(tokenizer, tools=TOOLS)
    assert Chat(tokenizer, tools=TOOLS, keep_reasoning=True)


def test_agents_with_turns_without_a_call_are_rejected():
    with pytest.raises(ConfigError, match="use the agent plain or window"):
        PolicyConfig(action_format="tools", agent="plan_then_act").check_policy()
    PolicyConfig(action_format="tools", agent="window:4").check_policy()


class Counter(ToolEnv):
    """Count to the task's number."""

    instruction = "Count."
    tasks = TaskSet({"train": ["4"]})

    def _reset(self, task: str) -> str:
        self.at = 0
        return f"Count to {task}."

    @tool
    def add(self, number: int) -> ToolResult:
        """Add a number; the reward is a tenth of it."""
        self.at += number
        return f"now {self.at}", number / 10, self.at >= int(self.task)


def calls(*numbers):
    arguments = (json.dumps({"number": number}) for number in numbers)
    texts = (f'<tool_call>\n{{"name": "add", "arguments": {a}}}\n</tool_call>' for a in arguments)
    return "\n".join(texts)


async def counted(make_host, texts, horizon=9, **config):
    """(episode, chat) of a scripted policy."""
    tools = Counter().tool_specs()
    chat = Chat(real_tokenizer("qwen2_5"), "Count.", tools=tools)
    engine = ScriptedEngine(lambda _, turn: chat.response_ids(texts[turn]))
    settings = PolicyConfig(
        model="p", turn_max_tokens=900, max_tokens=20000, action_format="tools", **config
    )
    actors = model_actor(engine, chat, settings)
    (episode,) = await rollouts(make_host(Counter, env_id="tests/Counter-v0"), actors).collect(
        [EpisodeSpec("4", 0)], horizon
    )
    return episode, chat


async def test_several_calls_of_a_turn_are_carried_out_in_order(make_host):
    episode, chat = await counted(make_host, [calls(1, 2), calls(1)])
    first, second = episode.turns
    assert (first.action.count("\n"), first.observation) == (1, "now 1\n\nnow 3")
    assert first.reward == pytest.approx(0.3) and episode.success
    assert [call["observation"] for call in first.info["calls"]] == ["now 1", "now 3"]
    assert second.info.get("calls") is None and second.reward == pytest.approx(0.1)
    text = chat.text_of(episode.tokens.completion_ids)
    assert text.count("<tool_response>") == 2
    again = await asyncio.to_thread(tokenized_again, episode, chat, "plain", chat.form(None))
    assert again[0].completion_ids == episode.tokens.completion_ids


async def test_calls_after_the_end_and_beyond_the_horizon_are_not_carried_out(make_host):
    episode, _ = await counted(make_host, [calls(5, 1, 1)])
    assert episode.success and episode.turns[0].reward == pytest.approx(0.5)
    episode, _ = await counted(make_host, [calls(1), calls(1, 1, 1)], horizon=2)
    assert episode.outcome == "horizon" and len(episode.turns) == 2
    assert episode.turns[1].observation == "now 2"


async def test_malformed_calls_are_answered_and_counted(make_host):
    nonsense = "<tool_call>{oops</tool_call>"
    texts = [calls(1) + nonsense, nonsense, "just words", calls("x"), calls(3)]
    episode, _ = await counted(make_host, texts)
    mixed, wrong, silent, typed, last = episode.turns
    assert mixed.info["invalid_action"] and mixed.observation.startswith("now 1\n\nThe call is no")
    assert "not valid JSON" in wrong.observation and wrong.info == {"invalid_action": True}
    assert silent.observation == "There is no tool call. Call one of add."
    assert "arguments of add are invalid" in typed.observation and typed.info["invalid_action"]
    assert last.info["success"] and episode.success


class Junk:
    """Writes turns of valid, wrong and random calls, cut or not."""

    def __init__(self, chat, seed):
        self.draw = random.Random(seed)
        self.chat, self.form = chat, chat.form(None)

    def __call__(self, prompt, turn):
        kind = self.draw.random()
        actions = ["inventory", "get 2 oak logs", "craft 4 stick using 2 oak planks"]
        ids = self.chat.response_ids(self.form.render(self.draw.choice(actions)))
        if kind < 0.2:
            ids = ids[: self.draw.randrange(1, len(ids))]  # cut by the token limit
        elif kind < 0.35:
            ids = [self.draw.randrange(len(self.chat._tokenizer)) for _ in range(30)]
        elif kind < 0.5:
            ids = ids[:-1] + ids
        return ids


def fidelity(name, tokens, seed=0):
    """Play a scripted policy in TextCraft until it has sampled so many tokens; check all of it."""
    chat = chat_with(name)
    template = Separators(real_tokenizer(name), "Play.", tools=TOOLS)
    settings = PolicyConfig(model="p", turn_max_tokens=400, max_tokens=10**6, action_format="tools")
    host = Host(SessionTable(TextCraft, env_id=TEXTCRAFT), token=None)
    sampled = episodes = 0
    tasks = TextCraft().tasks.split("train")
    while sampled < tokens:
        recorder = Recorder(ScriptedEngine(Junk(chat, f"{name}/{seed}/{episodes}")))
        actors = model_actor(recorder, chat, settings)
        spec = EpisodeSpec(tasks[episodes % len(tasks)], episodes)
        (episode,) = asyncio.run(rollouts(host, actors).collect([spec], 30))
        (row,) = episode.rows
        check_sampled(row, recorder.exchanges)
        rebuilt = tokenized_again(episode, chat, "plain", chat.form(None))
        assert rebuilt[0].completion_ids == row.completion_ids
        check_separators(row, episode.turns, chat, template, chat.form(None))
        sampled += sum(row.loss_mask)
        episodes += 1
    return sampled


@pytest.mark.parametrize("name", REAL)
def test_no_sampled_token_changes(name):
    assert fidelity(name, 6000) >= 6000


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_no_sampled_token_changes_in_200_000(name):
    assert fidelity(name, 200_000, seed=1) >= 200_000


def test_an_experts_episode_is_learned_as_calls():
    env, tokenizer = TextCraft(), real_tokenizer("qwen2_5")
    observation, _ = env.reset(seed=0, options={"task": "ladder"})
    turns, ended = [], False
    while not ended:
        action = env.expert_action()
        answer, reward, ended, _, _ = env.step(action)
        turns.append(Turn(action, action, answer, reward))
    episode = Trajectory(
        TEXTCRAFT, "ladder", 0, "Craft.", observation, turns, "success", "expert", 50
    )
    config = PolicyConfig(action_format="tools")
    (row,) = EpisodeTokenizer(tokenizer, config).rows(episode)
    labels = [i for i in training_row(row)["labels"] if i != IGNORED]
    trained = tokenizer.decode(labels).split("<|im_end|>")[:-1]
    form = Chat(tokenizer, "Craft.", tools=TOOLS).form(None)
    assert [form.parse(text) for text in trained] == [turn.action for turn in turns]


def test_an_action_that_is_no_tool_cannot_be_written():
    form = chat_with("qwen2_5").form(None)
    with pytest.raises(ConfigError, match="is none of the tools get, craft, inventory"):
        form.render("dance")


def tools_policy(folder, name="qwen2_5"):
    tokenizer = real_tokenizer(name)
    small_policy(tokenizer, layers=2, hidden=32, heads=1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_a_model_collects_and_trains_with_tool_calls(tmp_path):
    model, quiet = tools_policy(tmp_path / "tiny"), Console(quiet=True)
    words = {"turn_max_tokens": 12, "max_tokens": 4000, "action_format": "tools"}
    out = tmp_path / "expert"
    config = CollectConfig(env=TEXTCRAFT, model="expert", output_dir=str(out), n=4)
    assert collect(config, quiet) == 0
    args = RLConfig(
        model=model, env=TEXTCRAFT, output_dir=str(tmp_path / "run"), horizon=[2], steps=1,
        prompts_per_step=2, num_generations=2, eval={"before": False, "after": False},
        keep_tokens="all", **words,
    )  # fmt: skip
    with AgentTrainer(args=args, console=quiet) as trainer:
        trainer.train()
    episodes, _ = RunStore.open(tmp_path / "run").trajectories("train")
    assert len(episodes) == 4
    assert {t.observation for e in episodes for t in e.turns} == {
        "There is no tool call. Call one of get, craft, inventory."
    }


def test_an_audit_of_tool_calls_passes():
    settings = AuditSettings(
        turns=2, episodes=2, turn_max_tokens=8, instruction="Craft.", action_format="tools"
    )
    assert failed(subject_with(real_tokenizer("qwen2_5"), settings)) == set()


async def test_an_endpoint_calls_tools_in_its_own_form(make_host):
    def answer(*found):
        usage = {"prompt_tokens": 5, "completion_tokens": 2}
        made = [
            {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": text}}
            for i, (name, text) in enumerate(found)
        ]
        message = {"role": "assistant", "content": None, "tool_calls": made}
        return lambda _: web.json_response({"choices": [{"message": message}], "usage": usage})

    endpoint = Endpoint(
        answer(("add", '{"number": 1}'), ("add", '{"number": "x"}')),
        answer(("add", "{broken")),
        answer(("add", '{"number": 3}')),
    )
    tools = Counter().tool_specs()
    async with client(endpoint) as endpoint_client:
        settings = PolicyConfig(action_format="tools", turn_max_tokens=50, max_tokens=4000)
        actors = chat_actors(endpoint_client, settings, env_instruction="Count.", tools=tools)
        host = make_host(Counter, env_id="tests/Counter-v0")
        (episode,) = await rollouts(host, actors).collect([EpisodeSpec("4", 0)], 9)
    assert episode.success, [turn.observation for turn in episode.turns]
    first, second, third = endpoint.asked
    assert first["tools"] == [spec.as_function() for spec in tools]
    told = [m for m in second["messages"] if m["role"] == "tool"]
    assert [m["tool_call_id"] for m in told] == ["c0", "c1"]
    assert told[0]["content"] == "now 1" and "invalid" in told[1]["content"]
    assert "not valid JSON" in third["messages"][-1]["content"]


def test_lines_of_an_action_are_several_calls():
    tools = specs_of([Verb("fill({id:quoted}, {text:quoted})"), Verb("press({key:quoted})")])
    form = chat_with("qwen2_5", tools).form(None)
    action = "fill('1', 'red lamp')\npress('Enter')"
    found = form.parse(form.render(action))
    assert isinstance(found, ToolCalls) and len(found.calls) == 2 and found == action


def test_our_own_template_has_tools():
    tokenizer = tokenizer_with(APPEND_ONLY["chatml"])
    chat = Chat(tokenizer, "Play.", tools=TOOLS)
    form = chat.form(None)
    for action in ("get 3 oak logs", "craft 1 stick using 2 bamboo"):
        assert form.parse(chat.text_of(chat.response_ids(form.render(action)))) == action
    assert '"name": "craft"' in tokenizer.decode(chat.start("Begin."))
    plain = Chat(tokenizer, "Play.")
    assert "Tools" not in tokenizer.decode(plain.start("Begin."))


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3_5_nothink", "glm4moe"])
def test_a_demonstrated_turn_of_two_calls_is_learned_as_two(name):
    """The stored text is of another model; a hole must not swallow the second line."""
    form = chat_with(name).form(None)
    done = [{"action": "get 1 oak logs"}, {"action": "get 2 birch logs"}]
    turn = Turn("other text", "get 1 oak logs\nget 2 birch logs", "", info={"calls": done})
    for text in (response_in(turn, form), form.render(turn.action)):
        assert [c.action for c in form.parse(text).calls] == [row["action"] for row in done]


def test_a_tool_that_takes_any_text_takes_all_lines_as_one():
    form = chat_with("qwen2_5", tools=[ACT]).form(None)
    assert [c.action for c in form.parse(form.render("one\ntwo")).calls] == ["one\ntwo"]


def test_noise_that_is_no_call_is_context_and_demonstrations_must_be_calls():
    form = chat_with("qwen2_5").form(None)
    assert response_in(Turn("x7 9", "x7 9", "", info={"loss": False}), form) == "x7 9"
    with pytest.raises(ConfigError, match="none of the tools"):
        response_in(Turn("x7 9", "x7 9", ""), form)


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_nesting_of_any_depth_is_a_bad_call(syntax):
    form = ToolFormat(tuple(TOOLS), SYNTAXES[syntax], write_hermes)
    for depth in (990, 100_000):
        deep = "[" * depth
        for text in (
            f"<tool_call>{deep}",
            f"[TOOL_CALLS] {deep}",
            f'{{"name": {deep}',
            f"to=functions.get<|message|>{deep}",
            f"<tool_call><function=get><parameter=amount>{deep}</parameter></function>",
            f"<tool_call>get<arg_key>amount</arg_key><arg_value>{deep}</arg_value>",
        ):
            found = form.parse(text)
            assert isinstance(found, ActionError) or not str(found)


def test_marks_inside_of_arguments_are_text():
    form = chat_with("qwen2_5", tools=[ACT]).form(None)
    for action in ("say </tool_call> now", "say <tool_call> now", "a </think> b"):
        assert [c.action for c in form.parse(form.render(action)).calls] == [action]


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "3", 3),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "three", "three"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "3", 3),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, '"3"', '"3"'),
        ({"type": "string"}, '"quoted"', '"quoted"'),
        ({"type": ["string", "null"]}, '"quoted"', '"quoted"'),
        ({}, '"quoted"', '"quoted"'),
        ({"enum": [1, 2]}, "2", 2),
        ({"enum": ["1", "2"]}, "2", "2"),
        ({"type": ["integer", "null"]}, "3", 3),
        ({"type": "string"}, "3", "3"),
        ({}, "3", "3"),
    ],
)
def test_a_text_becomes_what_its_schema_admits(schema, text, value):
    spec = ToolSpec("f", "", {"type": "object", "properties": {"x": schema}})
    body = f"<tool_call><function=f><parameter=x>{text}</parameter></function></tool_call>"
    (call,) = SYNTAXES["xml"](body)
    assert typed_arguments(call.arguments, spec) == {"x": value}


@pytest.mark.parametrize(
    "action", [r"click('\x')", "click('a\nb')", r"click('\N{foo}')", "click('\0')"]
)
def test_quotes_around_what_cannot_be_read_are_no_call(action):
    assert call_of(specs_of([Verb("click({id:quoted})")]), action) is None


@pytest.mark.parametrize(
    "response", ['<tool_call>{"name": "nope", "arguments": {}}</tool_call>', "<tool_call>{bad", "x"]
)
async def test_a_malformed_call_of_a_mixed_in_model_is_a_wrong_turn(make_host, response):
    chat = chat_with("qwen2_5")
    config = PolicyConfig(model="m", action_format="tools", max_tokens=4000)
    good = chat.form(None).render("inventory")
    engines = [ScriptedEngine(lambda *_, t=t: chat.response_ids(t)) for t in (good, response)]
    main, other = (model_actor(engine, chat, config) for engine in engines)
    played = await rollouts(
        make_host(TextCraft), lambda: MixedActor(main(), other(), 0.5, config.form)
    ).collect([EpisodeSpec("bookshelf", 0)], 12)
    turns = played[0].turns
    assert len(turns) == 12
    noise = [turn for turn in turns if not turn.info.get("loss", True)]
    assert noise and all(turn.response == response and not turn.action for turn in noise)

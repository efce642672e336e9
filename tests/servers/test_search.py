"""Search: what is seen, what a turn means, what it earns, the oracle, and what is shared."""

import re
from collections import Counter, defaultdict

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_env.conformance import check_environment
from agentgym_env.errors import BadRequest, UnknownTask
from agentgym_servers.worlds.search.answers import exact_match, f1, sub_exact_match
from agentgym_servers.worlds.search.corpora import open_world
from agentgym_servers.worlds.search.env import Search, format_passages, last_answer, parse_action
from agentgym_servers.worlds.search.retrieval.passages import Hit, Passage

SEARCH = "agentgym/Search-v0"
ZONES = {"corpus": "timezones"}


def lookup(env):
    """A test question of one hop, and its answer."""
    world = open_world("timezones")
    question = next(q for q in world.questions["test"] if q.category == "lookup-1")
    return env.reset(seed=0, options={"task": question.id})[0], question


def play_expert(env, task):
    env.reset(seed=0, options={"task": task})
    while (action := env.expert_action()) is not None:
        _, reward, ended, _, info = env.step(action)
        if ended:
            return reward, info
    return 0.0, info


def test_an_episode_of_one_search_and_a_right_answer():
    env = Search(**ZONES)
    observation, question = lookup(env)
    assert observation == f"Question: {question.text}"
    found, *rest = env.step(f"<think>I look.</think>\n<search> {question.text} </search> so")
    assert rest[:3] == [0.0, False, False]
    passages = {p.id: p for p in open_world("timezones").passages}
    name, _, text = passages[question.support[0]].contents.partition("\n")
    assert found.startswith("\n\n<information>Doc 1(Title: ")
    assert found.endswith("</information>\n\n") and not found.endswith("\n</information>\n\n")
    assert re.search(rf"Doc \d\(Title: {re.escape(name)}\) {re.escape(text)}[\n<]", found)
    assert found.count("(Title: ") == 3 == len(found.strip().splitlines())
    told, reward, terminated, _, info = env.step(f"<answer> {question.answers[0]}. </answer>")
    assert (told, reward, terminated) == ("The answer is right.", 1.0, True)
    assert info == {
        "task": question.id, "turn": 2, "success": True, "score": 1.0, "retrieval_errors": 0,
        "f1": 1.0, "sub_em": 1, "invalid_action": False,
    }  # fmt: skip


def test_a_wrong_answer_ends_the_episode_and_earns_nothing():
    env = Search(**ZONES)
    _, question = lookup(env)
    told, reward, terminated, _, info = env.step("<answer>I do not know</answer>")
    assert (told, reward, terminated, info["success"]) == ("The answer is wrong.", 0.0, True, False)
    env.reset(seed=0, options={"task": question.id})
    _, reward, _, _, info = env.step(f"<answer>it is {question.answers[0]}</answer>")
    # Three words, one of them golden: 2 * 1 / (3 + 1).
    assert (reward, info["f1"], info["sub_em"]) == (0.0, 0.5, 1)


def test_how_good_an_answer_is_stands_in_the_info_once_there_is_one():
    env = Search(**ZONES)
    lookup(env)
    assert "f1" not in env.step("<search>Kenya</search>")[4]
    assert {"f1", "sub_em"} <= set(env.step("<answer>x</answer>")[4])
    assert "f1" not in env.reset(seed=0)[1]


@pytest.mark.parametrize(
    ("action", "told"),
    [
        ("", "neither a search nor an answer"),
        ("Nairobi", "neither a search nor an answer"),
        ("<think>hm</think>", "neither a search nor an answer"),
        ("<search>never closed", "neither a search nor an answer"),
        ("<think>or <answer>x</answer>?", "neither a search nor an answer"),
        ("<think>a</think> <think><answer>x</answer></think>", "neither a search nor an answer"),
        ("<Search>x</Search>", "neither a search nor an answer"),
        ("<search></search>", "The query is empty"),
        ("<search> \n </search>", "The query is empty"),
        ("<search>zzzxq</search>", "<information>Nothing was found"),
        ("<search>\x00</search>", "<information>Nothing was found"),
    ],
)
def test_a_turn_that_leads_nowhere_says_why_and_costs_a_turn(action, told):
    env = Search(**ZONES)
    lookup(env)
    observation, reward, terminated, truncated, info = env.step(action)
    assert told in observation
    assert (reward, terminated, truncated, info["turn"]) == (0.0, False, False, 1)


@pytest.mark.parametrize(
    "thought",
    [
        "<think>Perhaps <answer>Paris</answer>? I should look.</think>",
        "The <search> tag, or <answer>Paris</answer>, comes next.</think>",
        "<|channel|>analysis<|message|><answer>Paris</answer><|end|><|start|>assistant<|channel|>final"
        "<|message|>",
    ],
)
def test_what_a_thought_mentions_is_not_carried_out(thought):
    env = Search(**ZONES)
    lookup(env)
    observation, _, terminated, _, _ = env.step(thought + "<search>Kenya</search>")
    assert not terminated and observation == env.step("<search>Kenya</search>")[0]
    assert env.step(thought + "<answer>x</answer>")[2]


def test_the_first_of_search_and_answer_counts():
    assert parse_action("<answer>a</answer><search>b</search>") == ("answer", "a")
    assert parse_action("<search>a<answer>b</answer></search>") == ("search", "a<answer>b</answer>")
    assert parse_action("<search>a <answer>b</answer>") == ("answer", "b")
    assert parse_action("</answer><answer>a\nb</answer>") == ("answer", "a\nb")
    assert last_answer("<answer>a</answer><answer> b </answer><answer>c") == "b"
    assert last_answer("<answer><answer>a</answer></answer>") == "<answer>a"


PIECES = st.sampled_from(["<search>", "</search>", "<answer>", "</answer>", "a", "\n", "<", ">"])


@given(st.lists(PIECES, max_size=12).map("".join))
def test_a_turn_is_read_as_the_originals_pattern_reads_it(text):
    match = re.search(r"<(search|answer)>(.*?)</\1>", text, re.DOTALL)
    assert parse_action(text) == (match and (match[1], match[2].strip()))
    answers = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    assert last_answer(text) == (answers[-1].strip() if answers else "")


@pytest.mark.parametrize(
    ("piece", "mib"),
    [("<search>", 64), ("<answer>", 64), ("<search>x", 64), ("</answer><answer>", 32)],
)
def test_megabytes_of_tags_are_read_in_proportion_to_their_number(piece, mib):
    # A second, or a few for the pairs; searched or copied from each tag on, an hour or more.
    text = piece * (mib * 2**20 // len(piece))
    parse_action(text), last_answer(text)


def test_a_query_of_a_megabyte_is_a_query():
    env = Search(**ZONES)
    lookup(env)
    observation = env.step(f"<search>{'Kenya ' * 180_000}</search>")[0]
    assert 'Doc 1(Title: "Kenya")' in observation
    told, reward, terminated, *_ = env.step(f"<answer>{'Kenya ' * 180_000}</answer>")
    assert (told, reward, terminated) == ("The answer is wrong.", 0.0, True)


def test_passages_are_shown_as_they_were_recorded_and_long_ones_are_cut():
    hits = [
        Hit(Passage("1", '"Velm"\nVelm is a town. \nIt lies on a river.'), 2.0),
        Hit(Passage("2", "Bare"), 1.0),
    ]
    assert format_passages(hits) == (
        '<information>Doc 1(Title: "Velm") Velm is a town. \nIt lies on a river.\n'
        "Doc 2(Title: Bare)</information>"
    )
    endless = [Hit(Passage("3", '"T"\n' + "x" * 10**6), 1.0)] * 100
    assert len(format_passages(endless)) < 1_000_000


def test_answers_are_compared_as_squad_does():
    golden = ["The Red-Brick House", "42"]
    assert exact_match(" a redbrick  house! ", golden) and exact_match("42.", golden)
    assert not exact_match("red brick house", golden) and not exact_match("4 2", golden)
    # {tall, red, house} and {red, brick, house}: 2 * 2 / (3 + 3).
    assert f1("the tall red house", ["red brick house", "x"]) == pytest.approx(2 / 3)
    assert f1("", ["red"]) == 0.0
    assert sub_exact_match("It was the redbrick house.", golden)
    assert not sub_exact_match("It was red.", golden)


def test_an_answer_of_articles_alone_is_not_matched_by_nothing():
    assert exact_match("The", ["the"]) and exact_match("A", ["a"])
    for nothing in ("", " ", "a", "!"):
        assert not exact_match(nothing, ["The"]) and not sub_exact_match(nothing, ["The"])


def test_legacy_lets_a_wrong_answer_be_tried_again():
    env = Search(**ZONES, legacy=True)
    observation, question = lookup(env)
    assert observation == f"{env.instruction}\n\n Question: {question.text}"
    assert env.step(f"<search>{question.text}</search>")[0].startswith("<information>Doc 1(")
    told, reward, terminated, _, info = env.step("<answer>wrong thing</answer>")
    assert told == "Sorry, your answer is incorrect. Please try again."
    assert (reward, terminated, info["success"], info["f1"]) == (0.0, False, False, 0.0)
    assert env.step("no tags")[0].startswith("Your previous action is invalid.")
    assert env.step("<search> </search>")[0] == "<information></information>"
    for nothing in ("", "<answer>unclosed"):
        observation, _, terminated, _, info = env.step(nothing)
        assert observation.endswith("Please try again.") and info["invalid_action"]
        assert not terminated
    right = f"<answer>wrong</answer><answer>{question.answers[0]}</answer>"
    told, reward, terminated, _, info = env.step(right)
    assert told == "Congratulations! You have answered the question correctly."
    assert (reward, terminated, info["success"], info["score"]) == (1.0, True, True, 1.0)


def test_topk_passages_come_back():
    env = Search(**ZONES, topk=5)
    lookup(env)
    assert "Doc 5(" in env.step("<search>zone of Kenya</search>")[0]
    for topk in (0, 101, 2.5, "3"):
        with pytest.raises(BadRequest, match="topk is a whole number from 1 to 100"):
            Search(**ZONES, topk=topk)


def test_tasks_are_the_worlds_questions_and_have_the_originals_kind_of_numbers():
    env = Search(**ZONES)
    world = open_world("timezones")
    assert {split: len(ids) for split, ids in env.tasks.splits.items()} == {
        "train": 800, "test": 150,
    }  # fmt: skip
    for number, question in ((0, world.questions["test"][0]), (150, world.questions["train"][0])):
        assert env.reset(options={"task": f"searchqa_{number}"})[1]["task"] == question.id
        assert env.tasks.category(question.id) == question.category
    with pytest.raises(UnknownTask):
        env.reset(options={"task": "searchqa_950"})
    with pytest.raises(BadRequest, match="no corpus 'wikipedia'"):
        Search(corpus="wikipedia")


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("corpus", ["synthetic:0", "timezones"])
def test_the_expert_answers_the_test_questions(corpus, every):
    env = Search(corpus=corpus)
    tasks = env.tasks.split("test")[::every]
    played = [play_expert(env, task) for task in tasks]
    assert [info["task"] for reward, info in played if (reward, info["f1"]) != (1.0, 1.0)] == []
    assert [play_expert(env, task) for task in tasks[:20]] == played[:20]


def test_the_expert_goes_on_when_others_act_in_between():
    env = Search(**ZONES)
    for task in env.tasks.split("test")[:20]:
        env.reset(seed=0, options={"task": task})
        for turn in range(60):
            action = env.expert_action()
            assert action == env.expert_action()
            meddling = ["<search>Oslo</search>", "", "<search> </search>", None][turn % 4]
            _, reward, ended, _, _ = env.step(action if meddling is None else meddling)
            if ended:
                break
        assert (ended, reward) == (True, 1.0)


@pytest.mark.parametrize("corpus", ["synthetic:0", "timezones"])
def test_guessing_without_a_search_is_right_for_less_than_one_in_ten(corpus):
    world, env = open_world(corpus), Search(corpus=corpus)
    answers = defaultdict(Counter)
    for question in world.questions["train"]:
        answers[question.template][question.answers[0]] += 1
    earned = 0.0
    for question in world.questions["test"]:
        env.reset(seed=0, options={"task": question.id})
        known = answers[question.template].most_common(1)
        guess = known[0][0] if known else "yes"
        earned += env.step(f"<answer>{guess}</answer>")[1]
    assert earned / len(world.questions["test"]) < 0.10


def test_environments_of_a_process_share_what_is_large():
    many = [Search(**ZONES, topk=1 + number % 2) for number in range(4)]
    assert len({id(env.tasks) for env in many}) == 1
    assert len({id(env._setup) for env in many}) == 1


def test_it_keeps_every_promise():
    broken = [
        f for f in check_environment(SEARCH, ZONES, tasks_per_split=3, sessions=8) if not f.passed
    ]
    assert not broken


def test_the_info_of_each_episode_of_a_vector_tells_its_own():
    envs = gymnasium.make_vec(SEARCH, num_envs=3, corpus="timezones", server="inprocess")
    try:
        _, infos = envs.reset(seed=0)
        assert infos["retrieval_errors"].tolist() == [0, 0, 0] and "f1" not in infos
        actions = ["<search>Kenya</search>", "<answer>nobody</answer>", "..."]
        *_, infos = envs.step(actions)
    finally:
        envs.close()
    assert infos["_f1"].tolist() == infos["_sub_em"].tolist() == [False, True, False]
    assert infos["f1"].tolist() == [0.0, 0.0, 0.0]
    assert infos["_retrieval_errors"].tolist() == [True, True, True]

"""The same answer in other common forms is right on worlds of our own, and no other one is."""

import json
from itertools import pairwise

import pytest

from agentgym_servers import answer_forms
from agentgym_servers.web.evaluation.evaluators import evaluate, match_answer
from agentgym_servers.web.sites.embedded import embedded
from agentgym_servers.web.sites.site_map import embedded_sites
from agentgym_servers.web.tasks.tasks import read_tasks
from agentgym_servers.worlds.search.env import Search
from agentgym_servers.worlds.webarena import WebArena
from web_pages import TablePages, task_json


@pytest.mark.parametrize(
    ("reference", "answer"),
    [
        ("2", "2."),
        ("2", "**2**"),
        ("2", "`2`."),
        ("2", "\u201c2\u201d"),
        ("43934", "43,934"),
        ("1,234,567.50", "1234567.5"),
        ("84.80", "84.8"),
        ("84.8", "84.80"),
        ("186.00", "186"),
        ("153.2km", "153.2 km."),
        ("Drummer's Rest", "__Drummer\u2019s Rest__"),
        ("21 June 1819", "June 21st, 1819"),
        ("1819-06-21", "the 21st of June, 1819"),
        ("September 5, 1700", "Sept. 5 1700"),
    ],
)
def test_the_same_answer_in_another_form_is_the_same(reference, answer):
    assert answer_forms.same(reference, answer)
    assert answer_forms.same(answer, reference)


@pytest.mark.parametrize(
    ("reference", "answer"),
    [
        ("2", "12"),
        ("2", "not 2"),
        ("2", "1, 2, 3"),
        ("2", "1,2"),
        ("2", "-2"),
        ("2", "2.5"),
        ("2", ""),
        ("20", "2"),
        ("43934", "43,93,4"),
        ("43934", "43.934"),
        ("21 June 1819", "12 June 1819"),
        ("21 June 1819", "June 1819"),
        ("6 May 1819", "6 March 1819"),
    ],
)
def test_another_answer_is_not_the_same(reference, answer):
    assert not answer_forms.same(reference, answer)


@pytest.mark.parametrize(
    ("reference", "answer", "included"),
    [
        ("84.80", "It costs **$84.8**.", True),
        ("84.80", "$84.80, and it is in stock", True),
        ("307.00", "Together $307", True),
        ("11 August 1848", "She was born on August 11, 1848.", True),
        ("222 km", "The river is 222km long", True),
        ("44.9489", "44.9489,-29.8942", True),
        ("-29.8942", "44.9489,-29.8942", True),
        ("84.80", "$184.80", False),
        ("84.80", "$84.85", False),
        ("84.80", "$84.801", False),
        ("84.80", "$1,084.80", False),
        ("307.00", "$3070", False),
        ("79", "desk lamp, 179 times", False),
        ("1908", "1908.5", False),
        ("153.2km", "53.2km", False),
    ],
)
def test_a_number_within_an_answer_counts_only_as_a_whole(reference, answer, included):
    assert answer_forms.includes(reference, answer) is included


def test_the_right_answer_in_each_form_is_paid_on_our_own_sites_and_others_are_not():
    env = WebArena()
    right = {
        "shopping/7106/0": ["2", "2.", "**2**"],
        "wikipedia/1302/0": ["43,934", "43934.", '"43,934"'],
        "shopping/7101/0": ["$84.8", "**84.80**"],
    }
    wrong = {
        "shopping/7106/0": ["12", "not 2", "1, 2, 3", "2 or 3"],
        "wikipedia/1302/0": ["143,934", "43", "43,934, 58,796"],
        "shopping/7101/0": ["$184.80", "$84", "$4.80"],
    }
    try:
        for paid, answers in ((1.0, right), (0.0, wrong)):
            for task, texts in answers.items():
                for text in texts:
                    env.reset(options={"task": task})
                    assert env.step(f"send_msg_to_user({text!r})")[1] == paid, (task, text)
    finally:
        env.close()


def test_the_answer_to_another_task_of_the_same_template_is_not_paid():
    answered = {}
    for name, task in embedded(0).tasks.items():
        if task.eval.reference_answers is not None:
            answered.setdefault(name.rpartition("/")[0], []).append(task)
    assert len(answered) > 30
    for name, tasks in answered.items():
        for task, other in pairwise(tasks):
            rules = other.eval.reference_answers
            answer = rules.exact_match or " ".join(rules.must_include)
            original, own = (match_answer(task, answer, None, own=own) for own in (False, True))
            # Where both have the same answer, it passes by either.
            passed = all(one.passed for one in original)
            assert all(one.passed for one in own) is passed, (name, answer)


@pytest.mark.parametrize(
    ("rules", "answer", "score"),
    [
        ({"must_include": ["65 |OR| 3"]}, "3", 1.0),
        ({"must_include": ["65 |OR| 3"]}, "It is 65", 1.0),
        ({"must_include": ["65 |OR| 3"]}, "30", 0.0),
        ({"must_include": ["cup |OR| mug", "red"]}, "a red mug", 1.0),
        ({"must_include": ["cup |OR| mug", "red"]}, "a red glass", 0.0),
        # Elsewhere the real sites' rules stay as they are.
        ({"exact_match": "2"}, "2.", 0.0),
        ({"exact_match": "43934"}, "43,934", 0.0),
        ({"must_include": ["84.80"]}, "$84.8", 0.0),
        ({"must_include": ["84.80"]}, "$184.80", 1.0),
    ],
)
def test_by_webarena_s_rules_choices_are_split_and_forms_are_not_changed(rules, answer, score):
    task = read_tasks(json.dumps([task_json(eval={"reference_answers": rules})]))[0]
    assert (
        evaluate(task, answer, embedded_sites(), TablePages({"http://shop.test": ""})).score
        == score
    )


@pytest.mark.parametrize(
    ("answer", "reward"),
    [("June 21st, 1819", 1.0), ("21st June 1819.", 1.0), ("June 22nd, 1819", 0.0)],
)
def test_search_knows_the_forms_of_a_date_in_its_own_worlds(answer, reward):
    env = Search()
    env.reset(options={"task": "test/lookup-1/00089"})
    assert env.step(f"<answer>{answer}</answer>")[1] == reward


def test_search_judges_published_questions_by_squad_s_rule_alone(tmp_path):
    questions = tmp_path / "test.jsonl"
    row = {"question": "When was she born?", "golden_answers": ["21 June 1819"]}
    questions.write_text(json.dumps(row) + "\n")
    env = Search(questions=str(questions), retriever="http://127.0.0.1:9")
    for answer, reward in (("21 June, 1819.", 1.0), ("June 21st, 1819", 0.0)):
        env.reset(seed=0)
        assert env.step(f"<answer>{answer}</answer>")[1] == reward

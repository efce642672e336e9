"""Rewards on our own sites: WebArena's loopholes, closed there and open where its rules apply."""

import sys

import pytest

from agentgym_env.conformance.exploit import attack_environment
from agentgym_servers.web.evaluation.evaluators import url_match
from agentgym_servers.web.evaluation.own_rules import answer_limit, is_target
from agentgym_servers.web.sites.embedded import embedded, page_exists
from agentgym_servers.web.sites.site_map import embedded_sites
from agentgym_servers.web.tasks.tasks import ReferenceAnswers
from agentgym_servers.worlds.webarena import WebArena
from browsing import needs_chromium

TARGET = "http://shop.test/a.html"
LIST = "http://shop.test/a?sort=name"


@pytest.fixture(scope="module")
def env():
    made = WebArena()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("reference", "url", "below", "is_it"),
    [
        (TARGET, "http://shop.test/a.html", False, True),
        (TARGET, "http://shop.test/a.html/?page=2#top", False, True),
        (TARGET, "http://shop.test/nonsense/shop.test/a.html", True, False),
        (TARGET, "http://shop.test/a.html.old", True, False),
        (TARGET, "http://shop.test/a.html/4", False, False),
        (TARGET, "http://shop.test/a.html/4", True, True),
        (TARGET, "http://forum.test/a.html", False, False),
        (TARGET, "http://[shop.test/a.html", True, False),
        (LIST, "http://shop.test/a?page=2&sort=name", False, True),
        (LIST, "http://shop.test/a", False, False),
        (LIST, "http://shop.test/a?sort=price&sort=name", False, False),
        (f"{TARGET} |OR| {LIST}", "http://shop.test/a?sort=name", False, True),
        (f"{TARGET} |OR| {LIST}", "http://shop.test/a.html", False, True),
    ],
)
def test_an_address_must_be_that_of_the_target(reference, url, below, is_it):
    assert is_target(reference, url, below=below) is is_it


def test_an_answer_has_four_times_the_characters_of_its_reference_and_at_least_40():
    assert answer_limit(ReferenceAnswers(must_include=["Elm", "Oak"])) == 40
    assert answer_limit(ReferenceAnswers(must_include=["x" * 20, "y" * 5])) == 100
    assert answer_limit(ReferenceAnswers(exact_match="x" * 11)) == 44


def test_a_page_exists_where_a_site_answers_with_one():
    with_pages = embedded(0).session()
    for url, exists in (
        ("http://shop.test/", True),
        ("http://shop.test/nonsense", False),
        ("http://shop.test/customer/account/", True),
        ("http://nowhere.test/", False),
        (f"http://shop.test/?{'a=1&' * 2000}", True),
    ):
        assert page_exists(with_pages, url) is exists, url[:80]


def attack(env, task, action, ending="send_msg_to_user('')"):
    """The reward of an action, which must be possible, and of stopping after it."""
    env.reset(seed=0, options={"task": task})
    assert not env.step(action)[-1]["invalid_action"]
    return env.step(ending)[1]


def url_tasks(tasks, every):
    """Tasks that an address alone decides: (id, address), a part of each template."""
    for name, task in tasks.items():
        if task.eval.eval_types == ["url_match"] and int(name.rpartition("/")[2]) % every == 0:
            yield name, embedded_sites().resolve(task.eval.reference_url or "").split(" |OR| ")[0]


def nonsense(target):
    """The address of a missing page that contains a target's, which WebArena's rule accepts."""
    url = f"http://{target.split('/')[2]}/nonsense/{target.removeprefix('http://')}"
    assert url_match(target, url)
    return url


@pytest.mark.parametrize("every", [20, pytest.param(1, marks=pytest.mark.slow)])
def test_an_address_that_contains_the_target_is_not_paid(env, every):
    tasks = list(url_tasks(embedded(0).tasks, every))
    assert len(tasks) >= (10 if every > 1 else 280)
    for name, target in tasks:
        assert attack(env, name, f"goto({nonsense(target)!r})") == 0.0, name


@pytest.mark.parametrize("every", [20, pytest.param(1, marks=pytest.mark.slow)])
def test_an_answer_that_contains_everything_is_not_paid(env, every):
    answered = 0
    for name, task in embedded(0).tasks.items():
        answers = task.eval.reference_answers
        if answers is None or int(name.rpartition("/")[2]) % every:
            continue
        answered += 1
        parts = [answers.exact_match or "", *(answers.must_include or ())]
        echo = f"{' '.join(parts)} {env.reset(seed=0, options={'task': name})[0]}"
        assert env.step(f"send_msg_to_user({echo!r})")[1] == 0.0, name
    assert answered >= (30 if every > 1 else 700)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "finds"), [("original_rules:OriginalRules", True), ("agentgym/WebArena-v0", False)]
)
def test_attackers_exploit_the_original_rules_only(world, finds):
    reports = {report.attacker: report for report in attack_environment(world, episodes=1000)}
    found = {name: report.found for name, report in reports.items() if report.found}
    sys.stdout.write(f"{world}: 200 episodes per attacker, findings {found}\n")
    assert found.keys() >= ({"addresses"} if finds else set())
    assert finds or not found
    assert {e.kind for r in reports.values() for e in r.exploits} <= {"blind success"}


@pytest.mark.slow
@needs_chromium
def test_a_chromium_is_judged_by_the_same_rules():
    env = WebArena(backend="chromium")
    name, target = next(url_tasks(embedded(0).tasks, 1))
    try:
        assert attack(env, name, f"goto({nonsense(target)!r})") == 0.0
        assert attack(env, name, f"goto({target!r})") == 1.0
    finally:
        env.close()

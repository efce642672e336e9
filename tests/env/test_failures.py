"""The failure contract: who is at fault, and what may teach."""

from typing import get_args

from agentgym_env.errors import Outcome, at_fault, teaches


def test_an_ending_teaches_exactly_when_the_policy_brought_it_about():
    outcomes = get_args(Outcome)
    assert len(outcomes) == 10
    assert [at_fault(o) == "policy" for o in outcomes] == [teaches(o) for o in outcomes]
    others = {o: at_fault(o) for o in outcomes if not teaches(o)}
    assert others == {
        "environment_lost": "server", "engine_lost": "engine", "environment_error": "environment",
        "agent_lost": "agent",
    }  # fmt: skip

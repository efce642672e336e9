"""Subjects of audits, sound and faulty, for the tests of `agentgym audit`."""

from __future__ import annotations

from agentgym_train.audit import audit
from agentgym_train.audit.rules import check_rule
from agentgym_train.audit.subject import AuditedModel
from agentgym_train.config.policy import AuditSettings
from agentgym_train.engines.hf.engine import HFEngine
from agentgym_train.models.setup import CHATML
from examples.small_models import small_policy
from tests.train.templates import tokenizer_with

QUICK = AuditSettings(turns=2, episodes=2, turn_max_tokens=8, instruction="Craft.")
RULES = audit.RULES


def subject_with(template=CHATML, settings=QUICK, engine=None, **model):
    """(subject of a tiny model under `template`); `engine` makes a faulty one of a sound one."""
    tokenizer = template if not isinstance(template, str) else tokenizer_with(template)
    policy = small_policy(tokenizer, layers=2, hidden=32, heads=1).eval()
    for name, value in model.items():
        setattr(policy.config, name, value)
    sound = HFEngine(policy, tokenizer.pad_token_id)
    return AuditedModel(
        "tiny", policy, tokenizer, settings, engine=engine(sound) if engine else sound
    )


def findings(subject, *names):
    return {name: check_rule(name, RULES[name], subject) for name in names or RULES}


def failed(subject, *names):
    found = findings(subject, *names)
    return {name for name, finding in found.items() if finding.status == "FAIL"}


class Wrapped:
    """An engine that changes what goes into another, or what comes out."""

    def __init__(self, engine, ask=lambda *asked: asked, answer=lambda generation: generation):
        self._engine, self._ask, self._answer = engine, ask, answer
        self.is_exact = True  # so that nothing of the trainer's makes up for it
        self.forget, self.update_weights = engine.forget, engine.update_weights
        self.sleep, self.close = engine.sleep, engine.close

    async def generate(self, prompt_ids, sampling, conversation=None):
        asked = self._ask(prompt_ids, sampling)
        return self._answer(await self._engine.generate(*asked, conversation))

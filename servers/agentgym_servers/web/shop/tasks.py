"""All tasks of the shop and its admin."""

from __future__ import annotations

from agentgym_servers.web.script import ScriptedTask
from agentgym_servers.web.shop.data import build
from agentgym_servers.web.shop.task_form import tasks_of
from agentgym_servers.web.shop.tasks_admin import ADMIN
from agentgym_servers.web.shop.tasks_questions import QUESTIONS
from agentgym_servers.web.shop.tasks_shopping import SHOPPING

TEMPLATES = (*QUESTIONS.listed, *SHOPPING.listed, *ADMIN.listed)


def shop_tasks(seed: int = 0) -> list[ScriptedTask]:
    """The tasks over the shop that `Shop.make_database(seed)` makes, always in the same order."""
    database = build(seed)
    made = [task for template in TEMPLATES for task in tasks_of(template, database, seed)]
    database.close()
    return made

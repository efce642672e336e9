"""A world whose every text is an attack on whoever shows it."""

from __future__ import annotations

from agentgym_env import TaskSet, TextEnv

CLEAR = "\x1b[2J"
RLO = "\u202e"
SCRIPT = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\">"


class Rude(TextEnv):
    """Observations with terminal escapes, markup, scripts, right-to-left marks and a megabyte."""

    instruction = f"{CLEAR} instruct [red]"
    tasks = TaskSet(
        {"train": [f"{CLEAR}[bold]"], "test": ["plain", f"{RLO}[bold]"]},
        categories={"plain": f"{CLEAR}[bold]category[/]"},
    )

    def _reset(self, task: str) -> str:
        return f"{CLEAR} first [bold] {RLO}\x07{SCRIPT}"

    def _step(self, action: str) -> tuple[str, float, bool]:
        if action == "die":
            return f"{CLEAR} die {SCRIPT}", 1.0, True
        return f"{CLEAR} {action} {RLO}" + "a" * 2**20 + "\u2028[/]", 0.0, False

    def available_actions(self) -> list[str]:
        """One that ends, and one that is an attack."""
        return [f"{RLO} act {CLEAR}", "die"]

"""The page in a real Chromium: open, filter, step, tokens, compare, follow a run."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from agentgym_env.run_store import RunStore
from agentgym_env.trajectory import Turn
from cdp import Page, needs_chromium
from tests.viewer.viewing import episode, place, small_run, watched

pytestmark = needs_chromium
AXE = find_spec("axe_playwright_python")
needs_axe = pytest.mark.skipif(
    AXE is None, reason="Axe is not installed (pip install axe-playwright-python)"
)


@pytest.fixture
def run(tmp_path) -> RunStore:
    return small_run(tmp_path / "small")


async def test_from_the_runs_to_a_filtered_table_to_an_episode(run, tmp_path):
    async with watched(run.path, index=tmp_path / "i.sqlite") as (page, address):
        await page.goto(f"{address}/")
        await page.until("document.querySelectorAll('.chart').length >= 5")
        assert "small" in await page.text(".runs")
        await page.click("nav a[data-page=trajectories]")
        await page.until("document.querySelectorAll('.rows .row').length === 9")
        await page.click(".panel input#f-outcome-1")
        await page.until("document.querySelectorAll('.rows .row').length === 1")
        assert "outcome=failure" in await page.js("location.search")
        await page.click(".rows .row .task a")
        await page.until("document.querySelectorAll('.stage .turn').length === 2")
        assert "over" in await page.text("[data-turn='1'].turn")
        # Everything is in the address: it opens the same again.
        assert "/episode/small/eval_after/0" in await page.js("location.pathname")
        await page.press("u")
        await page.until("document.querySelectorAll('.rows .row').length === 1")


async def test_the_search_looks_into_what_was_said(run, tmp_path):
    async with watched(run.path, index=tmp_path / "i.sqlite") as (page, address):
        await page.goto(f"{address}/trajectories")
        await page.until("document.querySelector('#live').textContent === 'live'")
        await page.press("/")
        await page.type('"answer 3 of 12"')
        await page.until("document.querySelectorAll('.rows .row').length === 1")
        assert "task-1" in await page.text(".rows")
        await page.press("Escape", "ArrowDown", "Enter")
        await page.until("document.querySelector('.stage')")
        assert "answer 3 of 12" in await page.text(".stage")


async def test_the_keyboard_steps_plays_and_jumps(run, tmp_path):
    async with watched(run.path, index=tmp_path / "i.sqlite") as (page, address):
        await page.goto(f"{address}/episode/small/train/0")
        await page.until("document.querySelectorAll('.stage .turn').length === 4")
        where = "document.querySelector('#where').textContent"
        await page.press("ArrowRight", "j")
        await page.until(f"{where} === 'Turn 2 of 3'")
        assert await page.js("new URLSearchParams(location.search).get('turn')") == "2"
        assert "answer 2 of 0" in await page.text("#said")
        await page.press("ArrowLeft")
        await page.until(f"{where} === 'Turn 1 of 3'")
        await page.press("End")
        await page.until(f"{where} === 'Turn 3 of 3'")
        await page.press("Home", "Space")
        await page.until(f"{where} === 'Turn 3 of 3'")
        await page.until("document.querySelector('#play').textContent === 'Play'")
        await page.press("#")
        await page.until("document.activeElement.id === 'jump'")
        await page.type("1")
        await page.press("Enter")
        await page.until(f"{where} === 'Turn 1 of 3'")
        # As long as it is there, keys are its.
        await page.until("!document.querySelector('dialog')")
        await page.press("?")
        await page.until("document.querySelector('dialog[open] #keys-title')")
        assert "next turn" in await page.text("dialog[open]")
        await page.press("Escape")
        await page.press("n")
        await page.until("location.pathname.includes('/eval_after/')")


async def test_keys_of_one_letter_can_be_switched_off(run, tmp_path):
    async with watched(run.path, index=tmp_path / "i.sqlite") as (page, address):
        await page.goto(f"{address}/episode/small/train/0")
        await page.until("document.querySelector('.stage .turn')")
        await page.press("?")
        await page.click("dialog #single")
        await page.press("Escape", "j")
        assert await page.text("#where") == "Start, 3 turns"
        await page.press("ArrowRight")
        assert await page.text("#where") == "Turn 1 of 3"


async def test_tokens_are_coloured_by_what_is_known_of_them(run, tmp_path):
    async with watched(run.path, index=tmp_path / "i.sqlite") as (page, address):
        await page.goto(f"{address}/episode/small/train/0?turn=2")
        await page.until("document.querySelector('.stage .turn')")
        assert "advantage \N{MINUS SIGN}0.500" in await page.text(".turn.now")
        await page.press("t")
        await page.until("document.querySelectorAll('.tokens .tk').length === 15")
        classes = "[...document.querySelectorAll('.tokens .tk')].map(t => t.classList[1]).join(' ')"
        on = "off off off on on off off off on on off off off on on"
        assert await page.js(classes) == on
        assert "get oak" in await page.text(".segment.now")
        await page.js("[...document.querySelectorAll('.token-view button')][2].click()")
        told = "off off off up2 up2 off off off down2 down2 off off off up3 up3"
        assert await page.js(classes) == told
        assert "colors=advantage" in await page.js("location.search")
        await page.js("[...document.querySelectorAll('.token-view button')][1].click()")
        assert await page.js(classes) != told
        await page.js("[...document.querySelectorAll('.token-view button')][3].click()")
        versions = "off off off v0 v0 off off off v0 v1 off off off v1 v1"
        assert await page.js(classes) == versions
        await page.js("document.querySelector('.tokens').focus()")
        await page.press("Home", *["ArrowRight"] * 4)
        told = await page.text(".inspector")
        assert (
            "“ oak” id 5" in told
            and "weight version 1" in told
            and "log \N{MINUS SIGN}0.200" in told
        )
        assert "advantage +0.500" in told
        await page.goto(f"{address}/episode/small/eval_after/0")
        await page.until("document.querySelector('.stage .turn')")
        disabled = "[...document.querySelectorAll('button')].find(b => b.textContent === 'Tokens')"
        assert await page.js(f"{disabled}.disabled") is True


async def test_two_episodes_of_a_task_stand_beside_each_other(run, tmp_path):
    async with watched(run.path, index=tmp_path / "i.sqlite") as (page, address):
        await page.goto(f"{address}/episode/small/train/{place(run, 2)}")
        await page.until("document.querySelector('.related')")
        await page.press("c")
        await page.until("document.querySelectorAll('.related li').length === 4")
        assert "same group" in await page.text(".related li")
        others = "[...document.querySelectorAll('.related a')]"
        await page.js(f"{others}.find(a => /eval_after/.test(a.textContent)).click()")
        await page.until("document.querySelectorAll('.aligned > li').length === 4")
        assert "First difference at turn 1" in await page.text(".head")
        await page.press("d")
        await page.until("document.querySelector('.aligned .now').dataset.turn === '1'")
        sides = "[...document.querySelectorAll('.aligned .now section')].map(s => s.textContent)"
        mine, other = await page.js(sides)
        assert "I try 1" in mine and "I stop" in other
        assert "turn=1" in await page.js("location.search")
        assert "Ended: failure" in await page.text(".aligned")


async def test_two_rows_of_the_table_can_be_compared(run, tmp_path):
    async with watched(run.path, index=tmp_path / "i.sqlite") as (page, address):
        await page.goto(f"{address}/trajectories")
        await page.until("document.querySelectorAll('.rows .row').length === 9")
        await page.press("j", "x", "j", "x", "c")
        await page.until("location.pathname === '/compare'")
        await page.until("document.querySelectorAll('.side-head').length === 2")


async def test_a_running_run_is_followed(run, tmp_path):
    async with watched(run.path, index=tmp_path / "i.sqlite") as (page, address):
        await page.goto(f"{address}/trajectories")
        await page.until("document.querySelectorAll('.rows .row').length === 9")
        run.append_trajectories("train", [episode(77, step=2)])
        await page.until("document.querySelectorAll('.rows .row').length === 10")
        assert "task-77" in await page.text(".rows")
        await page.goto(f"{address}/")
        await page.until("document.querySelectorAll('.chart').length >= 5")
        label = "document.querySelector('.chart svg').getAttribute('aria-label')"
        assert "to 1" in await page.js(label)
        run.append_metrics({"step": 41, "reward": 7.25, "seconds": 1.0})
        await page.until(f"{label}.includes('to 7.25')")


async def test_curves_are_zoomed_smoothed_and_read_by_keyboard(run, tmp_path):
    async with watched(run.path, index=tmp_path / "i.sqlite") as (page, address):
        await page.goto(f"{address}/")
        await page.until("document.querySelectorAll('.chart').length >= 5")
        await page.js("document.querySelector('.plot').focus()")
        await page.press("Home", "ArrowRight")
        assert "step 2" in await page.text(".chart .readout")
        assert "0.050" in await page.text(".chart .readout")
        await page.press("+")
        await page.until("/zoom=/.test(location.search)")
        before = await page.js("document.querySelector('.curve').getAttribute('d').length")
        await page.press("0")
        await page.until("!/zoom=/.test(location.search)")
        assert await page.js("document.querySelector('.curve').getAttribute('d').length") > before
        await page.press("s")
        await page.until("/smooth=2/.test(location.search)")
        await page.press("End")
        assert "0.988" in await page.text(".chart .readout")  # (39/40 + 40/40) / 2
        await page.goto(f"{address}/?zoom=10..20&x=env")
        await page.until("document.querySelectorAll('.chart').length >= 5")
        await page.js("document.querySelector('.reset + button').click()")
        assert "KL to the reference" in await page.text(".charts")


async def test_the_worlds_picture_is_drawn_by_playing_again(tmp_path):
    pytest.importorskip("minigrid", reason="BabyAI is not installed")
    from agentgym_servers.worlds.babyai.env import BabyAI

    env = BabyAI()
    first, info = env.reset(seed=0, options={"task": env.tasks.split("test")[0]})
    turns = []
    for action in ("turn left", "turn left", "move forward"):
        seen, reward, *_ = env.step(action)
        turns.append(Turn(action, action, seen, reward))
    played = episode(
        0, env="agentgym/BabyAI-v0", task=info["task"], seed=0, observation=first, turns=turns
    )
    store = RunStore.create(tmp_path / "babyai", {})
    other = episode(1, env="agentgym/BabyAI-v0", task=info["task"], seed=0, observation="else")
    store.append_trajectories("expert", [played, other])
    async with watched(store.path, index=tmp_path / "i.sqlite") as (page, address):
        await page.goto(f"{address}/episode/babyai/expert/0")
        image = "document.querySelector('#picture img')"
        await page.until(f"{image}?.complete && {image}.naturalWidth > 100")
        await page.press("ArrowRight")
        await page.until(f"/turn=1/.test({image}.src) && {image}.complete")
        assert await page.js(f"{image}.alt") == "The environment after turn 1"
        await page.goto(f"{address}/episode/babyai/expert/{place(store, 1, 'expert')}")
        await page.until("document.querySelector('#picture:not([hidden])')")
        assert "observation differs at turn 0" in await page.text("#picture")


async def test_a_long_episode_opens_where_its_address_says(tmp_path):
    store = RunStore.create(tmp_path / "run", {})
    turns = [Turn(f"say {k}", f"do {k}", "line\n" * (5 + k * 37 % 90)) for k in range(80)]
    store.append_trajectories("train", [episode(0, observation="begin\n" * 300, turns=turns)])
    top = "document.querySelector('.turn.now').getBoundingClientRect().top"
    async with watched(store.path, index=tmp_path / "i.sqlite") as (page, address):
        for width in (1280, 390):
            await page.look_like(width, 800)
            await page.goto(f"{address}/episode/run/train/0?turn=60")
            await page.until(f"{top} > 40 && {top} < 200")
            await page.press("j")
            await page.until("document.querySelector('.turn.now').dataset.turn === '61'")
            await page.until(f"{top} > 40 && {top} < 200")


async def test_a_web_page_is_shown_as_the_tree_that_the_policy_saw(tmp_path):
    tree = "RootWebArea 'Shop', focused\n" + "".join(
        f"\t[{i}] link 'Item <b>{i}</b>'\n" for i in range(9)
    )
    store = RunStore.create(tmp_path / "run", {})
    store.append_trajectories("train", [episode(0, observation=tree)])
    async with watched(store.path, index=tmp_path / "i.sqlite") as (page, address):
        await page.goto(f"{address}/episode/run/train/0")
        await page.until("document.querySelectorAll('.tree-role').length === 10")
        shown = await page.js("document.querySelector('pre:has(.tree-id)').textContent")
        assert shown == tree


PAGES = {
    "runs": "/",
    "table": "/trajectories?outcome=success",
    "episode": "/episode/small/train/0?turn=1",
    "tokens": "/episode/small/train/0?view=tokens&colors=advantage",
    "compare": "/compare?a=small/train/0&b=small/eval_after/0",
}
READY = {
    "runs": "document.querySelector('.chart .curve')",
    "table": "document.querySelector('.rows .row a')",
    "episode": "document.querySelector('.stage .turn')",
    "tokens": "document.querySelector('.tokens .tk')",
    "compare": "document.querySelector('.aligned .turn')",
}


@pytest.mark.slow
@needs_axe
@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("look", ["light", "dark", "phone"])
async def test_axe_finds_no_fault(name, look, run, tmp_path):
    assert AXE is not None and AXE.submodule_search_locations is not None
    axe = (Path(AXE.submodule_search_locations[0]) / "axe.min.js").read_text(encoding="utf-8")
    async with watched(run.path, index=tmp_path / "i.sqlite") as (page, address):
        await page.look_like(*((390, 844) if look == "phone" else (1280, 860)), dark=look == "dark")
        await page.goto(address + PAGES[name])
        await page.until(READY[name])
        await page.js(axe + "; 0")
        found = await page.js("axe.run().then(r => JSON.stringify(r.violations))")
        faults = [
            (v["id"], v["impact"], [n["target"] for n in v["nodes"]][:4]) for v in json.loads(found)
        ]
        assert faults == []


@pytest.mark.parametrize("name", PAGES)
async def test_a_phone_shows_every_page_without_scrolling_sideways(name, run, tmp_path):
    async with watched(run.path, index=tmp_path / "i.sqlite") as (page, address):
        await page.look_like(360, 740)
        await page.goto(address + PAGES[name])
        await page.until(READY[name])
        assert await wide_elements(page) == []
        assert await page.js("document.documentElement.scrollWidth") <= 360


async def wide_elements(page: Page) -> list[str]:
    found: list[str] = await page.js(
        "[...document.querySelectorAll('body *')].filter(e => !e.closest('.unseen, .skip, .scroll,"
        " .long-box, .runs, svg') && e.getBoundingClientRect().right > 361)"
        ".map(e => e.tagName + '.' + e.className)"
    )
    return found


NAMES = {
    "runs/textcraft-sft/model": "textcraft-sft",
    "runs/a/model/": "a",
    "expert, hf:runs/b/model": "expert, b",
    "runs/c/checkpoints/checkpoint-40": "c checkpoint-40",
    "/root/.cache/huggingface/hub/models--Qwen--Qwen3-0.6B/snapshots/c1899de": "Qwen3-0.6B",
    "openai:gpt-x@https://host/v1": "openai:gpt-x",
    "Qwen/Qwen3-0.6B": "Qwen3-0.6B",
    "expert": "expert",
    "model": "model",
}


async def test_runs_show_their_model_method_success_and_a_horizon_in_steps(run, tmp_path):
    sft = RunStore.create(
        tmp_path / "sft", {"config": {"method": "sft", "model": "runs/base/model", "env": "e"}}
    )
    sft.write_json("eval_after.json", {"success": 0.25})
    both = RunStore.create(tmp_path / "both", {"config": {"method": "dpo", "model": "a/b"}})
    both.write_json("eval_before.json", {"success": 0.5})
    both.write_json("eval_after.json", {"success": 0.75})
    before = RunStore.create(tmp_path / "before", {"config": {"model": "a/b"}})
    before.write_json("eval_before.json", {"success": 0.0})
    async with watched(tmp_path, index=tmp_path / "i.sqlite") as (page, address):
        await page.goto(f"{address}/")
        await page.until("document.querySelectorAll('.run-table tbody tr').length === 4")
        shown = {
            row[0].strip(): row[1:]
            for row in json.loads(
                await page.js(
                    "JSON.stringify([...document.querySelectorAll('.run-table tbody tr')].map("
                    "(row) => ['run', 'lift', 'algorithm', 'policy'].map("
                    "(name) => row.querySelector(`.${name}`).textContent)))"
                )
            )
        }
        assert shown["sft"] == ["25 % after", "SFT", "base"]
        assert shown["both"] == ["50 % → 75 %", "DPO", "b"]
        assert shown["before"] == ["0 % before", "\u2013", "b"]
        assert shown["small"][:2] == ["\u2013", "grpo"]
        await page.until("document.querySelectorAll('.chart').length >= 5")
        path = await page.js(
            "[...document.querySelectorAll('.chart')].find((one) => one.textContent.includes("
            "'Horizon')).querySelector('.curve').getAttribute('d')"
        )
        assert "L" not in path and path.count("H") == path.count("V") == 39
        for policy, name in NAMES.items():
            found = await page.js(
                f"import('/static/format.js').then((m) => m.modelNames({json.dumps(policy)}))"
            )
            assert found == name, policy


async def test_the_numbers_beside_filters_follow_the_other_filters(run, tmp_path):
    async with watched(run.path, index=tmp_path / "i.sqlite") as (page, address):
        await page.goto(f"{address}/trajectories")
        numbers = "[...document.querySelectorAll('.panel label')].map((l) => l.textContent).join()"
        await page.until(f"{numbers}.includes('train8')")
        assert "success8" in await page.js(numbers) and "failure1" in await page.js(numbers)
        await page.click(".panel input#f-outcome-1")
        await page.until(f"{numbers}.includes('train0') && {numbers}.includes('eval_after1')")
        # The filter's own values keep theirs.
        assert "success8" in await page.js(numbers) and "failure1" in await page.js(numbers)

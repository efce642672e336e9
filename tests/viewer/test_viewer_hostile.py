"""What models and worlds wrote is shown and runs nothing, in the page and in what it exports."""

from __future__ import annotations

import re
from pathlib import Path

import agentgym_viewer
import cdp
from agentgym_env.run_store import RunStore
from agentgym_env.token_store import write_pieces
from agentgym_env.trajectory import Tokens, Turn
from agentgym_viewer.episodes import StoredEpisode, StoredTurn
from agentgym_viewer.html_page import _STEERING, html_of, visible
from agentgym_viewer.index import EpisodeLocation
from cdp import needs_chromium
from tests.viewer.viewing import episode, viewer, watched

SCRIPT = "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'>"
BREAKOUT = '"\'><svg onload="window.ran = 1"></pre></template><iframe src=javascript:ran=1>'
ESCAPES = "\x1b[31mred\x1b[0m\x1b]0;owned\x07\x9b2J"
TURNED = "user\u202egpj.exe\u2066 tail"
HIDDEN = "plain\U000e0041\U000e0042\u200b text"
LONG = "x" * 1_000_000 + "THE END"
_TAGS = re.findall(r"\w+", "html head meta title style body main h1 h2 bdi dl dt dd pre span")
ALL = (SCRIPT, BREAKOUT, ESCAPES, TURNED, HIDDEN)


def hostile_run(path: Path) -> RunStore:
    """A run whose every text is hostile, its name included."""
    store = RunStore.create(
        path, {"config": {"env": SCRIPT, "model": BREAKOUT, "algorithm": TURNED}}
    )
    turns = [Turn(f"say {text}", f"do {text}", f"see {text}", 0.0, {text: text}) for text in ALL]
    turns.append(Turn("long", "long", LONG))
    row = Tokens([0], [1, 2], [1, 1], [-0.5, -0.5], [3, 3], [2])
    values = {"env": SCRIPT, "category": BREAKOUT, "policy": TURNED, "split": ESCAPES}
    ended = {"outcome": "environment_error", "error": f"lost to {SCRIPT}", "success": False}
    for text in ALL:
        one = episode(
            0, task=f"task {text}", instruction=SCRIPT, observation=f"start {text}", turns=turns,
            tokens=row, **values, **ended,
        )  # fmt: skip
        store.append_trajectories("train", [one])
    (path / "tokens").mkdir()
    write_pieces(path / "tokens", [SCRIPT, BREAKOUT + TURNED, ESCAPES])
    store.append_metrics({"step": 1, "reward": 1.0, f"outcome/{SCRIPT}": 1.0, BREAKOUT: 2.0})
    with (path / "trajectories" / "train.jsonl").open("ab") as file:
        file.write(b"<script>window.ran = 1</script>\n")
    return store


@needs_chromium
async def test_nothing_hostile_runs_in_the_page(tmp_path):
    run = hostile_run(tmp_path / "<img src=x onerror=ran=1> \u202e run")
    async with watched(run.path, index=tmp_path / "i.sqlite") as (page, address):
        ran = "window.ran === undefined && !document.querySelector('main script, main iframe')"
        await page.goto(f"{address}/?more={BREAKOUT.replace(' ', '')[:20]}")
        await page.until(
            "document.querySelector('.runs tbody tr') && document.querySelector('.notice')"
        )
        assert "⟨U+202E⟩" in await page.text(".runs")
        assert SCRIPT in await page.text(".runs")
        assert "1 could not be read" not in await page.text(".notice")
        assert "line 6 could not be read" in await page.text(".notice")
        assert await page.js(ran)
        await page.goto(f"{address}/trajectories")
        await page.until("document.querySelectorAll('.rows .row').length === 5")
        assert f"task {SCRIPT}" in await page.text(".rows")
        assert "user⟨U+202E⟩gpj.exe" in await page.text(".rows")
        assert await page.js(ran)
        await page.js("document.querySelector('.rows a').click()")
        await page.until("document.querySelectorAll('.stage .turn').length === 7")
        shown = await page.text(".stage")
        assert f"see {SCRIPT}" in shown and f"see {BREAKOUT}" in shown
        assert "see ␛[31mred␛[0m␛]0;owned␇⟨U+009B⟩2J" in shown
        assert "plain⟨U+E0041⟩⟨U+E0042⟩⟨U+200B⟩ text" in shown
        assert not re.search(_STEERING.pattern, shown.replace("\n", ""))
        await page.press("t")
        await page.until("document.querySelectorAll('.tokens .tk').length === 3")
        assert SCRIPT in await page.text(".tokens")
        assert await page.js(ran)
        await page.js("for (const d of document.querySelectorAll('details')) d.open = true")
        await page.until("document.querySelectorAll('.related li').length === 0")
        assert await page.js(ran)


@needs_chromium
async def test_a_line_of_a_megabyte_is_cut_until_it_is_asked_for(tmp_path):
    run = hostile_run(tmp_path / "run")
    async with watched(run.path, index=tmp_path / "i.sqlite") as (page, address):
        await page.goto(f"{address}/episode/run/train/0?turn=6")
        await page.until("document.querySelector('.turn.now .more')")
        assert len(await page.text(".turn.now")) < 10_000
        assert "Show all 1,000,007 characters" in await page.text(".turn.now")
        await page.click(".turn.now .more")
        answer = "document.querySelector('.turn.now .answer pre').textContent"
        await page.until(f"/THE END$/.test({answer})")
        assert await page.js(f"{answer}.length") == len(LONG)


@needs_chromium
async def test_an_address_that_lies_is_answered_by_words(tmp_path):
    run = hostile_run(tmp_path / "run")
    index = tmp_path / "i.sqlite"
    async with viewer(run.path, index=index) as address, cdp.chromium() as browser:
        page = await browser.page()
        odd = "%3Cimg%20src=x%20onerror=window.ran=1%3E"
        await page.goto(f"{address}/episode/run/{odd}/0")
        await page.until("document.querySelector('[role=alert]')")
        assert "<img" in await page.text("[role=alert]")
        await page.goto(f"{address}/trajectories?q={odd}&turns={odd}")
        await page.until("document.querySelector('[role=alert]')")
        assert "turns must be a number or a range" in await page.text("[role=alert]")
        assert await page.js("window.ran === undefined")


def test_an_exported_page_holds_text_alone():
    turns = [StoredTurn(text, f"do {text}", text) for text in ALL]
    told = html_of(
        StoredEpisode(env=SCRIPT, task=BREAKOUT, observation=ESCAPES, turns=turns, error=SCRIPT),
        TURNED,
        EpisodeLocation(1, 1, BREAKOUT, 0, 10),
    )
    tags = set(re.findall(r"<(/?[a-zA-Z!][a-zA-Z0-9]*)", told))
    assert tags <= {"!doctype", *_TAGS, *(f"/{tag}" for tag in _TAGS)}
    assert "default-src 'none'" in told and "<script" not in told
    assert not re.search(_STEERING.pattern, told)
    assert "␛[31mred" in told and "⟨U+202E⟩" in told


@needs_chromium
async def test_an_exported_page_opens_alone_and_runs_nothing(tmp_path):
    turns = [StoredTurn(text, text, text) for text in ALL]
    file = tmp_path / "one.html"
    file.write_text(
        html_of(
            StoredEpisode(task=SCRIPT, turns=turns), "run", EpisodeLocation(1, 1, "train", 0, 1)
        )
    )
    async with cdp.chromium() as browser:
        page = await browser.page()
        await page.goto(file.as_uri())
        assert await page.js("window.ran === undefined")
        assert SCRIPT in await page.text("main")
        assert page.complaints == []
        assert [url for url in page.requests if url != file.as_uri()] == []


def test_nothing_that_steers_the_writing_is_left():
    for text in ALL:
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", visible(text))
    assert visible(ESCAPES) == "␛[31mred␛[0m␛]0;owned␇⟨U+009B⟩2J"
    assert visible("العربية עברית 👩‍👩‍👧 é") == "العربية עברית 👩‍👩‍👧 é"


def test_the_page_and_its_exports_have_the_same_list():
    static = Path(agentgym_viewer.__file__).parent / "static"
    written = re.search(r"const STEERING = /\[(.*)\]/gu;", (static / "text.js").read_text())
    assert written is not None

    def ranges(pattern: str, code: str) -> set[int]:
        points = [int(found, 16) for found in re.findall(code, pattern)]
        marks = re.sub(code, "#", pattern)
        found, number = set(), 0
        for part in re.findall(r"#-#|#", marks):
            end = number + (1 if part == "#" else 2)
            found |= set(range(points[number], points[end - 1] + 1))
            number = end
        return found

    of_page = ranges(written[1], r"\\u\{([0-9a-f]+)\}")
    of_python = {n for n in range(0x110000) if re.fullmatch(_STEERING, chr(n))}
    assert of_page == of_python


def test_the_page_makes_no_markup_of_data():
    static = Path(agentgym_viewer.__file__).parent / "static"
    for file in static.glob("*.js"):
        told = file.read_text()
        for way in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(",
                    "new Function", "createContextualFragment", "DOMParser", "srcdoc"):  # fmt: skip
            assert way not in told, f"{file.name}: {way}"
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", told), file.name
    assert not re.search(
        r"<script(?! type=\"module\" src=\"/static/)", (static / "index.html").read_text()
    )

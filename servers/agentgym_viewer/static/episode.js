// The page of an episode: its turns, with playback, its tokens and pictures of the environment.

import { bring, h, refill, say } from "./dom.js";
import { address, filtersOf, get, nameOfEpisode } from "./api.js";
import { number, outcomeOf, signed, duration } from "./format.js";
import { block, line, plain, shown, textOf } from "./text.js";
import { tokenView } from "./tokens.js";

const SPEEDS = { "½×": 3200, "1×": 1600, "2×": 800, "4×": 400 };

export function episodePage({ main, parts, params, navigate }) {
  const path = `/api/episode/${parts.map(encodeURIComponent).join("/")}`;
  const list = filtersOf(params);
  let episode = null;
  let turn = Number(params.get("turn") ?? 0) || 0;
  let mode = params.get("view") === "tokens" ? "tokens" : "text";
  let colors = params.get("colors") ?? "mask";
  let playing = 0;
  let speed = 1600;
  let tokens = null;
  let pictures = 0;
  let left = false;
  const elements = [];

  refill(main, h("p", { class: "empty" }, "Loading the episode…"));
  load();

  async function load() {
    try {
      episode = await get(path, list);
    } catch (error) {
      return left || refill(main, h("p", { class: "notice wrong", role: "alert" }, shown(error.message)), h("p", {}, h("a", { href: "/trajectories" }, "All trajectories")));
    }
    if (left) return;
    turn = Math.max(0, Math.min(turn, episode.turns.length));
    document.title = `${plain(episode.task)} · agentgym view`;
    draw();
    loadPictures();
  }

  function draw() {
    const strip = h("ol", { class: "strip", "aria-label": "Turns" });
    const stage = h("div", { class: "stage", id: "stage" });
    const side = h("aside", { class: "side", "aria-label": "About the episode" }, h("div", { id: "picture", hidden: true }), facts(episode), related());
    refill(main, title(), tools(), h("div", { class: "episode" }, strip, stage, side), h("div", { class: "dock" }, dock()));
    drawStrip(strip);
    drawStage();
  }

  function title() {
    const { words, kind } = outcomeOf(episode);
    const back = address("/trajectories", list);
    return h("div", { class: "head episode-head" },
      h("nav", { "aria-label": "Breadcrumb" }, h("a", { href: back }, "Trajectories"), h("span", { class: "soft" }, " / "), h("bdi", { class: "soft" }, shown(`${episode.run} / ${episode.file}`))),
      h("h1", {}, h("bdi", {}, shown(episode.task.slice(0, 300) || "(no task)")), " ", h("span", { class: `badge ${kind}` }, shown(words))));
  }

  function tools() {
    const other = (name, row, key) => row ? h("a", { class: "button", href: `/episode/${nameOfEpisode(row)}${carry()}`, id: name, title: `${name} (${key})` }, name === "previous" ? "← Previous" : "Next →")
      : h("button", { type: "button", disabled: true }, name === "previous" ? "← Previous" : "Next →");
    const views = h("div", { class: "group", role: "group", "aria-label": "View" }, [["text", "Conversation"], ["tokens", "Tokens"]].map(([key, words]) =>
      h("button", { type: "button", "aria-pressed": String(mode === key), disabled: key === "tokens" && !episode.tokens,
        title: key === "tokens" && !episode.tokens ? "The tokens of this episode are not stored (keep_tokens)" : null, onclick: () => setMode(key) }, words)));
    const name = parts.map(encodeURIComponent).join("/");
    return h("div", { class: "bar tools" }, h("div", { class: "group" }, other("previous", episode.previous, "p"), other("next", episode.next, "n")), views,
      h("span", { class: "space" }), h("button", { type: "button", onclick: copyLink }, "Copy link"),
      h("a", { class: "button", href: `/export/${name}.html`, download: "" }, "HTML"), h("a", { class: "button", href: `/export/${name}.json`, download: "" }, "JSON"));
  }

  function carry() {
    const kept = new URLSearchParams(list);
    if (mode === "tokens") kept.set("view", "tokens");
    if (colors !== "mask") kept.set("colors", colors);
    return kept.size ? `?${kept}` : "";
  }

  function dock() {
    const last = episode.turns.length;
    const slider = h("input", { type: "range", id: "slider", min: 0, max: last, value: turn, "aria-label": "Turn", oninput: () => go(Number(slider.value)) });
    const pace = h("select", { id: "speed", "aria-label": "Speed", onchange: () => { speed = Number(pace.value); if (playing) { stop(); play(); } } },
      Object.entries(SPEEDS).map(([words, ms]) => h("option", { value: ms, selected: ms === speed }, words)));
    return h("div", { class: "card bar", role: "group", "aria-label": "Playback" }, h("button", { type: "button", "aria-label": "Previous turn", onclick: () => go(turn - 1) }, "◀"),
      h("button", { type: "button", class: "main", id: "play", onclick: toggle }, "Play"), h("button", { type: "button", "aria-label": "Next turn", onclick: () => go(turn + 1) }, "▶"),
      slider, h("output", { id: "where", for: "slider" }, where()), pace);
  }

  function where() {
    return turn ? `Turn ${turn} of ${episode.turns.length}` : `Start, ${episode.turns.length} turn${episode.turns.length === 1 ? "" : "s"}`;
  }

  function drawStrip(strip) {
    const most = Math.max(...episode.turns.map((t) => Math.abs(t.advantage ?? 0)), 1e-9);
    const entry = (n, words, reward, advantage) => h("li", {}, h("button", { type: "button", "data-turn": n, onclick: () => go(n) },
      h("span", { class: "n" }, n || "·"), h("span", { class: "line" }, shown(words.slice(0, 60))),
      reward ? h("span", { class: `small ${reward > 0 ? "good" : "bad"}` }, signed(reward)) : h("span"),
      advantage != null && h("span", { class: "adv", title: `advantage ${signed(advantage)}` },
        h("span", { class: advantage < 0 ? "minus" : "plus", style: { width: `${(50 * Math.abs(advantage)) / most}%` } }))));
    refill(strip, entry(0, "start", 0, null), episode.turns.map((t, i) => entry(i + 1, textOf(t.action) || textOf(t.response), t.reward, t.advantage)));
  }

  async function drawStage() {
    const stage = document.getElementById("stage");
    elements.length = 0;
    if (mode === "tokens") {
      refill(stage, h("p", { class: "empty" }, "Loading the tokens…"));
      try {
        tokens ??= await get(`${path}/tokens`);
      } catch (error) {
        return refill(stage, h("p", { class: "notice wrong", role: "alert" }, shown(error.message)));
      }
      if (left || mode !== "tokens") return;
      const view = tokenView(tokens, { colors, turns: episode.turns.length, onColors: (value) => { colors = value; remember(); } });
      refill(stage, view.element);
      elements.push(...view.segments);
    } else {
      const turns = [opening(), ...episode.turns.map((t, i) => turnBlock(t, i + 1))];
      refill(stage, turns);
      elements.push(...turns);
    }
    mark(false);
  }

  function opening() {
    const whole = (field) => ({ path: `${path}/text`, params: { turn: 0, field } });
    return h("section", { class: "turn card", "data-turn": 0, "aria-label": "Start" },
      textOf(episode.error) && h("div", { class: "notice wrong" }, h("strong", {}, "Error"), block(episode.error, whole("error"))),
      textOf(episode.instruction) && h("details", {}, h("summary", {}, "Instruction"), block(episode.instruction, whole("instruction"))),
      h("h2", {}, "Start"), block(episode.observation, whole("observation")));
  }

  function turnBlock(t, n) {
    const whole = (field) => ({ path: `${path}/text`, params: { turn: n, field } });
    const acted = textOf(t.action).trim() !== textOf(t.response).trim();
    return h("section", { class: "turn card", "data-turn": n, "aria-label": `Turn ${n}` },
      h("h2", {}, `Turn ${n}`, t.reward ? h("span", { class: `figure ${t.reward > 0 ? "good" : "bad"}` }, `reward ${signed(t.reward)}`) : null,
        t.advantage != null && h("span", { class: "figure" }, `advantage ${signed(t.advantage)}`), t.cut && h("span", { class: "figure warn" }, "cut at turn_max_tokens")),
      h("div", { class: "said" }, h("span", { class: "who" }, "policy"), block(t.response, whole("response"))),
      acted && h("div", { class: "acted" }, h("span", { class: "who" }, "action"), block(t.action, whole("action"))),
      h("div", { class: "answer" }, h("span", { class: "who" }, "environment"), textOf(t.observation) ? block(t.observation, whole("observation")) : h("p", { class: "soft" }, "no observation")),
      textOf(t.info) && h("details", {}, h("summary", { class: "soft small" }, "info"), block(t.info, whole("info"))));
  }

  function related() {
    const box = h("details", { class: "related" }, h("summary", {}, "Compare with another episode of this task"));
    box.addEventListener("toggle", async () => {
      if (!box.open || box.childElementCount > 1) return;
      const rows = await get(`${path}/related`).catch(() => []);
      const own = parts.map(encodeURIComponent).join("/");
      box.append(rows.length ? h("ul", {}, rows.map((row) => {
        const { words, kind } = outcomeOf(row);
        return h("li", {}, h("a", { href: `/compare?${new URLSearchParams({ a: own, b: nameOfEpisode(row) })}` },
          h("span", { class: `badge ${kind}` }, shown(words)), " ", line(`${row.run} / ${row.name}${row.step >= 0 ? `, step ${row.step}` : ""}${row.group_mate ? ", same group" : ""}`)));
      })) : h("p", { class: "soft" }, "There is no other episode of this task."));
    });
    return box;
  }

  async function loadPictures() {
    const found = await get(`${path}/pictures`).catch(() => null);
    const box = document.getElementById("picture");
    if (left || !found || !box) return;
    pictures = found.count;
    box.hidden = !pictures && !found.why;
    if (found.why) refill(box, h("p", { class: "soft small" }, "No picture: ", shown(found.why)));
    if (pictures) drawPicture();
  }

  function drawPicture() {
    const box = document.getElementById("picture");
    if (!pictures || !box) return;
    const image = box.querySelector("img") ?? h("img", { class: "picture" });
    image.src = `${path}/picture?turn=${turn}`;
    image.alt = turn ? `The environment after turn ${turn}` : "The environment at the start";
    if (!image.isConnected) refill(box, image);
  }

  /** Go to a turn; 0 is the start. */
  function go(to) {
    turn = Math.max(0, Math.min(episode.turns.length, to));
    remember();
    mark(true);
    const t = episode.turns[turn - 1];
    say(t ? `Turn ${turn}. ${plain(textOf(t.action)).slice(0, 200)}. ${plain(textOf(t.observation)).slice(0, 300)}` : "Start");
    if (turn === episode.turns.length) stop();
  }

  function mark(scroll) {
    for (const element of elements) {
      const now = Number(element.dataset.turn) === turn;
      element.classList.toggle("now", now);
      if (now && (scroll || turn)) bring(element);
    }
    for (const button of main.querySelectorAll(".strip button")) {
      const now = Number(button.dataset.turn) === turn;
      if (now) button.setAttribute("aria-current", "step"); else button.removeAttribute("aria-current");
      const strip = button.closest(".strip");
      if (now) strip.scrollTop += button.getBoundingClientRect().top - strip.getBoundingClientRect().top - strip.clientHeight / 2;
    }
    const slider = document.getElementById("slider");
    if (slider) { slider.value = turn; slider.setAttribute("aria-valuetext", where()); document.getElementById("where").textContent = where(); }
    drawPicture();
  }

  function toggle() { if (playing) stop(); else play(); }

  function play() {
    if (turn === episode.turns.length) turn = -1;
    const step = () => { go(turn + 1); if (playing) playing = setTimeout(step, speed); };
    playing = setTimeout(step, 30);
    document.getElementById("play").textContent = "Pause";
  }

  function stop() {
    clearTimeout(playing);
    playing = 0;
    const button = document.getElementById("play");
    if (button) button.textContent = "Play";
  }

  function setMode(to) {
    if (to === "tokens" && !episode.tokens) return say("The tokens of this episode are not stored");
    mode = to;
    remember();
    for (const button of main.querySelectorAll("[aria-label=View] button")) button.setAttribute("aria-pressed", String((button.textContent === "Tokens") === (mode === "tokens")));
    drawStage();
  }

  function remember() {
    const kept = new URLSearchParams(list);
    if (turn > 0) kept.set("turn", turn);
    if (mode === "tokens") kept.set("view", "tokens");
    if (colors !== "mask") kept.set("colors", colors);
    navigate(address(location.pathname, kept), { replace: true, quietly: true });
  }

  async function copyLink() {
    await navigator.clipboard.writeText(location.href).then(() => say("Link copied"), () => say("The browser does not allow copying"));
  }

  function jump() {
    const asked = h("input", { type: "number", min: 0, max: episode.turns.length, id: "jump", "aria-label": "Turn to go to" });
    const dialog = h("dialog", { class: "jump", "aria-label": "Go to a turn", onclose: () => dialog.remove() },
      h("form", { method: "dialog", class: "bar", onsubmit: () => asked.value !== "" && go(Number(asked.value)) }, h("label", { class: "field" }, "Go to turn", asked), h("button", { class: "main" }, "Go")));
    document.body.append(dialog);
    dialog.showModal();
    asked.focus();
  }

  return {
    leave: () => { left = true; stop(); },
    keys: [
      ["ArrowRight, j", "next turn", () => go(turn + 1)], ["ArrowLeft, k", "previous turn", () => go(turn - 1)],
      ["Home", "start", () => go(0)], ["End", "last turn", () => go(episode.turns.length)],
      ["Space", "play or pause", toggle], ["t", "switch between conversation and tokens", () => setMode(mode === "tokens" ? "text" : "tokens")],
      ["n", "next episode in the table", () => document.getElementById("next")?.click()], ["p", "previous episode in the table", () => document.getElementById("previous")?.click()],
      ["#", "go to a turn by number", jump], ["c", "compare with another episode of this task", () => { const box = main.querySelector(".related"); box.open = true; box.querySelector("summary").focus(); }],
      ["y", "copy the link", copyLink], ["u", "back to the table", () => navigate(address("/trajectories", list))],
    ],
  };
}

/** The properties of an episode, as a list. */
export function facts(episode) {
  const rows = [["environment", episode.env], ["category", episode.category], ["split", episode.split], ["policy", episode.policy],
    ["reward", number(episode.turns.reduce((sum, t) => sum + (t.reward ?? 0), 0))], ["score", number(episode.score)],
    ["turns", `${episode.turns.length} (maximum ${episode.horizon})`], ["optimizer step", episode.step >= 0 ? number(episode.step) : null],
    ["group", episode.group >= 0 ? number(episode.group) : null], ["seed", episode.seed], ["time", episode.seconds ? duration(episode.seconds) : null],
    ["attempts", episode.attempts > 1 ? number(episode.attempts) : null]];
  return h("dl", { class: "facts" }, rows.filter(([, value]) => value != null && value !== "").map(([name, value]) => [h("dt", {}, name), h("dd", {}, line(String(value)))]));
}

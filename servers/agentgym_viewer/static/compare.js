// The page that compares two episodes side by side, turn by turn.

import { bring, h, refill, say } from "./dom.js";
import { get } from "./api.js";
import { facts } from "./episode.js";
import { outcomeOf, signed } from "./format.js";
import { block, plain, shown, textOf } from "./text.js";

export function comparePage({ main, params, navigate }) {
  const names = ["a", "b"].map((key) => params.get(key));
  let turn = Number(params.get("turn") ?? 0) || 0;
  let left = false;
  let rows = [];
  document.title = "Compare · agentgym view";

  if (names.every(Boolean)) load();
  else refill(main, h("div", { class: "head" }, h("h1", {}, "Compare")), h("p", { class: "empty" }, "Select two episodes in the ", h("a", { href: "/trajectories" }, "table"),
    ", or open one and use “Compare with another episode of this task”."));

  async function load() {
    try {
      const both = await Promise.all(names.map((name) => get(`/api/episode/${safe(name)}`)));
      if (!left) draw(both);
    } catch (error) {
      if (!left) refill(main, h("p", { class: "notice wrong", role: "alert" }, shown(error.message)));
    }
  }

  function draw(both) {
    const count = Math.max(...both.map((one) => one.turns.length));
    const parting = firstDifference(both, count);
    const sameTask = both[0].task === both[1].task && both[0].env === both[1].env;
    refill(main, h("div", { class: "head" }, h("h1", {}, "Compare"), h("p", { class: "soft" }, !sameTask ? "The tasks are different." : parting == null ? "All actions are equal."
      : [`First difference at `, h("button", { type: "button", class: "quiet", id: "parting", onclick: () => go(parting) }, `turn ${parting}`)]),
      h("span", { class: "space" }), h("a", { class: "button", href: `/compare?${new URLSearchParams({ a: names[1], b: names[0] })}` }, "Swap")),
    h("div", { class: "pair heads" }, both.map((one, i) => heading(one, i))),
    h("ol", { class: "aligned" }, Array.from({ length: count + 1 }, (_, n) => row(both, n, parting))));
    rows = [...main.querySelectorAll(".aligned > li")];
    turn = Math.min(turn, count);
    mark(turn > 0);
  }

  function heading(one, i) {
    const { words, kind } = outcomeOf(one);
    return h("section", { class: "card side-head", "aria-label": `Episode ${"AB"[i]}` }, h("div", { class: "bar" }, h("span", { class: "letter", "aria-hidden": "true" }, "AB"[i]),
      h("h2", {}, h("a", { href: `/episode/${safe(names[i])}` }, h("bdi", {}, shown(one.task.slice(0, 200))))), h("span", { class: `badge ${kind}` }, shown(words))),
      h("p", { class: "soft small" }, h("bdi", {}, shown(`${one.run} / ${one.file}`))), h("details", {}, h("summary", { class: "small" }, "Details"), facts(one)));
  }

  function row(both, n, parting) {
    const differs = n > 0 && both.every((one) => one.turns[n - 1]) && textOf(both[0].turns[n - 1].action) !== textOf(both[1].turns[n - 1].action);
    return h("li", { "data-turn": n, class: differs ? "differs" : null }, h("h2", {}, n ? `Turn ${n}` : "Start",
      n > 0 && n === parting ? h("span", { class: "badge lost" }, "first difference") : differs && h("span", { class: "badge" }, "different")),
      h("div", { class: "pair" }, both.map((one, i) => side(one, n, i))));
  }

  function side(one, n, i) {
    const path = `/api/episode/${safe(names[i])}/text`;
    const whole = (field) => ({ path, params: { turn: n, field } });
    const label = `Episode ${"AB"[i]}, ${n ? `turn ${n}` : "start"}`;
    if (n === 0) return h("section", { class: "card turn", "aria-label": label }, h("span", { class: "letter small", "aria-hidden": "true" }, "AB"[i]), block(one.observation, whole("observation")));
    const t = one.turns[n - 1];
    if (!t) return h("section", { class: "card turn over", "aria-label": label }, h("p", { class: "soft" }, n === one.turns.length + 1 ? `Ended: ${one.outcome.replaceAll("_", " ")}.` : ""));
    return h("section", { class: "card turn", "aria-label": label },
      h("div", { class: "said" }, h("span", { class: "who" }, `${"AB"[i]} · policy`, t.reward ? h("span", { class: t.reward > 0 ? "good" : "bad" }, ` · reward ${signed(t.reward)}`) : null,
        t.advantage != null && ` · advantage ${signed(t.advantage)}`, t.cut && h("span", { class: "warn" }, " · cut at turn_max_tokens")), block(t.response, whole("response"))),
      h("div", { class: "answer" }, h("span", { class: "who" }, "environment"), block(t.observation, whole("observation"))));
  }

  function go(to) {
    turn = Math.max(0, Math.min(rows.length - 1, to));
    const kept = new URLSearchParams({ a: names[0], b: names[1] });
    if (turn) kept.set("turn", turn);
    navigate(`/compare?${kept}`, { replace: true, quietly: true });
    mark(true);
    say(`${turn ? `Turn ${turn}` : "Start"}. ${plain(rows[turn].textContent).slice(0, 400)}`);
  }

  function mark(scroll) {
    rows.forEach((one, n) => one.classList.toggle("now", n === turn));
    if (scroll && rows[turn]) bring(rows[turn]);
  }

  return {
    leave: () => { left = true; },
    keys: [["ArrowRight, j", "next turn", () => go(turn + 1)], ["ArrowLeft, k", "previous turn", () => go(turn - 1)], ["Home", "start", () => go(0)],
      ["End", "last turn", () => go(rows.length - 1)], ["d", "first difference", () => document.getElementById("parting")?.click()]],
  };
}

/** `run/file/start` from a URL, encoded once. */
function safe(name) {
  return name.split("/").map((part) => encodeURIComponent(decodeURIComponent(part))).join("/");
}

function firstDifference(both, count) {
  for (let n = 0; n < count; n += 1) {
    const [a, b] = both.map((one) => one.turns[n]);
    if (!a || !b || textOf(a.action) !== textOf(b.action)) return n + 1;
  }
  return null;
}

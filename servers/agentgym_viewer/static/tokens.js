// An episode's tokens, colored by loss mask, log-probability, advantage or weight version.

import { h, refill } from "./dom.js";
import { number, signed } from "./format.js";
import { plain, shown } from "./text.js";

const COLORS = { mask: "Loss mask", logprob: "Log-probability", advantage: "Advantage", version: "Weight version" };
const SHARES = [0.9, 0.5, 0.2, 0.05, 0.01];
const FAR = [0.66, 0.33, 0.02];

/**
 * The view of an episode's tokens. `tokens` is the server's response, `turns` the number of turns.
 * Returns the element and its `segments`; sampled segments have their turn, if each turn has one.
 */
export function tokenView(tokens, { colors, turns, onColors }) {
  const list = flat(tokens);
  const most = list.reduce((most, t) => Math.max(most, Math.abs(t.advantage ?? 0)), 1e-9);
  const versions = [...new Set(list.filter((t) => t.mask).map((t) => t.version))].sort((a, b) => a - b);
  const sampled = list.reduce((last, t) => Math.max(last, t.sample), 0);
  const known = new Set(["mask", "logprob", "version", ...(tokens.advantages ? ["advantage"] : [])]);
  let now = known.has(colors) ? colors : "mask";
  let active = -1;

  const legend = h("div", { class: "legend" });
  const inspector = h("p", { class: "inspector", "aria-live": "polite" });
  const text = h("div", { class: "tokens", tabindex: 0, role: "group", "data-own-keys": true, "aria-label": "Tokens; use the arrow keys to move between tokens" });
  const segments = grouped(list).map((part) => segment(part));
  const spans = segments.flatMap((one) => [...one.querySelectorAll(".tk")]);
  refill(text, segments);
  const choice = h("div", { class: "group", role: "group", "aria-label": "Color by" }, Object.entries(COLORS).map(([key, words]) =>
    h("button", { type: "button", "aria-pressed": String(key === now), disabled: !known.has(key),
      title: known.has(key) ? null : "The advantages of these tokens are not stored", onclick: (event) => {
        now = key;
        for (const b of choice.children) b.setAttribute("aria-pressed", String(b === event.target));
        paint();
        onColors(now);
      } }, words)));
  text.addEventListener("pointerover", (event) => inspect(spans.indexOf(event.target.closest(".tk")), false));
  text.addEventListener("click", (event) => inspect(spans.indexOf(event.target.closest(".tk")), true));
  text.addEventListener("keydown", (event) => {
    const to = { ArrowRight: active + 1, ArrowLeft: active - 1, Home: 0, End: list.length - 1, ArrowDown: nextSample(1), ArrowUp: nextSample(-1) }[event.key];
    if (to == null) return;
    event.preventDefault();
    inspect(Math.max(0, Math.min(list.length - 1, to)), true);
    spans[active]?.scrollIntoView({ block: "nearest" });
  });
  paint();
  inspect(-1);
  const without = Object.keys(tokens.pieces).length === 0;
  return {
    element: h("div", { class: "token-view card" }, h("div", { class: "bar" }, choice, legend),
      without && h("p", { class: "notice" }, "The texts of these tokens are not stored; their ids are shown."), text, inspector),
    segments,
  };

  function segment(part) {
    const name = part.kind === "prompt" ? "prompt" : part.kind === "world" ? "environment" : `sampled, turn ${part.sample}`;
    const exact = sampled === turns;
    return h("section", { class: `segment ${part.kind}`, "data-turn": part.kind === "prompt" ? 0 : part.kind === "sampled" && exact ? part.sample : null },
      h("h2", { class: "who" }, name, ` · ${part.tokens.length} token${part.tokens.length > 1 ? "s" : ""}`),
      h("pre", { class: "text" }, part.tokens.map((t) => h("span", { class: "tk" }, piece(t)))));
  }

  function piece(t) {
    const found = tokens.pieces[t.id];
    if (found == null) return `${t.id} `;
    return found.split("\n").flatMap((part, i) => (i ? [h("span", { class: "eol", "aria-hidden": "true" }, "↵"), "\n", ...shown(part)] : shown(part)));
  }

  function paint() {
    spans.forEach((span, i) => { span.className = `tk ${classOf(list[i], now, most, versions)}${i === active ? " active" : ""}`; });
    refill(legend, entries(now, most, versions).map(([name, words]) => h("span", { class: "key" }, h("span", { class: `swatch tk ${name}` }), words)));
  }

  function inspect(i, keep = false) {
    if (i < 0 && active >= 0) return;
    if (keep || i < 0) {
      spans[active]?.classList.remove("active");
      active = i;
      spans[active]?.classList.add("active");
    }
    const t = list[i];
    refill(inspector, t ? described(t, i) : [h("span", { class: "soft" }, "Hover over a token, or use the arrow keys.")]);
  }

  function described(t, i) {
    const text = tokens.pieces[t.id];
    return [h("strong", {}, h("bdi", {}, text == null ? "–" : `“${plain(text).replaceAll("\n", "↵")}”`)), ` id ${t.id}, position ${i}`,
      t.mask ? [` · sampled with weight version ${t.version} · probability ${number(Math.exp(t.logprob))} (log ${number(t.logprob)})`,
        t.advantage != null && ` · advantage ${signed(t.advantage)}`] : " · not sampled, not in the loss"];
  }

  function nextSample(way) {
    const here = list[active]?.sample ?? 0;
    for (let i = active + way; i >= 0 && i < list.length; i += way) if (list[i].mask && (list[i].sample !== here || !list[active]?.mask) && (way > 0 || !list[i - 1]?.mask)) return i;
    return active;
  }
}

/** All tokens in order: for each row, its prompt and its completion. */
function flat(tokens) {
  const list = [];
  let before = 0;
  let offset = 0;
  for (const row of tokens.rows) {
    for (const id of row.prompt_ids) list.push({ id, mask: 0, kind: "prompt", sample: 0, row });
    let turn = 0;
    row.completion_ids.forEach((id, i) => {
      while (turn < row.turn_ends.length && i >= row.turn_ends[turn]) turn += 1;
      const mask = row.loss_mask[i];
      list.push({ id, mask, kind: mask ? "sampled" : "world", sample: before + (mask ? turn + 1 : turn), logprob: row.logprobs[i], version: row.versions[i],
        advantage: tokens.advantages ? tokens.advantages[offset + i] : null, row });
    });
    before += row.turn_ends.length;
    offset += row.completion_ids.length;
  }
  return list;
}

function grouped(list) {
  const parts = [];
  for (const t of list) {
    const last = parts.at(-1);
    if (last && last.kind === t.kind && last.row === t.row && (t.kind !== "sampled" || last.sample === t.sample)) last.tokens.push(t);
    else parts.push({ kind: t.kind, sample: t.sample, row: t.row, tokens: [t] });
  }
  return parts;
}

function classOf(t, by, most, versions) {
  if (!t.mask) return "off";
  if (by === "logprob") {
    const share = Math.exp(t.logprob);
    const step = SHARES.findIndex((least) => share >= least);
    return `p${step < 0 ? SHARES.length : step}`;
  }
  if (by === "advantage") {
    const size = Math.abs(t.advantage) / most;
    const step = FAR.findIndex((least) => size >= least);
    return step < 0 ? "zero" : `${t.advantage > 0 ? "up" : "down"}${FAR.length - step}`;
  }
  return by === "version" ? `v${versions.indexOf(t.version) % 6}` : "on";
}

function entries(by, most, versions) {
  if (by === "logprob") return SHARES.map((least, i) => [`p${i}`, `${i ? "" : "p "}≥ ${least}`]).concat([[`p${SHARES.length}`, "less"], ["off", "not sampled"]]);
  if (by === "advantage") return [["up3", `up to ${signed(most)}`], ["up1", "above 0"], ["zero", "0"], ["down1", "below 0"], ["down3", `down to ${signed(-most)}`], ["off", "not sampled"]];
  if (by === "version") return versions.slice(0, 12).map((v, i) => [`v${i % 6}`, `version ${v}`]).concat([["off", "not sampled"]]);
  return [["on", "sampled: in the loss"], ["off", "not in the loss"]];
}

// The filters of the table: values with their frequency, and ranges of numbers.

import { h, refill } from "./dom.js";
import { get } from "./api.js";
import { number } from "./format.js";
import { line, plain, shown } from "./text.js";

const FACETS = { outcome: "Outcome", success: "Solved", run: "Run", file: "File", env: "Environment",
  category: "Category", split: "Split", policy: "Policy" };
const RANGES = { turns: "Turns", cut_turns: "Cut turns", step: "Step", reward: "Reward" };
const MOST_SHOWN = 6;
const REFRESH_MS = 5000;

/** The panel of filters; `get()` returns the active filters, `set(name, values)` changes one. */
export function filterPanel({ get: current, set }) {
  const element = h("div", { class: "panel" });
  let held = null;
  let asked = 0;
  let query = null;
  const opened = new Set();

  async function update() {
    const own = current().toString();
    if (own !== query || Date.now() - asked > REFRESH_MS) {
      asked = Date.now();
      query = own;
      const found = await get("/api/facets", current()).catch(() => held);
      if (own !== query) return;
      held = found;
    }
    if (held) draw();
  }

  function draw() {
    const focus = document.activeElement?.closest?.(".panel") ? document.activeElement.id : null;
    refill(element, Object.entries(FACETS).map(([name, words]) => facet(name, words)), Object.entries(RANGES).map(([name, words]) => range(name, words)));
    if (focus) document.getElementById(focus)?.focus();
  }

  function facet(name, words) {
    const all = (held[name] ?? []).map((entry) => (Array.isArray(entry) ? entry : [entry, null])).filter(([value]) => value !== "");
    if (all.length < 2) return null;
    const chosen = current().getAll(name);
    const open = opened.has(name) || all.length <= MOST_SHOWN + 1;
    const some = open ? all : all.filter(([value], i) => i < MOST_SHOWN || chosen.includes(String(value)));
    return h("fieldset", {}, h("legend", {}, words), some.map(([value, times], i) => {
      const text = String(value);
      const box = h("input", { type: "checkbox", id: `f-${name}-${i}`, checked: chosen.includes(text), onchange: () =>
        set(name, box.checked ? [...chosen, text] : chosen.filter((one) => one !== text)) });
      const label = name === "success" ? (value ? "solved" : "not solved") : name === "outcome" ? text.replaceAll("_", " ") : text;
      return h("label", {}, box, line(label), times != null && h("span", { class: "soft number" }, number(times)));
    }), !open && h("button", { type: "button", class: "quiet small", id: `more-${name}`, onclick: () => { opened.add(name); draw(); } }, `${all.length - some.length} more`));
  }

  function range(name, words) {
    const [low, high] = ends(current().get(name));
    const change = () => {
      const text = from.value === "" && to.value === "" ? [] : [from.value === to.value ? from.value : `${from.value}..${to.value}`];
      set(name, text);
    };
    const from = h("input", { type: "number", id: `from-${name}`, step: "any", value: low, "aria-label": `${words}, from`, placeholder: "from", onchange: change });
    const to = h("input", { type: "number", id: `to-${name}`, step: "any", value: high, "aria-label": `${words}, to`, placeholder: "to", onchange: change });
    return h("fieldset", { class: "range" }, h("legend", {}, words), from, h("span", { "aria-hidden": "true" }, "–"), to);
  }

  return { element, update };
}

/** The active filters, each with a button that removes it. */
export function chips(filters, set) {
  const entries = [...filters].filter(([name]) => name !== "sort" && name !== "q");
  return [entries.map(([name, value]) => {
    const words = name === "success" ? (value === "1" ? "solved" : "not solved") : `${name} ${value.replaceAll("_", " ")}`;
    return h("button", { type: "button", class: "chip", "aria-label": plain(`Remove the filter ${words}`), onclick: () =>
      set(name, filters.getAll(name).filter((one) => one !== value)) }, h("span", { class: "line" }, shown(words)), h("span", { "aria-hidden": "true" }, "×"));
  })];
}

function ends(text) {
  if (!text) return ["", ""];
  const [low, high] = text.includes("..") ? text.split("..") : [text, text];
  return [low, high];
}

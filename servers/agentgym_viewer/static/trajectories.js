// The page with the table of all episodes: search, filters, and selection of two to compare.

import { h, refill, say } from "./dom.js";
import { address, filtersOf, get, nameOfEpisode } from "./api.js";
import { filterPanel, chips } from "./filters.js";
import { modelNames, number, outcomeOf, percent } from "./format.js";
import { cell, headRow, longTable } from "./table.js";
import { line, plain, shown } from "./text.js";

const COLUMNS = [["pick", "compare"], ["outcome", "Outcome", "outcome"], ["task", "Task", "task"], ["category", "Category", "category"],
  ["turns", "Turns", "turns"], ["reward", "Reward", "reward"], ["step", "Step", "step"], ["policy", "Policy", "policy"], ["from", "From", "file"]];
const DEBOUNCE_MS = 120;
const LIVE_MS = 2000;

export function trajectoriesPage({ main, params, navigate }) {
  let filters = filtersOf(params);
  let picked = params.getAll("pick").slice(0, 2);
  let left = false;
  let asked = 0;
  let waiting = 0;
  let total = null;
  let refreshed = 0;
  let following = 0;

  const search = h("input", { type: "search", id: "search", placeholder: "Search texts", value: filters.get("q") ?? "",
    "aria-label": "Search texts of episodes", autocomplete: "off", spellcheck: "false", oninput: () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => set("q", search.value ? [search.value] : []), DEBOUNCE_MS);
    } });
  const count = h("p", { class: "count", role: "status" });
  const active = h("div", { class: "chips" });
  const compare = h("div", { class: "bar", id: "picked" });
  const wrong = h("div");
  const fresh = h("button", { type: "button", class: "fresh", hidden: true, onclick: () => load() });
  const head = h("div");
  const table = longTable({
    label: "Trajectories", head, makeRow,
    fetchPage: async (offset, limit, signal) => {
      const page = new URLSearchParams(filters);
      page.set("offset", offset);
      page.set("limit", limit);
      return (await get("/api/trajectories", page, signal)).rows;
    },
    onError: fail,
  });
  const panel = filterPanel({ get: () => filters, set });
  const aside = h("details", { class: "filters", open: window.innerWidth > 900 || null }, h("summary", { class: "button" }, "Filters"), panel.element);
  refill(main, h("div", { class: "head" }, h("h1", {}, "Trajectories"), count, fresh),
    h("div", { class: "bar search" }, search, compare, h("a", { class: "button", id: "export", download: "trajectories.jsonl" }, "Export")), active, wrong,
    h("div", { class: "columns" }, aside, table.box));
  document.title = "Trajectories · agentgym view";
  drawHead();
  drawPicked();
  load();

  async function load({ keepPlace = false } = {}) {
    const own = ++asked;
    refreshed = Date.now();
    const page = new URLSearchParams(filters);
    page.set("limit", 100);
    try {
      const found = await get("/api/trajectories", page);
      if (own !== asked || left) return;
      refill(wrong);
      total = found.total;
      refill(count, h("strong", {}, number(total)), total === 1 ? " episode" : " episodes",
        total > 0 && h("span", { class: "soft" }, ` · ${percent(found.solved / total)} solved · reward ${number(found.reward)} · ${number(found.turns)} turns${found.cut_turns ? ` · ${percent(found.cut_turns)} of turns cut` : ""}`));
      fresh.hidden = true;
      table.reset(total, found.rows, keepPlace);
      refill(active, chips(filters, set), total === 0 && h("p", { class: "soft" }, "No episode matches."));
      main.querySelector("#export").href = address("/export/trajectories.jsonl", filters);
      if (!found.searches && filters.has("q")) refill(wrong, h("p", { class: "notice" }, "SQLite was built without FTS5, so only tasks are searched."));
      panel.update();
    } catch (error) {
      if (own === asked) fail(error);
    }
  }

  function fail(error) {
    if (!left) refill(wrong, h("p", { class: "notice wrong", role: "alert" }, shown(error.message)));
  }

  function set(name, values) {
    filters = new URLSearchParams(filters);
    filters.delete(name);
    for (const value of values) filters.append(name, value);
    if (name !== "q" && search.value !== (filters.get("q") ?? "")) search.value = filters.get("q") ?? "";
    if (name === "q" && !values.length) search.value = "";
    remember();
    if (name === "sort") drawHead();
    load();
  }

  function remember() {
    const kept = new URLSearchParams(filters);
    for (const one of picked) kept.append("pick", one);
    navigate(address("/trajectories", kept), { replace: true, quietly: true });
  }

  function drawHead() {
    refill(head, headRow(COLUMNS, filters.get("sort") ?? "-step", (sort) => {
      set("sort", sort === "-step" ? [] : [sort]);
      say(`Sorted by ${sort.replace("-", "")}, ${sort.startsWith("-") ? "descending" : "ascending"}`);
    }));
  }

  function drawPicked() {
    const [a, b] = picked;
    refill(compare, picked.length > 0 && h("span", { class: "soft" }, `${picked.length} of 2 selected`),
      picked.length === 2 && h("a", { class: "button", href: `/compare?${new URLSearchParams({ a, b })}` }, "Compare"),
      picked.length > 0 && h("button", { type: "button", class: "quiet", onclick: () => { picked = []; remember(); drawPicked(); table.redraw(); } }, "Clear"));
  }

  function pick(name, on) {
    picked = on ? [...picked, name].slice(-2) : picked.filter((one) => one !== name);
    remember();
    drawPicked();
    for (const box of main.querySelectorAll(".pick input")) box.checked = picked.includes(box.value);
  }

  function makeRow(row) {
    const name = nameOfEpisode(row);
    const { words, kind } = outcomeOf(row);
    const list = filters.toString();
    const link = h("a", { href: `/episode/${name}${list ? `?${list}` : ""}` }, line(row.task || "(no task)"));
    const box = h("input", { type: "checkbox", value: name, checked: picked.includes(name), "aria-label": plain(`Compare ${row.task}, byte ${row.start}`),
      onchange: () => pick(name, box.checked) });
    return h("div", { role: "row", class: "row" }, cell("pick", h("label", {}, box)), cell("outcome", h("span", { class: `badge ${kind}` }, shown(words))), cell("task", link),
      cell("category", line(row.category)), cell("turns number", number(row.turns), h("span", { class: "unit" }, " turns")),
      cell(`reward number ${row.reward > 0 ? "good" : row.reward < 0 ? "bad" : ""}`, number(row.reward)),
      cell("step number", row.step < 0 ? "–" : number(row.step)), cell("policy", line(modelNames(row.policy))), cell("from", line(`${row.run} / ${row.name}`)));
  }

  return {
    update() {
      // Limit the refresh rate for runs that write continuously.
      clearTimeout(following);
      following = setTimeout(follow, Math.max(0, LIVE_MS - (Date.now() - refreshed)));
    },
    leave: () => { left = true; clearTimeout(waiting); clearTimeout(following); },
    keys: [
      ["/", "search", () => { search.focus(); search.select(); }],
      ["ArrowDown, j", "next row", () => table.move(1)], ["ArrowUp, k", "previous row", () => table.move(-1)],
      ["Enter", "open the row", () => document.activeElement.closest?.("a")?.click()],
      ["x", "select the row for comparison", () => document.activeElement.closest?.(".row")?.querySelector(".pick input")?.click()],
      ["c", "compare the selected episodes", () => compare.querySelector("a")?.click()],
    ],
  };

  async function follow() {
    // Do not move visible rows: at the top the table updates, further down it shows a button.
    if (!table.scrolled) return load({ keepPlace: true });
    refreshed = Date.now();
    const page = new URLSearchParams(filters);
    page.set("limit", 1);
    try {
      const more = (await get("/api/trajectories", page)).total - total;
      if (left || more <= 0) return;
      fresh.hidden = false;
      fresh.textContent = `${number(more)} new: show`;
    } catch (error) {
      fail(error);
    }
  }
}

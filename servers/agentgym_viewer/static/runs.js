// The first page: all runs with their curves.

import { h, refill } from "./dom.js";
import { address, get } from "./api.js";
import { chart } from "./chart.js";
import { ago, modelNames, number, percent, runColor } from "./format.js";
import { line, plain, shown } from "./text.js";

const FIRST = ["reward", "success", "horizon", "turns", "cut_turns", "sampled_tokens", "kl", "engine/kl",
  "tokens per second", "environment steps per second"];
const WORDS = {
  loss: "Loss", reward: "Reward", success: "Success", horizon: "Horizon (turns)", turns: "Turns taken",
  cut_turns: "Share of turns cut at turn_max_tokens",
  sampled_tokens: "Sampled tokens per step", kl: "KL to the reference", "engine/kl": "KL between engine and trainer",
  entropy: "Entropy", loss: "Loss", grad_norm: "Gradient norm", staleness: "Staleness (updates)",
  env_steps: "Environment steps per step", seconds: "Seconds per step", lost: "Lost episodes",
  learning_rate: "Learning rate", reward_std: "Reward, standard deviation", rollout_seconds: "Rollout seconds",
};
const AXES = { step: "Optimizer step", env: "Environment steps", time: "Training hours" };
const UNITS = { step: "step", env: "env steps", time: "hours" };
const MOST_SHOWN = 8;

export function runsPage({ main, params, navigate }) {
  let runs = [];
  let metrics = new Map();
  let charts = [];
  let left = false;
  const hidden = new Set(params.getAll("hide"));
  const more = new Set(params.getAll("more"));
  const view = { zoom: zoomOf(params.get("zoom")), smooth: Number(params.get("smooth") ?? 1) || 1, at: null };
  let axis = AXES[params.get("x")] ? params.get("x") : "step";
  let asTable = false;

  const cards = h("div", { class: "runs card" });
  const played = h("section", { class: "played" });
  const tools = h("div", { class: "bar tools" });
  const grid = h("div", { class: "charts" });
  const notes = h("div");
  refill(main, h("div", { class: "head" }, h("h1", {}, "Runs"), h("span", { class: "soft", id: "run-count" })), notes, cards, tools, grid, played);
  load().catch(fail);

  async function load() {
    runs = await get("/api/runs");
    if (left) return;
    if (!params.has("hide") && !metrics.size) runs.slice(MOST_SHOWN).forEach((run) => hidden.add(run.name));
    const found = await Promise.all(runs.map(async (run) => [run.name, (await get("/api/metrics", { run: run.name })).columns]));
    if (left) return;
    metrics = new Map(found);
    draw();
  }

  function draw() {
    document.title = `${runs.length === 1 ? runs[0].name : `${runs.length} runs`} · agentgym view`;
    document.getElementById("run-count").textContent = runs.length > 1 ? `${runs.length} side by side` : "";
    drawNotes();
    drawCards();
    drawTools();
    drawCharts();
  }

  function drawNotes() {
    const said = runs.flatMap((run) => run.missing.map((text) => [run.name, text]));
    refill(notes, said.length > 0 && h("div", { class: "notice", role: "note" },
      h("strong", {}, "Some files could not be read."),
      h("ul", {}, said.map(([name, text]) => h("li", {}, h("bdi", {}, shown(name)), ": ", shown(text))))));
  }

  function drawCards() {
    const active = document.activeElement?.dataset?.run;
    refill(cards, runsTable(runs, hidden, (run, on) => {
      if (on) hidden.delete(run.name); else hidden.add(run.name);
      remember();
      drawCharts();
    }));
    refill(played, playedTable(runs));
    if (active) cards.querySelector(`[data-run="${CSS.escape(active)}"]`)?.focus();
  }

  function drawTools() {
    if (tools.contains(document.activeElement) && tools.childElementCount) return;
    const smooth = h("input", { type: "range", id: "smooth", min: 1, max: 50, value: view.smooth,
      oninput: () => { view.smooth = Number(smooth.value); shownSmooth(); remember(); redraw(); } });
    const label = h("output", { for: "smooth", class: "soft" });
    const shownSmooth = () => { label.textContent = view.smooth > 1 ? `mean of ${view.smooth}` : "off"; };
    shownSmooth();
    const reset = h("button", { type: "button", class: "reset", disabled: !view.zoom, onclick: () => zoom(null) }, "Show all");
    const table = h("button", { type: "button", "aria-pressed": String(asTable), onclick: () => {
      asTable = !asTable;
      table.setAttribute("aria-pressed", String(asTable));
      drawCharts();
    } }, "Show as table");
    refill(tools, h("h2", {}, "Curves"), h("span", { class: "space" }),
      h("div", { class: "group", role: "group", "aria-label": "X axis" }, Object.entries(AXES).map(([key, words]) =>
        h("button", { type: "button", "aria-pressed": String(axis === key), onclick: (event) => {
          axis = key;
          view.zoom = null;
          for (const b of event.target.parentElement.children) b.setAttribute("aria-pressed", String(b === event.target));
          remember();
          drawCharts();
        } }, words))),
      h("label", { class: "field", for: "smooth" }, "Smoothing", smooth, label), reset, table, moreFigures());
  }

  function moreFigures() {
    const names = every().filter((name) => !FIRST.includes(name));
    if (!names.length) return null;
    return h("details", { class: "menu" }, h("summary", { class: "button" }, "More metrics"),
      h("div", { class: "card" }, names.map((name) => {
        const box = h("input", { type: "checkbox", checked: more.has(name), onchange: () => {
          if (box.checked) more.add(name); else more.delete(name);
          remember();
          drawCharts();
        } });
        return h("label", { class: "field" }, box, h("span", {}, shown(WORDS[name] ?? name)));
      })));
  }

  function every() {
    const names = new Set();
    for (const columns of metrics.values()) for (const name of Object.keys(columns)) names.add(name);
    for (const name of ["step"]) names.delete(name);
    return [...names].sort();
  }

  function drawCharts() {
    const visible = runs.map((run, i) => ({ run, i })).filter(({ run }) => !hidden.has(run.name) && metrics.get(run.name)?.step?.length);
    // SFT and DPO have no rewards to show.
    const loss = visible.filter(({ run }) => !metrics.get(run.name).reward).length ? ["loss"] : [];
    const figures = [...new Set([...FIRST, ...loss, ...every().filter((name) => more.has(name))])];
    const drawn = figures.map((name) => [name, visible.map(({ run, i }) => ({
      name: plain(run.name), color: runColor(i), position: i, inSteps: name === "horizon", points: pointsOf(metrics.get(run.name), name, axis),
    })).filter((curve) => curve.points.length)]).filter(([, curves]) => curves.length);
    charts = [];
    tools.hidden = !runs.some((run) => metrics.get(run.name)?.step?.length);
    if (!drawn.length) {
      return refill(grid, tools.hidden ? null : h("p", { class: "empty" }, "No run is selected."));
    }
    if (asTable) return refill(grid, table(drawn, AXES[axis]));
    charts = drawn.map(([name, curves]) => chart({
      title: WORDS[name] ?? plain(name[0].toUpperCase() + name.slice(1)), curves, xName: UNITS[axis], view, onZoom: zoom, onPoint: point,
    }));
    refill(grid, charts.map((c) => c.figure));
  }

  function zoom(range) {
    view.zoom = range;
    const reset = tools.querySelector(".reset");
    if (reset) reset.disabled = !range;
    remember();
    redraw();
  }

  function point(at) {
    if (view.at === at) return;
    view.at = at;
    for (const c of charts) c.point(at);
  }

  function redraw() {
    for (const c of charts) c.update(view);
  }

  function remember() {
    const kept = new URLSearchParams();
    for (const name of hidden) kept.append("hide", name);
    if (!hidden.size && runs.length > MOST_SHOWN) kept.append("hide", "");
    for (const name of more) kept.append("more", name);
    if (axis !== "step") kept.set("x", axis);
    if (view.smooth > 1) kept.set("smooth", view.smooth);
    if (view.zoom) kept.set("zoom", view.zoom.map((v) => Number(v.toPrecision(6))).join(".."));
    navigate(address("/", kept), { replace: true, quietly: true });
  }

  function fail(error) {
    if (!left) refill(notes, h("p", { class: "notice wrong", role: "alert" }, shown(error.message)));
  }

  return {
    update: () => load().catch(fail),
    leave: () => { left = true; },
    keys: [
      ["s", "more smoothing", () => nudge(1)], ["S", "less smoothing", () => nudge(-1)],
      ["0", "reset the zoom", () => zoom(null)],
    ],
  };

  function nudge(by) {
    const slider = document.getElementById("smooth");
    if (!slider) return;
    slider.value = Math.max(1, view.smooth + by * (view.smooth > 9 || (by > 0 && view.smooth > 8) ? 5 : 1));
    slider.dispatchEvent(new Event("input"));
  }
}

const FACTS = [["run", "Run"], ["state", "State"], ["lift", "Held-out success"], ["env", "Environment"], ["algorithm", "Algorithm"],
  ["policy", "Policy"], ["horizon", "Horizon"], ["seed", "Seed"], ["written", "Last change"]];

function runsTable(runs, hidden, toggle) {
  return h("table", { class: "run-table" }, h("thead", {}, h("tr", {}, FACTS.map(([name, words]) => h("th", { scope: "col", class: name }, words)))),
    h("tbody", {}, runs.map((run, i) => runRow(run, i, !hidden.has(run.name), toggle))));
}

function runRow(run, position, on, toggle) {
  const { settings } = run;
  const box = h("input", { type: "checkbox", checked: on, "data-run": run.name, "aria-label": plain(`Show the curves of ${run.name}`), onchange: () => {
    toggle(run, box.checked);
    row.classList.toggle("off", !box.checked);
  } });
  const lift = run.evaluated.length ? run.evaluated.map(percent).join(", ") : success(run);
  const cells = { state: h("span", { class: `badge ${run.state}` }, run.state), lift, env: text(settings.env), algorithm: text(settings.algorithm),
    policy: text(modelNames(settings.policy)), horizon: text(settings.horizon), seed: text(settings.seed), written: run.written && ago(run.written) };
  const row = h("tr", { class: on ? null : "off" }, h("th", { scope: "row", class: "run" }, h("span", { class: "field" }, box,
    h("span", { class: "swatch", style: { background: runColor(position) } }), h("a", { href: address("/trajectories", new URLSearchParams({ run: run.name })), title: plain(run.path) }, line(run.name)))),
    FACTS.slice(1).map(([name, words]) => h("td", { class: `${name}${cells[name] ? "" : " none"}`, "data-name": words }, cells[name] || h("span", { class: "soft" }, "–"))));
  return row;
}

/** The success before and after, or the one of them that there is. */
function success({ before, after }) {
  const soft = (words) => h("span", { class: "soft" }, words);
  if (after == null) return before == null ? null : [percent(before), soft(" before")];
  return [before != null && [percent(before), soft(" → ")], h("strong", {}, percent(after)), before == null && soft(" after")];
}

function text(value) {
  return value ? line(value) : null;
}

function playedTable(runs) {
  const rows = runs.flatMap((run, i) => run.played.map((part) => ({ run, i, part })));
  if (!rows.length) return null;
  const titles = ["Run", "File", "Environment", "Policy", "Episodes", "Tasks", "Lost", "Success", "Reward", "Turns", "Cut turns"];
  return [h("h2", {}, "Episodes"), h("div", { class: "card scroll", tabindex: 0, role: "region", "aria-label": "Episodes" }, h("table", {},
    h("thead", {}, h("tr", {}, titles.map((words, i) => h("th", { scope: "col", class: i > 3 && "number" }, words)))),
    h("tbody", {}, rows.map(({ run, i, part }) => h("tr", {},
      h("th", { scope: "row" }, h("span", { class: "field" }, h("span", { class: "swatch", style: { background: runColor(i) } }), line(run.name))),
      h("td", {}, h("a", { href: address("/trajectories", new URLSearchParams({ run: run.name, file: part.file, env: part.env, policy: part.policy })) }, shown(part.file))),
      h("td", { class: "soft" }, line(part.env.split("/").at(-1))),
      h("td", { class: "soft" }, line(modelNames(part.policy))),
      [number(part.episodes), number(part.tasks), part.lost ? h("span", { class: "warn" }, number(part.lost)) : "0", percent(part.success), number(part.reward), number(part.turns),
        part.cut_turns ? h("span", { class: "warn" }, percent(part.cut_turns)) : "0"]
        .map((value) => h("td", { class: "number" }, value)))))))];
}

/** [[x, y], ...] of a metric; rates are computed from other metrics. */
export function pointsOf(columns, name, axis) {
  const rate = (over) => columns[over] && columns.seconds && columns[over].map((v, i) => (v != null && columns.seconds[i] > 0 ? v / columns.seconds[i] : null));
  const values = name === "tokens per second" ? rate("sampled_tokens") : name === "environment steps per second" ? rate("env_steps") : columns[name];
  if (!values) return [];
  let sum = 0;
  const along = axis === "step" ? columns.step : (columns[axis === "env" ? "env_steps" : "seconds"] ?? []).map((v) => {
    sum += (v ?? 0) / (axis === "time" ? 3600 : 1);
    return sum;
  });
  return values.map((v, i) => [along[i], v]).filter(([x, v]) => v != null && x != null);
}

function table(drawn, xName) {
  return drawn.map(([name, curves]) => h("div", { class: "card scroll figures", tabindex: 0, role: "region", "aria-label": plain(WORDS[name] ?? name) },
    h("table", {}, h("caption", {}, plain(WORDS[name] ?? name)),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, xName), curves.map((c) => h("th", { scope: "col", class: "number" }, c.name)))),
      h("tbody", {}, xs(curves).map((x) => h("tr", {}, h("th", { scope: "row" }, number(x)),
        curves.map((c) => h("td", { class: "number" }, number(c.points.find((p) => p[0] === x)?.[1])))))))));
}

function xs(curves) {
  const all = [...new Set(curves.flatMap((c) => c.points.map((p) => p[0])))].sort((a, b) => a - b);
  return all.length > 500 ? all.slice(-500) : all;
}

function zoomOf(text) {
  const found = (text ?? "").split("..").map(Number);
  return found.length === 2 && found.every(Number.isFinite) && found[0] < found[1] ? found : null;
}

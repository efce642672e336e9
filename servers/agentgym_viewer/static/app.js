// The page's frame: routing, links without reloading, and updates from the server.

import { h, refill } from "./dom.js";
import { get } from "./api.js";
import { listen, setKeys } from "./keys.js";
import { runsPage } from "./runs.js";
import { trajectoriesPage } from "./trajectories.js";
import { episodePage } from "./episode.js";
import { comparePage } from "./compare.js";

const POLL_MS = 1000;
const main = document.getElementById("main");
const live = document.getElementById("live");
let here = null;
let version = null;

/** Open a URL of this page. */
export function navigate(address, { replace = false, quietly = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", address);
  if (!quietly) open();
}

function open() {
  here?.leave?.();
  setKeys([]);
  const parts = location.pathname.split("/").filter(Boolean).map(decodeURIComponent);
  const [name, make] = parts[0] === "trajectories" ? ["trajectories", trajectoriesPage]
    : parts[0] === "episode" ? ["trajectories", episodePage]
    : parts[0] === "compare" ? ["compare", comparePage] : ["runs", runsPage];
  for (const link of document.querySelectorAll("#top nav a")) {
    if (link.dataset.page === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  main.className = `page-${parts[0] ?? "runs"}`;
  refill(main);
  window.scrollTo(0, 0);
  here = make({ main, parts: parts.slice(1), params: new URLSearchParams(location.search), navigate });
  setKeys(here.keys ?? []);
}

async function poll() {
  if (document.hidden) return;
  try {
    const status = await get("/api/status");
    live.className = status.busy ? "busy" : "on";
    setText(live, status.busy ? "indexing" : "live");
    live.title = status.busy ? "Runs are being indexed" : "The page updates automatically";
    const changed = version != null && status.version !== version;
    version = status.version;
    if (changed) here?.update?.();
  } catch (error) {
    live.className = "off";
    setText(live, "not connected");
    live.title = error.message;
  }
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function setTheme(theme) {
  const root = document.documentElement;
  if (theme === "auto") delete root.dataset.theme;
  else root.dataset.theme = theme;
  localStorage.setItem("theme", theme);
  const button = document.getElementById("theme");
  const dark = h("span", { "aria-hidden": "true" }, { auto: "◐", light: "○", dark: "●" }[theme]);
  refill(button, dark, h("span", { class: "wide" }, { auto: "Auto", light: "Light", dark: "Dark" }[theme]));
  button.setAttribute("aria-label", `${theme[0].toUpperCase()}${theme.slice(1)} color theme; change`);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href]");
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const to = new URL(link.href);
  if (to.origin !== location.origin || link.hasAttribute("download") || to.pathname.startsWith("/export/")) return;
  if (link.getAttribute("href").startsWith("#")) return;
  event.preventDefault();
  navigate(to.pathname + to.search);
  main.focus({ preventScroll: true });
});
document.getElementById("theme").addEventListener("click", () => {
  const order = ["auto", "light", "dark"];
  setTheme(order[(order.indexOf(localStorage.getItem("theme") ?? "auto") + 1) % 3]);
});
window.addEventListener("popstate", open);
document.addEventListener("visibilitychange", poll);
setTheme(localStorage.getItem("theme") ?? "auto");
listen(navigate);
open();
poll();
setInterval(poll, POLL_MS);

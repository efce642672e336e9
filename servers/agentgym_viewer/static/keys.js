// Keyboard shortcuts: `?` shows them, and they can be turned off.

import { h, refill } from "./dom.js";

let page = [];
const everywhere = [
  ["?", "show the shortcuts", showHelp],
  ["g r", "go to the runs", () => go("/")],
  ["g t", "go to the trajectories", () => go("/trajectories")],
];
let go = () => {};
let before = "";

/** Set the current page's shortcuts: [keys, description, function]; a comma separates keys. */
export function setKeys(list) {
  page = list;
}

/** Start listening; `navigate` opens a URL. */
export function listen(navigate) {
  go = navigate;
  document.addEventListener("keydown", pressed);
  document.getElementById("help").addEventListener("click", showHelp);
}

function pressed(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (document.querySelector("dialog[open]")) return;
  const target = event.target;
  const types = target.closest("input:not([type=checkbox]):not([type=range]), textarea, select");
  if (types) {
    if (event.key === "Escape") target.blur();
    return;
  }
  const key = event.key === " " ? "Space" : event.key;
  // A focused control handles its own keys.
  if (["Space", "Enter"].includes(key) && target.closest("button, a, summary, input")) return;
  if (key.startsWith("Arrow") && target.closest("input[type=range], [data-own-keys]")) return;
  if (key.length === 1 && localStorage.getItem("keys") === "off" && key !== "?") return;
  const two = `${before} ${key}`;
  before = key;
  for (const [keys, , act] of [...page, ...everywhere]) {
    const names = keys.split(", ");
    if (names.includes(two) || names.includes(key)) {
      event.preventDefault();
      before = "";
      act(event);
      return;
    }
  }
}

function showHelp() {
  const dialog = h("dialog", { "aria-labelledby": "keys-title", onclose: () => dialog.remove() });
  const single = h("input", {
    type: "checkbox", id: "single", checked: localStorage.getItem("keys") !== "off",
    onchange: () => localStorage.setItem("keys", single.checked ? "on" : "off"),
  });
  const rows = [...page, ...everywhere].map(([keys, what]) => [
    h("dt", {}, keys.split(", ").flatMap((key, i) => [
      i ? " or " : "", ...key.split(" ").map((one) => h("kbd", {}, NAMES[one] ?? one)),
    ])),
    h("dd", {}, what),
  ]);
  refill(dialog,
    h("div", { class: "bar" }, h("h2", { id: "keys-title" }, "Keyboard shortcuts"), h("span", { class: "space" }),
      h("button", { type: "button", onclick: () => dialog.close() }, "Close")),
    h("dl", {}, rows),
    h("label", { class: "field" }, single, "Enable single-letter shortcuts"));
  document.body.append(dialog);
  dialog.showModal();
}

const NAMES = { ArrowRight: "→", ArrowLeft: "←", ArrowUp: "↑", ArrowDown: "↓" };

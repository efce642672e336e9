// Text of models and environments, shown as plain text: control characters are escaped.

import { h } from "./dom.js";
import { get } from "./api.js";

// The same list as in html_page.py.
const STEERING = /[\u{0}-\u{8}\u{b}-\u{1f}\u{7f}\u{80}-\u{9f}\u{61c}\u{200b}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}-\u{202e}\u{2060}-\u{2064}\u{2066}-\u{206f}\u{feff}\u{fff9}-\u{fffb}\u{e0000}-\u{e007f}\u{d800}-\u{dfff}]/gu;
const TREE_LINE = /^(\t*)(\[[^\]\s]{1,12}\] )?([A-Za-z]{3,30})( '.*)$/;
const CHUNK = 20000;

/** The escaped form of a control character. */
export function nameOf(character) {
  const code = character.codePointAt(0);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  return code === 0x7f ? "␡" : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

/** Escaped text as a string, for titles, labels and attributes. */
export function plain(text) {
  return String(text).replace(STEERING, nameOf);
}

/** Escaped text as nodes, in which control characters are marked. */
export function shown(text) {
  const nodes = [];
  let from = 0;
  for (const found of text.matchAll(STEERING)) {
    if (found.index > from) nodes.push(text.slice(from, found.index));
    const name = `invisible or control character U+${found[0].codePointAt(0).toString(16).toUpperCase()}`;
    nodes.push(h("span", { class: "mark", title: name }, nameOf(found[0])));
    from = found.index + found[0].length;
  }
  if (from < text.length) nodes.push(text.slice(from));
  return nodes;
}

/** One line of text, truncated at the end of its box. */
export function line(text, props = {}) {
  return h("span", { class: "line", title: plain(text), ...props }, shown(text.slice(0, 300)));
}

/** A block of text; a long text is truncated and has a button that loads the rest. */
export function block(value, whole = null, props = {}) {
  const isCut = typeof value === "object";
  const text = isCut ? value.text : value;
  const pre = h("pre", { ...props, class: `text ${props.class ?? ""}` }, looksLikeTree(text) ? tree(text) : shown(text));
  if (!isCut) return pre;
  const length = value.length.toLocaleString("en");
  const button = h("button", { type: "button", class: "more", onclick: showAll }, `Show all ${length} characters`);
  const box = h("div", { class: "cut" }, pre, button);
  return box;

  async function showAll() {
    button.disabled = true;
    button.textContent = "Loading…";
    try {
      const all = (await get(whole.path, whole.params)).text;
      pre.replaceChildren(...pieces(all));
      button.remove();
      pre.tabIndex = -1;
      pre.focus({ preventScroll: true });
    } catch (error) {
      button.disabled = false;
      button.textContent = `${error.message} Try again`;
    }
  }
}

/**
 * A long text in blocks, so that the browser lays out only the visible ones; a line of a megabyte
 * would take many seconds. Blocks end at line ends; a block that ends within a line is marked.
 */
function pieces(text) {
  const parts = [];
  for (let at = 0; at < text.length;) {
    const end = text.lastIndexOf("\n", at + CHUNK) + 1;
    const isMid = end <= at && at + CHUNK < text.length;
    const to = end > at && at + CHUNK < text.length ? end : at + CHUNK;
    parts.push(h("span", { class: isMid ? "piece mid" : "piece" }, shown(text.slice(at, to))));
    at = to;
  }
  return parts;
}

/** The text of a value that may be truncated. */
export function textOf(value) {
  return typeof value === "object" ? value.text : value;
}

function looksLikeTree(text) {
  const lines = text.slice(0, 4000).split("\n");
  return lines.filter((l) => TREE_LINE.test(l)).length > Math.max(4, lines.length / 2);
}

/** A web page's accessibility tree, with ids and roles highlighted. */
function tree(text) {
  return text.split("\n").flatMap((row, i) => {
    const end = i ? "\n" : "";
    const found = row.match(TREE_LINE);
    if (!found) return [end, ...shown(row)];
    const [, tabs, id, role, name] = found;
    return [end + tabs, id && h("span", { class: "tree-id" }, shown(id)),
      h("span", { class: "tree-role" }, role), ...shown(name)];
  }).filter((node) => node != null);
}

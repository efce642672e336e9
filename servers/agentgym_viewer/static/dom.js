// Creates DOM elements from values. Data becomes text nodes and attributes, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element: `h("a", {href: "/", class: "x", onclick: go}, "text", child)`. */
export function h(tag, props = {}, ...children) {
  return filled(document.createElement(tag), props, children);
}

/** An SVG element. */
export function s(tag, props = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

/** Replace the children of an element. */
export function refill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

/** Announce a text to screen readers. */
export function say(text) {
  document.getElementById("said").textContent = text;
}

/**
 * Scroll to an element. Blocks that were never visible have an estimated height, which is corrected
 * when they become visible, so scrolling takes a few frames.
 */
export function bring(element, frames = 4) {
  element.scrollIntoView({ block: "start", behavior: "instant" });
  if (frames > 0) requestAnimationFrame(() => element.isConnected && bring(element, frames - 1));
}

function filled(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, v] of Object.entries(value)) element.style.setProperty(key, v);
    else if (name === "checked" || name === "value" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

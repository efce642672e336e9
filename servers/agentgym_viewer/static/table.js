// A virtualized table: only visible rows are in the DOM, and pages of rows are fetched on demand.

import { h, refill } from "./dom.js";

const PAGE = 100;
const SPARE = 12;
const MOST_PIXELS = 12_000_000;  // browsers limit the height of a box to about 30 million

/**
 * `fetchPage(offset, limit, signal)` returns rows, `makeRow(row, position)` creates the element of a
 * row, `head` is the row of column titles.
 */
export function longTable({ label, head, fetchPage, makeRow, onError }) {
  const body = h("div", { class: "rows", role: "rowgroup" });
  const grid = h("div", { class: "long", role: "table", "aria-label": label, "aria-rowcount": -1 },
    h("div", { role: "rowgroup", class: "long-head" }, head), body);
  const box = h("div", { class: "long-box card" }, grid);
  const pages = new Map();
  const made = new Map();
  let total = 0;
  let height = 44;
  let controller = new AbortController();
  let pending = 0;

  box.addEventListener("scroll", () => { cancelAnimationFrame(pending); pending = requestAnimationFrame(draw); }, { passive: true });
  new ResizeObserver(() => { measure(); draw(); }).observe(box);

  /** Remove all rows; the first page may be passed. */
  function reset(count, first = null, keepPlace = false) {
    controller.abort();
    controller = new AbortController();
    total = count;
    pages.clear();
    if (first) pages.set(0, first);
    for (const row of made.values()) row.remove();
    made.clear();
    if (!keepPlace) box.scrollTop = 0;
    grid.setAttribute("aria-rowcount", total + 1);
    measure();
    draw();
  }

  function measure() {
    height = parseFloat(getComputedStyle(box).getPropertyValue("--row")) || 44;
    body.style.height = `${Math.min(total * height, MOST_PIXELS)}px`;
  }

  function draw() {
    const reach = Math.min(total, Math.floor(MOST_PIXELS / height));
    const from = Math.max(0, Math.floor(box.scrollTop / height) - SPARE);
    const to = Math.min(reach, Math.ceil((box.scrollTop + box.clientHeight) / height) + SPARE);
    for (const [position, row] of made) {
      if ((position < from || position >= to) && !row.contains(document.activeElement)) {
        row.remove();
        made.delete(position);
      }
    }
    for (let position = from; position < to; position += 1) {
      const page = Math.floor(position / PAGE);
      const data = pages.get(page)?.[position % PAGE];
      if (!pages.has(page)) load(page);
      const old = made.get(position);
      if (old && (old.dataset.full || !data)) continue;
      const row = data ? makeRow(data, position) : h("div", { role: "row", class: "row waiting", "aria-busy": "true" });
      row.style.transform = `translateY(${position * height}px)`;
      row.setAttribute("aria-rowindex", position + 2);
      if (data) row.dataset.full = "yes";
      old?.remove();
      made.set(position, row);
      // Elements are in the order of rows, since the Tab key follows the order of elements.
      const next = made.get(position + 1);
      body.insertBefore(row, next?.parentElement === body ? next : null);
    }
  }

  async function load(page) {
    const own = controller;
    pages.set(page, []);
    try {
      const rows = await fetchPage(page * PAGE, PAGE, own.signal);
      if (own.signal.aborted) return;
      pages.set(page, rows);
      draw();
    } catch (error) {
      if (error.name === "AbortError") return;
      pages.delete(page);
      onError(error);
    }
  }

  /** Move the keyboard focus by a number of rows. */
  function move(by) {
    const now = [...made].find(([, row]) => row.contains(document.activeElement))?.[0];
    const top = Math.ceil(box.scrollTop / height);
    const to = Math.max(0, Math.min(total - 1, now == null ? top : now + by));
    const upper = to * height;
    const room = box.clientHeight - (grid.firstElementChild.offsetHeight || 0);
    if (upper < box.scrollTop) box.scrollTop = upper;
    else if (upper + height > box.scrollTop + room) box.scrollTop = upper + height - room;
    draw();
    made.get(to)?.querySelector("a")?.focus({ preventScroll: true });
  }

  return { box, reset, move, redraw: () => { for (const r of made.values()) r.remove(); made.clear(); draw(); }, get scrolled() { return box.scrollTop > height / 2; } };
}

/** One cell. */
export function cell(name, ...children) {
  return h("div", { role: "cell", class: `cell ${name}` }, ...children);
}

/** The row of titles; titles of sortable columns are buttons. */
export function headRow(columns, sort, onSort) {
  const row = h("div", { role: "row", class: "row titles", "aria-rowindex": 1 });
  refill(row, columns.map(([name, words, key]) => {
    const way = sort === key ? "ascending" : sort === `-${key}` ? "descending" : null;
    const mark = way && h("span", { "aria-hidden": "true" }, way === "ascending" ? " ↑" : " ↓");
    return h("div", { role: "columnheader", class: `cell ${name}`, "aria-sort": way },
      key ? h("button", { type: "button", class: "quiet", onclick: () => onSort(way === "descending" ? key : `-${key}`) }, words, mark)
        : h("span", { class: name === "pick" ? "unseen" : "" }, words));
  }));
  return row;
}

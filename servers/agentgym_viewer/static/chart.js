// SVG line charts of several runs, with smoothing; zoom and crosshair are shared by all charts.

import { h, refill, s } from "./dom.js";
import { number } from "./format.js";

const HEIGHT = 190;
const LEFT = 44;
const RIGHT = 12;
const TOP = 10;
const BOTTOM = 24;
const DASHES = ["", "7 4", "2 3", "9 3 2 3"];

/**
 * A chart of curves `{name, color, points: [[x, y], ...]}`, sorted by x; curves with `inSteps` keep
 * a value until the next one, and are not smoothed.
 *
 * `view` is shared by a page's charts: `{zoom: [a, b] | null, smooth, at: x | null}`. `onZoom` and
 * `onPoint` are called for user input; `update(view)` redraws the chart.
 */
export function chart({ title, curves, xName, view, onZoom, onPoint }) {
  const readout = h("p", { class: "readout", "aria-live": "off" });
  let width = 400;
  const svg = s("svg", { role: "img", "aria-label": described(title, curves) });
  const plot = h("div", {
    class: "plot", tabindex: 0, role: "group", "data-own-keys": true,
    "aria-label": `${title}. Use the arrow keys to read values, plus and minus to zoom, 0 to reset the zoom.`,
  }, svg);
  const figure = h("figure", { class: "chart card" }, h("figcaption", {}, h("h3", {}, title), readout), plot);
  const clip = `clip-${Math.random().toString(36).slice(2)}`;
  let scale = null;
  let now = view;

  function update(next) {
    now = next;
    const domain = now.zoom ?? extent(curves.flatMap((c) => [c.points[0]?.[0], c.points.at(-1)?.[0]]));
    const drawn = curves.map((curve) => ({ ...curve, raw: inside(curve.points, domain), smooth: inside(curve.inSteps ? curve.points : smoothed(curve.points, now.smooth), domain) }));
    const range = padded(extent(drawn.flatMap((c) => (now.smooth > 1 ? [...c.smooth, ...thinned(c.raw)] : c.raw).map((p) => p[1]))));
    const x = (v) => LEFT + ((v - domain[0]) / (domain[1] - domain[0] || 1)) * (width - LEFT - RIGHT);
    const y = (v) => HEIGHT - BOTTOM - ((v - range[0]) / (range[1] - range[0] || 1)) * (HEIGHT - TOP - BOTTOM);
    const back = (px) => domain[0] + ((px - LEFT) / (width - LEFT - RIGHT)) * (domain[1] - domain[0]);
    scale = { x, y, back, domain, drawn };
    refill(svg,
      s("clipPath", { id: clip }, s("rect", { x: LEFT, y: 0, width: width - LEFT - RIGHT, height: HEIGHT - BOTTOM + 2 })),
      ticks(range, 5).map((v) => [
        s("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(v), y2: y(v) }),
        s("text", { class: "tick", x: LEFT - 7, y: y(v) + 4, "text-anchor": "end" }, brief(v)),
      ]),
      ticks(domain, Math.max(2, Math.floor(width / 60))).map((v) => s("text", { class: "tick", x: x(v), y: HEIGHT - 8, "text-anchor": "middle" }, brief(v))),
      s("g", { "clip-path": `url(#${clip})` }, drawn.map((c, i) => [
        now.smooth > 1 && !c.inSteps && s("path", { class: "raw", d: path(c.raw, x, y), stroke: c.color }),
        s("path", { class: "curve", d: path(now.smooth > 1 ? c.smooth : c.raw, x, y, c.inSteps), stroke: c.color, "stroke-dasharray": DASHES[Math.floor((c.position ?? i) / 8) % 4] }),
        c.smooth.length === 1 && s("circle", { cx: x(c.smooth[0][0]), cy: y(c.smooth[0][1]), r: 3, fill: c.color }),
      ])),
      s("g", { class: "cross" }), s("rect", { class: "brush", y: TOP, height: HEIGHT - TOP - BOTTOM, width: 0 }));
    point(now.at);
  }

  function point(at) {
    now = { ...now, at };
    const cross = svg.querySelector(".cross");
    if (at == null || !scale || at < scale.domain[0] || at > scale.domain[1]) {
      cross.replaceChildren();
      const last = scale.drawn.map((c) => ({ c, p: c.smooth.at(-1) })).filter(({ p }) => p);
      return refill(readout, values(last));
    }
    const found = scale.drawn.filter((c) => reaches(c.raw, at)).map((c) => ({ c, p: nearest(c.smooth, at) }));
    refill(cross, s("line", { x1: scale.x(at), x2: scale.x(at), y1: TOP, y2: HEIGHT - BOTTOM }),
      found.map(({ c, p }) => s("circle", { cx: scale.x(p[0]), cy: scale.y(p[1]), r: 3.5, fill: c.color })));
    refill(readout, h("span", { class: "soft" }, `${xName} ${number(at)}`), values(found));
  }

  const place = (event) => {
    const box = svg.getBoundingClientRect();
    return Math.min(width - RIGHT, Math.max(LEFT, ((event.clientX - box.left) / box.width) * width));
  };
  let from = null;
  const brush = () => svg.querySelector(".brush");
  plot.addEventListener("pointermove", (event) => {
    const px = place(event);
    const steps = [...new Set(scale.drawn.flatMap((c) => nearest(c.raw, scale.back(px))?.[0] ?? []))];
    onPoint(steps.length ? steps.reduce((a, b) => (Math.abs(b - scale.back(px)) < Math.abs(a - scale.back(px)) ? b : a)) : null);
    if (from != null) {
      brush().setAttribute("x", Math.min(from, px));
      brush().setAttribute("width", Math.abs(px - from));
    }
  });
  plot.addEventListener("pointerdown", (event) => {
    if (event.button || event.pointerType === "touch") return;
    from = place(event);
    plot.setPointerCapture(event.pointerId);
  });
  plot.addEventListener("pointerup", (event) => {
    const to = place(event);
    if (from != null && Math.abs(to - from) > 8) onZoom([scale.back(Math.min(from, to)), scale.back(Math.max(from, to))]);
    from = null;
    brush().setAttribute("width", 0);
  });
  plot.addEventListener("pointerleave", () => from == null && onPoint(null));
  plot.addEventListener("dblclick", () => onZoom(null));
  plot.addEventListener("focus", () => readout.setAttribute("aria-live", "polite"));
  plot.addEventListener("blur", () => readout.setAttribute("aria-live", "off"));
  plot.addEventListener("keydown", (event) => {
    const [a, b] = scale.domain;
    const steps = [...new Set(scale.drawn.flatMap((c) => c.raw.map((p) => p[0])))].sort((p, q) => p - q);
    const at = now.at ?? steps.at(-1);
    const i = steps.findIndex((v) => v >= at);
    const move = { ArrowLeft: i - 1, ArrowRight: i + 1, Home: 0, End: steps.length - 1 }[event.key];
    const zoomed = { "+": 0.5, "=": 0.5, "-": 2 }[event.key];
    if (move != null) onPoint(steps[Math.min(steps.length - 1, Math.max(0, move))]);
    else if (zoomed) onZoom([at - (at - a) * zoomed, at + (b - at) * zoomed]);
    else if (event.key === "0") onZoom(null);
    else return;
    event.preventDefault();
  });
  // Redraw at the container's width, so that the font size stays the same.
  new ResizeObserver(() => {
    if (plot.clientWidth === width || !plot.clientWidth) return;
    width = plot.clientWidth;
    update(now);
  }).observe(plot);
  update(view);
  return { figure, update, point };
}

/** The moving average over `over` values. */
export function smoothed(points, over) {
  if (over <= 1) return points;
  let sum = 0;
  return points.map(([x, y], i) => {
    sum += y - (i >= over ? points[i - over][1] : 0);
    return [x, sum / Math.min(over, i + 1)];
  });
}

function values(found) {
  return found.map(({ c, p }) => h("span", { class: "value" },
    h("span", { class: "swatch", style: { background: c.color } }), h("span", { class: "unseen" }, `${c.name}: `), number(p[1])));
}

function described(title, curves) {
  const ends = curves.filter((c) => c.points.length).map((c) => `${c.name} from ${number(c.points[0][1])} to ${number(c.points.at(-1)[1])}`);
  return `${title}: ${ends.join("; ")}`;
}

function inside(points, [a, b]) {
  return points.filter(([x]) => x >= a && x <= b);
}

/** Downsample to the minimum and maximum of every few points, which keeps spikes. */
function thinned(points, most = 1000) {
  if (points.length <= most) return points;
  const each = Math.ceil(points.length / (most / 2));
  const kept = [];
  for (let i = 0; i < points.length; i += each) {
    const part = points.slice(i, i + each);
    const low = part.reduce((p, q) => (q[1] < p[1] ? q : p));
    const high = part.reduce((p, q) => (q[1] > p[1] ? q : p));
    kept.push(...(low === high ? [low] : low[0] < high[0] ? [low, high] : [high, low]));
  }
  return kept;
}

function path(points, x, y, inSteps = false) {
  return thinned(points).map(([px, py], i) => {
    const [across, up] = [x(px).toFixed(1), y(py).toFixed(1)];
    return i && inSteps ? `H${across}V${up}` : `${i ? "L" : "M"}${across} ${up}`;
  }).join("");
}

function nearest(points, at) {
  let best = null;
  for (const p of points) if (best === null || Math.abs(p[0] - at) < Math.abs(best[0] - at)) best = p;
  return best;
}

/** Whether a position is within the range of a curve. */
function reaches(points, at) {
  if (!points.length) return false;
  const gap = (points.at(-1)[0] - points[0][0]) / Math.max(1, points.length - 1);
  return at >= points[0][0] - gap && at <= points.at(-1)[0] + gap;
}

function extent(values) {
  const known = values.filter((v) => v != null);
  if (!known.length) return [0, 1];
  const low = known.reduce((a, b) => Math.min(a, b));
  const high = known.reduce((a, b) => Math.max(a, b));
  return low === high ? [low - (Math.abs(low) || 1) * 0.5, high + (Math.abs(high) || 1) * 0.5] : [low, high];
}

function padded([low, high]) {
  const room = (high - low) * 0.06;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high <= 1 && high > 0.94 ? 1.02 : high + room];
}

function ticks([low, high], count) {
  const rough = (high - low) / count;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((f) => f * size).find((v) => v >= rough);
  const found = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-6; v += step) found.push(Math.abs(v) < step * 1e-6 ? 0 : v);
  return found;
}

function brief(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)} M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)} k`;
  return size && size < 1e-3 ? value.toExponential(0) : String(+value.toPrecision(4)).replace("-", "−");
}

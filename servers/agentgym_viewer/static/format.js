// Formats numbers and times.

/** A number with its significant digits. */
export function number(value) {
  if (value == null || Number.isNaN(value)) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en").replace("-", "−");
  const size = Math.abs(value);
  const digits = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 1 ? 2 : size >= 0.001 ? 3 : 0;
  const text = digits || size >= 1000 ? value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits })
    : value.toExponential(1);
  return text.replace("-", "−");
}

/** A number with its sign. */
export function signed(value) {
  return value > 0 ? `+${number(value)}` : number(value);
}

/** A fraction as percent. */
export function percent(value) {
  return value == null ? "–" : `${(100 * value).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`;
}

/** How long ago a time in seconds since 1970 was. */
export function ago(seconds) {
  const past = Math.max(0, Date.now() / 1000 - seconds);
  if (past < 60) return "just now";
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  if (past < 86400) return `${Math.floor(past / 3600)} h ago`;
  return new Date(seconds * 1000).toLocaleDateString("en", { day: "numeric", month: "short", year: "numeric" });
}

/** A duration. */
export function duration(seconds) {
  if (seconds < 60) return `${number(Math.round(seconds * 10) / 10)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
}

/** Short names of policies, joined by commas: of a path the part that says which model it is. */
export function modelNames(policies = "") {
  return policies.split(", ").map(modelName).join(", ");
}

function modelName(policy) {
  const parts = policy.replace(/@https?:.*$/, "").split("/").filter(Boolean);
  const snapshots = parts.lastIndexOf("snapshots");
  // The hub's cache: models--OWNER--NAME/snapshots/COMMIT.
  if (snapshots > 0) return parts[snapshots - 1].split("--").at(-1);
  const last = parts.at(-1) ?? policy;
  const isStep = /^(checkpoint|step)-\d+$/.test(last);
  if (last !== "model" && !isStep) return last;
  const run = parts.slice(0, -1).findLast((part) => part !== "checkpoints") ?? "";
  return isStep || !run ? `${run} ${last}`.trim() : run;
}

/** An outcome's name, and the class of its badge. */
export function outcomeOf(row) {
  const lost = ["environment_lost", "engine_lost", "environment_error", "agent_lost"].includes(row.outcome);
  const kind = lost ? "lost" : row.success ? "success" : row.outcome === "failure" ? "failure" : "other";
  return { words: row.outcome.replaceAll("_", " ") || "unknown", kind };
}

/** The color of the n-th run. */
export function runColor(position) {
  return `var(--run-${position % 8})`;
}

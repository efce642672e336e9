// Requests to the server, and URLs within the page.

/** The JSON response of a GET request; throws an Error with a message for the user. */
export async function get(path, params = {}, signal = undefined) {
  const asked = params instanceof URLSearchParams ? params : new URLSearchParams(params);
  const query = asked.toString();
  let answer;
  try {
    answer = await fetch(query ? `${path}?${query}` : path, { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not respond. Check that `agentgym view` is running.");
  }
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

/** `run/file/start`, each part encoded: the name of an episode in URLs. */
export function nameOfEpisode(row) {
  return [row.run, row.file ?? row.name, row.start].map(encodeURIComponent).join("/");
}

export const FILTERS = ["q", "run", "file", "env", "task", "split", "category", "policy", "outcome",
  "success", "turns", "step", "group", "reward", "score", "horizon", "sort"];

/** The parameters of a URL that filter and sort rows. */
export function filtersOf(params) {
  const kept = new URLSearchParams();
  for (const name of FILTERS) for (const value of params.getAll(name)) if (value !== "") kept.append(name, value);
  return kept;
}

/** A path with its query, if any. */
export function address(path, params) {
  const query = params.toString();
  return query ? `${path}?${query}` : path;
}

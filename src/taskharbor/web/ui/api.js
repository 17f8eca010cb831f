/** The public API of the server that served this page. It refuses what the caller may not do; pages only hide it. */

/** The address of /api, worked out from this file's own: /<prefix>/ui/<hash>/api.js. */
const BASE = new URL("../../api/", import.meta.url);

/** What went wrong: RFC 9457 from the server, or the same shape when it did not answer. */
class Problem extends Error {
  constructor({ title, detail = title, status, errors = [], request_id: requestId }) {
    super(detail);
    Object.assign(this, { status, errors, requestId });
  }
}

const logoutListeners = new Set();
/** Called when an answer asks for a login. */
export const onLogout = (listener) => logoutListeners.add(listener);

/** A path is a text, or a list of parts that may hold any sign. */
export const api = {
  url(path, query = {}) {
    const url = new URL(Array.isArray(path) ? path.map(encodeURIComponent).join("/") : path, BASE);
    for (const [name, value] of given(query)) url.searchParams.set(name, value);
    return url;
  },
  get: (path, query) => send("GET", path, undefined, query),
  post: (path, body = {}) => send("POST", path, body),
  patch: (path, body) => send("PATCH", path, body),
  delete: (path) => send("DELETE", path),
};

/** The entries of a query that have a value. */
export const given = (query) => Object.entries(query).filter(([, value]) => value != null && value !== "");

async function send(method, path, body, query) {
  const sent = body && { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
  let answer, text;
  try {
    answer = await fetch(api.url(path, query), { method, ...sent });
    text = await answer.text();
  } catch { throw new Problem({ title: "The server does not answer." }); }
  const { ok, status, statusText, headers } = answer, found = parsed(text);
  if (ok) return found;
  if (status === 401 && !(path === "session" && body)) logoutListeners.forEach((listener) => listener());
  throw new Problem({ title: statusText || `Status ${status}`, request_id: headers.get("X-Request-Id"), ...found, status });
}

function parsed(text) {
  try { return JSON.parse(text); } catch { return null; }
}

/** The public API of the server that served this page. It refuses what the caller may not do; pages only hide it. */

/** The address of /api, worked out from this file's own: /<prefix>/ui/<hash>/api.js. */
const BASE = new URL("../../api/", import.meta.url);

/** What went wrong: RFC 9457 from the server, or the same shape when it did not answer. */
export class Problem extends Error {
  constructor(fields) {
    super(fields.detail || fields.title);
    this.status = fields.status ?? 0;
    this.kind = (fields.type || "").split(":").pop() || "unreachable";
    this.title = fields.title;
    this.detail = fields.detail;
    this.errors = fields.errors ?? [];
    this.isRetryable = fields.retryable ?? true;
    this.requestId = fields.request_id ?? null;
    this.command = fields.command ?? null;
  }
  get isStoreAway() { return this.kind === "store-unavailable"; }
  get isAway() { return this.status === 0 || this.isStoreAway || this.kind === "draining"; }
}

const logoutListeners = new Set();
/** Called with every problem that asks for a login. */
export const onLogout = (listener) => logoutListeners.add(listener);

export const api = {
  url(path, query) {
    const url = new URL(path, BASE);
    for (const [name, value] of Object.entries(query ?? {})) {
      if (value !== undefined && value !== null && value !== "") url.searchParams.set(name, value);
    }
    return url;
  },
  get: (path, query, options) => send("GET", path, query, undefined, options),
  post: (path, body, query) => send("POST", path, query, body ?? {}),
  put: (path, body) => send("PUT", path, undefined, body),
  patch: (path, body) => send("PATCH", path, undefined, body),
  delete: (path) => send("DELETE", path),
};

async function send(method, path, query, body, options = {}) {
  const asked = { method, signal: options.signal, credentials: "same-origin", headers: { Accept: "application/json" } };
  if (body !== undefined) {
    asked.body = JSON.stringify(body);
    asked.headers["Content-Type"] = "application/json";
  }
  let answer, text;
  try {
    answer = await fetch(api.url(path, query), asked);
    text = await answer.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({ title: "The server does not answer", detail: "The server does not answer.", retryable: true });
  }
  const found = parsed(text);
  if (answer.ok) return found ?? null;
  const problem = new Problem({
    title: answer.statusText || `Status ${answer.status}`, ...(found && typeof found === "object" ? found : {}),
    status: answer.status, request_id: found?.request_id ?? answer.headers.get("X-Request-Id"),
  });
  if (answer.status === 401 && !(path === "session" && method === "POST")) logoutListeners.forEach((listener) => listener(problem));
  throw problem;
}

function parsed(text) {
  if (!text) return undefined;
  try { return JSON.parse(text); } catch { return undefined; }
}

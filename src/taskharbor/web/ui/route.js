/** Hash routes: `#/jobs?q=state:failed`. Everything that changes what is shown is in the address. */

import { given } from "./api.js";
import { useEffect, useState } from "./parts/html.js";

/** @typedef {{ name: string, path: string[], query: Record<string, string>, set: Function }} Route */

/** The address of a page: `href("jobs", [id], { q })`; empty values are left out. */
export function href(name, path = [], query = {}) {
  const parts = [name === "overview" ? "" : name, ...path.map(encodeURIComponent)].join("/");
  const asked = given(query);
  return `#/${parts}${asked.length ? `?${new URLSearchParams(asked)}` : ""}`;
}

/** @returns {Route} */
export function parse(hash) {
  const [place, search = ""] = hash.replace(/^#?\/?/, "").split(/\?(.*)/s);
  const [name, ...path] = place.split("/").filter(Boolean).map(decoded);
  return { name: name ?? "overview", path, query: Object.fromEntries(new URLSearchParams(search)) };
}

function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

export function go(address, { replace = false } = {}) {
  if (address === location.hash) return;
  if (replace) {
    history.replaceState(null, "", address);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else location.hash = address;
}

/** The route of the page; `route.set({ q: "…" })` changes a part of the query, null takes it away. */
export function useRoute() {
  const [hash, become] = useState(location.hash);
  useEffect(() => {
    const moved = () => { if (!location.hash || location.hash.startsWith("#/")) become(location.hash); };
    addEventListener("hashchange", moved);
    moved(); // the address may have changed since this was drawn
    return () => removeEventListener("hashchange", moved);
  }, []);
  const route = parse(hash);
  route.set = (changes, { replace = true } = {}) => {
    const now = parse(location.hash);
    go(href(now.name, now.path, { ...now.query, ...changes }), { replace });
  };
  return route;
}

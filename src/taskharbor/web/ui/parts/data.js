/** Asking the API from a component: old data stays visible under a new question, and the newest question wins. */

import { api } from "../api.js";
import { useEvents } from "../live.js";
import { useCallback, useEffect, useRef, useState } from "./html.js";

/** `{ answer, problem, isLoading, ask }` of a GET.
 *
 * @param {string | null} path null asks nothing
 * @param {object} query
 * @param {{ every?: number, on?: string }} options ask again every so many seconds; ask again on that event, at most every 2 s */
export function useAsk(path, query = {}, { every = 0, on = "" } = {}) {
  const [state, become] = useState({ answer: null, problem: null, isLoading: true });
  const asked = useRef(0), last = useRef(0), timer = useRef(null);
  const key = path === null ? null : api.url(path, query).href;
  const ask = useCallback(async () => {
    if (key === null) return;
    const number = asked.current += 1;
    last.current = performance.now();
    become((before) => ({ ...before, isLoading: true }));
    try {
      const data = await api.get(path, query);
      if (number === asked.current) become({ answer: data, problem: null, isLoading: false });
    } catch (problem) {
      if (number === asked.current) become((before) => ({ ...before, problem, isLoading: false }));
    }
  }, [key]);
  useEffect(() => { ask(); return () => { asked.current += 1; clearTimeout(timer.current); }; }, [key]);
  useEffect(() => {
    if (!every) return undefined;
    const repeat = setInterval(() => { if (!document.hidden) ask(); }, every * 1000);
    return () => clearInterval(repeat);
  }, [key, every]);
  useEvents(on || "nothing", () => {
    clearTimeout(timer.current);
    timer.current = setTimeout(ask, Math.max(2000 - (performance.now() - last.current), 0));
  });
  return { ...state, ask };
}

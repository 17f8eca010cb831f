/** What was just done, with Undo. One polite live region for the whole page: what the person did, and the loss of the stream.
 *
 *     say("Copied the id")                                       a note, for 5 s
 *     say("Queue reports is paused", { undo: () => … })          10 s, and the key u
 *     const t = say("Retrying 41 jobs", { undo, now, endsAt })   a ring runs down to `endsAt` (the server's time)
 *     t.change("Retried 41 jobs")                                another text in the same place; t.close()
 */

import { clock } from "../format.js";
import { useKeys } from "../keys.js";
import { live, useLive } from "../live.js";
import { html, useEffect, useReducer, useRef } from "./html.js";

const NOTE_MS = 5000;
const UNDO_MS = 10_000;
const MOST_TOASTS = 3;
let toasts = [], lastId = 0;
const toastListeners = new Set();
const changed = (next) => { toasts = next; toastListeners.forEach((listener) => listener()); };

export function say(text, { undo = null, now = null, endsAt = null } = {}) {
  const id = lastId += 1;
  const made = { id, text, undo, now, endsAt, holdMs: endsAt ? endsAt - clock.now() : 0, dueAt: due(undo, endsAt) };
  changed([...toasts.slice(1 - MOST_TOASTS), made]);
  return {
    change: (words, more = {}) => changed(toasts.some((one) => one.id === id)
      ? toasts.map((one) => (one.id === id ? { ...one, undo: null, now: null, endsAt: null, ...more, text: words, dueAt: due(more.undo, null) } : one))
      : [...toasts, { id, undo: null, now: null, endsAt: null, ...more, text: words, dueAt: due(more.undo, null) }]),
    close: () => changed(toasts.filter((one) => one.id !== id)),
  };
}

/** A held deed leaves by itself only when its hold is over and nothing has replaced its words. */
const due = (undo, endsAt) => (endsAt ? Infinity : performance.now() + (undo ? UNDO_MS : NOTE_MS));

/** What the page says went wrong with a deed: what happened, what was not done, the request id. */
export const sayProblem = (problem, notDone) =>
  say(`${notDone}: ${problem.message}${problem.requestId ? ` (request ${problem.requestId})` : ""}`);

export function Toasts() {
  const [, again] = useReducer((count) => count + 1, 0);
  const box = useRef(null);
  useLive("status");
  useEffect(() => { toastListeners.add(again); return () => toastListeners.delete(again); }, []);
  useEffect(() => {
    const timer = setInterval(() => {
      if (!toasts.length) return;
      // It stays while somebody points at it or has the focus in it.
      const isHeld = box.current?.matches(":hover, :focus-within");
      const kept = toasts.filter((one) => isHeld || one.dueAt > performance.now());
      if (kept.length !== toasts.length) changed(kept);
      else if (toasts.some((one) => one.endsAt)) again();
    }, 200);
    return () => clearInterval(timer);
  }, []);
  useKeys({ u: () => { const last = toasts.findLast((one) => one.undo); if (!last) return false; press(last, last.undo); return true; } });
  return html`<div class="toasts" role="status" aria-live="polite" ref=${box}>
    ${live.status === "lost" && html`<span class="sr">The live stream was lost</span>`}
    ${toasts.map((one) => html`<${Toast} key=${one.id} toast=${one}/>`)}</div>`;
}

function press(toast, action) {
  changed(toasts.filter((one) => one.id !== toast.id));
  action();
}

function Toast({ toast }) {
  const left = toast.endsAt ? Math.max((toast.endsAt - clock.now()) / 1000, 0) : 0;
  return html`<div class="toast">
    ${toast.endsAt && html`<${Ring} share=${toast.holdMs ? (left * 1000) / toast.holdMs : 0}/>`}
    <span>${toast.text}${toast.endsAt && html`<span aria-hidden="true"> in ${Math.ceil(left)} s</span>`}</span>
    ${(toast.undo || toast.now) && html`<span class="end row">
      ${toast.undo && html`<button class="btn" type="button" onClick=${() => press(toast, toast.undo)}>Undo</button>`}
      ${toast.now && html`<button class="btn" type="button" onClick=${() => toast.now()}>Now</button>`}</span>`}
  </div>`;
}

/** A ring that runs down. */
export const Ring = ({ share }) => html`
  <svg class="ring" width="20" height="20" viewBox="0 0 20 20" aria-hidden="true" fill="none" stroke="currentColor" stroke-width="2">
    <circle cx="10" cy="10" r="8" stroke-opacity=".25"/>
    <circle cx="10" cy="10" r="8" stroke-dasharray=${`${(50.3 * Math.min(Math.max(share, 0), 1)).toFixed(1)} 50.3`} transform="rotate(-90 10 10)"/></svg>`;

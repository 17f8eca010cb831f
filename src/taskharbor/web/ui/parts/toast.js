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
import { Button } from "./controls.js";
import { html, useEffect, useRef, useSet } from "./html.js";

const NOTE_MS = 5000;
const UNDO_MS = 10_000;
const MOST_TOASTS = 3;
let toasts = [], lastId = 0;
const toastListeners = new Set();
const changed = (next) => { toasts = next; toastListeners.forEach((listener) => listener()); };

export function say(text, more = {}) {
  const id = lastId += 1;
  const show = (words, { of, undo, now, endsAt } = {}) => {
    const made = { id, of, text: words, undo, now, endsAt, holdMs: endsAt - clock.now(), dueAt: endsAt ? Infinity : performance.now() + (undo ? UNDO_MS : NOTE_MS) };
    // In its place; a held deed leaves by itself only when something has replaced its words.
    changed(toasts.some((one) => one.id === id) ? toasts.map((one) => (one.id === id ? made : one)) : [...toasts.filter((one) => !of || one.of !== of).slice(1 - MOST_TOASTS), made]);
  };
  show(text, more);
  return { change: show, close: () => changed(toasts.filter((one) => one.id !== id)) };
}

/** What the page says went wrong with a deed: what happened, what was not done, the request id. */
export const sayProblem = (problem, notDone) =>
  say(`${notDone}: ${problem.message}${problem.requestId ? ` (request ${problem.requestId})` : ""}`);

/** Do it and answer true; or say what was not done, and why. */
export async function trying(notDone, act) {
  try { await act(); return true; } catch (problem) { sayProblem(problem, notDone); return false; }
}

export function Toasts() {
  const box = useRef(null);
  useLive("status");
  useSet(toastListeners);
  useEffect(() => {
    const timer = setInterval(() => {
      if (!toasts.length) return;
      // It stays while somebody points at it or has the focus in it.
      const isHeld = box.current?.matches(":hover, :focus-within");
      const kept = toasts.filter((one) => isHeld || one.dueAt > performance.now());
      if (kept.length !== toasts.length || toasts.some((one) => one.endsAt)) changed(kept);
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
    ${toast.endsAt && html`<${Ring} share=${(left * 1000) / toast.holdMs}/>`}
    <span>${toast.text}${toast.endsAt && html`<span aria-hidden="true"> in ${Math.ceil(left)} s</span>`}</span>
    ${(toast.undo || toast.now) && html`<span class="end row">
      ${toast.undo && html`<${Button} onClick=${() => press(toast, toast.undo)}>Undo<//>`}
      ${toast.now && html`<${Button} onClick=${() => toast.now()}>Now<//>`}</span>`}
  </div>`;
}

/** A ring that runs down. */
export const Ring = ({ share }) => html`
  <svg class="ring" width="20" height="20" viewBox="0 0 20 20" aria-hidden="true" fill="none" stroke="currentColor" stroke-width="2">
    <circle cx="10" cy="10" r="8" stroke-opacity=".25"/>
    <circle cx="10" cy="10" r="8" stroke-dasharray=${`${(50.3 * Math.min(Math.max(share, 0), 1)).toFixed(1)} 50.3`} transform="rotate(-90 10 10)"/></svg>`;

/** Keys: one table, shown by `?`. Not while typing; the switch turns off every key without a modifier (WCAG 2.1.4). */

import { useEffect, useRef } from "./parts/html.js";
import { prefs } from "./prefs.js";

/** [name, word, key after g]: the pages of the rail. */
export const PLACES = [
  ["overview", "Overview", "o"], ["jobs", "Jobs", "j"], ["failures", "Failures", "f"], ["queues", "Queues", "q"],
  ["workers", "Workers", "w"], ["schedules", "Schedules", "s"], ["system", "System", "y"],
];

/** [keys, what they do]; "g o" is one key after the other. */
export const KEY_LIST = [
  ["/", "search"], ["Ctrl K", "commands"], ["?", "this list"],
  ...PLACES.map(([, word, key]) => [`g ${key}`, word.toLowerCase()]), ["j k", "down, up"], ["x", "select"], ["Shift x", "select up to here"], ["Enter", "open"],
  ["Esc", "back, clear"], ["r", "retry"], ["c", "cancel"], ["e", "edit and retry"], ["y", "copy the id"], ["p", "pause live"],
  ["[ ]", "time window"], ["t", "theme"], ["u", "undo"],
];

const stack = []; // the newest map is asked first
const PREFIX_MS = 1200;
let prefix = "", prefixAt = 0, heldUntil = 0, heldKeys = [];

const isTyping = (target) =>
  target.isContentEditable || /^(TEXTAREA|SELECT)$/.test(target.tagName)
  || (target.tagName === "INPUT" && !/^(checkbox|radio|button)$/.test(target.type));

function keyName(event) {
  const key = event.key === "Escape" ? "Esc" : event.key;
  if ((event.ctrlKey || event.metaKey) && !event.altKey) return `Ctrl ${key.toUpperCase()}`;
  if (event.altKey) return "";
  return event.shiftKey && /^[A-Z]$/.test(key) ? `Shift ${key.toLowerCase()}` : key;
}

function pressed(event) {
  if (event.defaultPrevented || event.isComposing) return;
  const name = keyName(event);
  const hasModifier = name.startsWith("Ctrl ");
  if (!name || (!hasModifier && name !== "Esc" && (isTyping(event.target) || !prefs.get("keys")))) return;
  if (performance.now() < heldUntil && !hasModifier) { heldKeys.push(event.key); event.preventDefault(); return; }
  if (document.querySelector("dialog[open]") && !hasModifier) return; // a dialog has its own keys
  // Enter and Space on a button or link belong to it.
  if (name === "Enter" && event.target.closest("a, button, input, summary")) return;
  const full = prefix && performance.now() - prefixAt < PREFIX_MS ? `${prefix} ${name}` : name;
  prefix = "";
  if (full === "g") { prefix = "g"; prefixAt = performance.now(); return; }
  for (const map of [...stack].reverse()) {
    const action = map.current[full];
    if (action && action(event) !== false) { event.preventDefault(); return; }
  }
}

/** A field is on its way: for two seconds keys are kept for it, and do not act on the page. */
export function holdKeys() { heldKeys = []; heldUntil = performance.now() + 2000; }

/** The field is there: what was typed for it meanwhile is typed into it, key by key, as it draws itself. */
export async function giveKeys(field) {
  heldUntil = 0;
  field.focus();
  for (const key of heldKeys.splice(0)) {
    await null;
    if (!field.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true })) || key.length > 1) continue;
    field.value += key;
    field.dispatchEvent(new Event("input", { bubbles: true }));
  }
}

export const startKeys = () => document.addEventListener("keydown", pressed);

/** While the component is there, these keys do this: `useKeys({ r: retry, "Shift x": … })`. No action, or one that returns false, passes the key on. */
export function useKeys(map) {
  const newest = useRef(map);
  newest.current = map;
  useEffect(() => {
    stack.push(newest);
    return () => { stack.splice(stack.indexOf(newest), 1); };
  }, []);
}

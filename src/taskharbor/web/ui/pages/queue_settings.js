/** The settings of a queue, or of the wholeNumber harbor under `*`: each changes at once, and Undo sets it back. */

import { api } from "../api.js";
import { change } from "../deeds.js";
import { number, span } from "../format.js";
import { html, useLayoutEffect, useRef, useState } from "../parts/html.js";

/** What a field shows, how it is edited, and what the API is sent. A parser returns undefined for what it cannot read. */
export const SETTINGS = {
  max_running: {
    label: "Running at once", none: "no limit", hint: "How many of its jobs may run at the same time, over all workers.",
    show: (value) => number(value), text: (value) => String(value), parse: wholeNumber, placeholder: "20",
  },
  execute_rate: {
    label: "Starts", none: "no limit", hint: "How many may start in a span: 100 per 60 s, or 5 per 1 s.",
    show: rateText, text: rateText, parse: rateOf, placeholder: "100 per 60 s",
  },
  enqueue_rate: {
    label: "Enqueues", none: "no limit", hint: "How many may arrive in a span. More are refused, and the caller is asked to wait.",
    show: rateText, text: rateText, parse: rateOf, placeholder: "100 per 60 s",
  },
  fail_queue: {
    label: "Failure jobs go to", none: "no queue", hint: "The queue that gets a job for each one that failed for good.",
    show: (value) => value, text: (value) => value, parse: (text) => text, placeholder: "failures",
  },
};
const KEPT = { completed_s: "Completed", failed_s: "Failed", cancelled_s: "Cancelled" };
export const DEFAULT_KEPT = { completed_s: 3600, failed_s: 1_209_600, cancelled_s: 1_209_600 };

/** 100 per 60 s. */
export function rateText(value) {
  return value ? `${number(value.count)} per ${span(value.per_s, 2)}` : "";
}

export function rateOf(text) {
  const match = /^\s*([\d,. ]+?)\s*(?:per|\/|in)\s*(.*)$/i.exec(text);
  const per = match && seconds(match[2] || "1 s");
  const count = match && wholeNumber(match[1]);
  return count && per ? { count, per_s: per } : undefined;
}

export function wholeNumber(text) {
  const value = Number(text.replace(/[,_ ]/g, ""));
  return Number.isInteger(value) && value >= 1 ? value : undefined;
}

const SPAN_UNITS = { ms: 0.001, s: 1, sec: 1, second: 1, min: 60, m: 60, minute: 60, h: 3600, hour: 3600, d: 86400, day: 86400, w: 604800, week: 604800 };

/** Seconds of `90`, `60 s`, `2 h 30 min`, `14d`; undefined for what is no span. */
export function seconds(text) {
  const plain = text.trim().toLowerCase().replace(/[,_]/g, "");
  if (!plain) return undefined;
  if (/^\d+(\.\d+)?$/.test(plain)) return Number(plain);
  let total = 0;
  const rest = plain.replace(/(\d+(?:\.\d+)?)?\s*([a-z]+)/g, (_, value, unit) => {
    const size = SPAN_UNITS[unit] ?? SPAN_UNITS[unit.replace(/s$/, "")];
    total += size === undefined ? NaN : (value === undefined ? 1 : Number(value)) * size;
    return "";
  });
  return rest.trim() === "" && total >= 0 && Number.isFinite(total) ? total : undefined;
}

/** The card with all of them. Each change counts at once; its toast has Undo. */
export function QueueSettings({ queue, rules, mayChange, edit, onEdit, changed }) {
  const send = (values) => api.patch(`queues/${encodeURIComponent(queue)}`, values);
  const set = (name, words) => async (value) => {
    if (JSON.stringify(value) === JSON.stringify(rules[name] ?? null)) { onEdit(null); return; }
    const before = rules[name] ?? null;
    if (await change(`${queue === "*" ? "All queues" : queue}: ${words(value)}`, () => send({ [name]: value }), () => send({ [name]: before }), changed)) onEdit(null);
  };
  const kept = (value) => (value === null ? "finished jobs are kept as everywhere" : "finished jobs are kept as set");
  return html`<dl class="card settings">
    ${Object.entries(SETTINGS).map(([name, field]) => html`<${Setting} key=${name} name=${name} field=${field} value=${rules[name]} mayChange=${mayChange}
      isOpen=${edit === name} onEdit=${onEdit} set=${set(name, (value) => `${field.label.toLowerCase()} ${value === null ? field.none : field.show(value)}`)}/>`)}
    <${Kept} value=${rules.retention} mayChange=${mayChange} isOpen=${edit === "retention"} onEdit=${onEdit} set=${set("retention", kept)}/></dl>`;
}

function Setting({ name, field, value, mayChange, isOpen, onEdit, set }) {
  return html`<dt>${field.label}</dt><dd>${isOpen && mayChange
    ? html`<${Edit} field=${field} value=${value} onEdit=${onEdit} set=${set} />`
    : html`<span class=${value == null ? "dim" : ""}>${value == null ? field.none : field.show(value)}</span>
      ${mayChange && html`<button class="btn bare end" type="button" aria-label=${`Change: ${field.label}`} onClick=${() => onEdit(name)}>Change</button>`}`}</dd>`;
}

function Edit({ field, value, onEdit, set }) {
  const [text, setText] = useState(value == null ? "" : field.text(value));
  const [problem, setProblem] = useState("");
  const input = useRef(null);
  useLayoutEffect(() => { input.current.focus(); input.current.select(); }, []);
  const save = (event) => {
    event.preventDefault();
    const parsed = text.trim() === "" ? null : field.parse(text.trim());
    if (parsed === undefined) { setProblem(`Not understood. ${field.hint}`); input.current.focus(); return; }
    set(parsed);
  };
  return html`<form class="edit" onSubmit=${save} onKeyDown=${(event) => { if (event.key === "Escape") { event.stopPropagation(); onEdit(null); } }}>
    <input ref=${input} class="field" value=${text} placeholder=${field.placeholder} aria-label=${field.label} aria-invalid=${problem !== ""} aria-describedby="setting-hint" onInput=${(event) => setText(event.target.value)} />
    <button class="btn main" type="submit">Save</button><button class="btn bare" type="button" onClick=${() => onEdit(null)}>Cancel</button>
    <p id="setting-hint" class=${`small ${problem ? "wrong" : "dim"}`} role=${problem ? "alert" : undefined}>${problem || `${field.hint} Empty: ${field.none}.`}</p></form>`;
}

function Kept({ value, mayChange, isOpen, onEdit, set }) {
  const text = value ? Object.entries(KEPT).map(([name, label]) => `${label.toLowerCase()} ${keptText(value[name])}`).join(", ") : "as everywhere";
  return html`<dt>Finished jobs are kept</dt><dd>${isOpen && mayChange ? html`<${EditKept} value=${value || DEFAULT_KEPT} isOwn=${Boolean(value)} onEdit=${onEdit} set=${set} />`
    : html`<span class=${value ? "" : "dim"}>${text}</span>${mayChange && html`<button class="btn bare end" type="button" aria-label="Change: how long finished jobs are kept" onClick=${() => onEdit("retention")}>Change</button>`}`}</dd>`;
}

const keptText = (value) => (value === null ? "for ever" : value === 0 ? "not at all" : span(value, 2));

function EditKept({ value, isOwn, onEdit, set }) {
  const [texts, setTexts] = useState(Object.fromEntries(Object.keys(KEPT).map((name) => [name, value[name] === null ? "" : value[name] === 0 ? "0" : span(value[name], 2)])));
  const [problem, setProblem] = useState("");
  const save = (event) => {
    event.preventDefault();
    const parsed = Object.fromEntries(Object.entries(texts).map(([name, text]) => [name, text.trim() === "" ? null : seconds(text)]));
    const wrong = Object.keys(parsed).find((name) => parsed[name] === undefined);
    if (wrong) { setProblem(`${KEPT[wrong]}: not understood. Write 1 h, 14 d or 0; empty keeps them for ever.`); return; }
    set(parsed);
  };
  return html`<form class="edit" onSubmit=${save} onKeyDown=${(event) => { if (event.key === "Escape") { event.stopPropagation(); onEdit(null); } }}>
    ${Object.entries(KEPT).map(([name, label]) => html`<label key=${name}>${label}<br /><input class="field" value=${texts[name]} placeholder="for ever" onInput=${(event) => setTexts({ ...texts, [name]: event.target.value })} /></label>`)}
    <div class="acts"><button class="btn main" type="submit">Save</button>${isOwn && html`<button class="btn" type="button" onClick=${() => set(null)}>As everywhere</button>`}
    <button class="btn bare" type="button" onClick=${() => onEdit(null)}>Cancel</button></div>
    <p class=${`small ${problem ? "wrong" : "dim"}`} role=${problem ? "alert" : undefined}>${problem || "1 h, 14 d, 0 for not at all; empty keeps them for ever."}</p></form>`;
}

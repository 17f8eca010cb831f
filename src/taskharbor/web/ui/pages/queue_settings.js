/** The settings of a queue, or of the whole harbor under `*`: each changes at once, and Undo sets it back. */

import { api } from "../api.js";
import { change } from "../deeds.js";
import { number, span } from "../format.js";
import { Button, typed } from "../parts/controls.js";
import { html, useLayoutEffect, useRef, useState } from "../parts/html.js";

/** What a field is called, what it shows and is edited as, what the API is sent, and what none of it means. A parser returns undefined for what it cannot read. */
const RATE = { show: rateText, parse: rateOf, none: "no limit", placeholder: "100 per 60 s" };
const SETTINGS = {
  max_running: { label: "Running at once", none: "no limit", hint: "How many of its jobs may run at the same time, over all workers.", show: number, parse: wholeNumber, placeholder: "20" },
  execute_rate: { ...RATE, label: "Starts", hint: "How many may start in a span: 100 per 60 s, or 5 per 1 s." },
  enqueue_rate: { ...RATE, label: "Enqueues", hint: "How many may arrive in a span. More are refused, and the caller is asked to wait." },
  fail_queue: { label: "Failure jobs go to", none: "no queue", hint: "The queue that gets a job for each one that failed for good.", show: String, parse: String, placeholder: "failures" },
};
const KEPT = { completed_s: "Completed", failed_s: "Failed", cancelled_s: "Cancelled" };
const USUALLY_KEPT = { completed_s: 3600, failed_s: 1_209_600, cancelled_s: 1_209_600 };

/** 100 per 60 s. */
export function rateText(value) {
  return `${number(value.count)} per ${span(value.per_s, 2)}`;
}

export function rateOf(text) {
  const [, some, spanText] = /^\s*([\d,. ]+?)\s*(?:per|\/|in)\s*(.*)$/i.exec(text) ?? [];
  const count = some && wholeNumber(some), per = some && seconds(spanText || "1 s");
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
  if (/^\d+(\.\d+)?$/.test(plain)) return Number(plain);
  let total = 0;
  const rest = plain.replace(/(\d+(?:\.\d+)?)?\s*([a-z]+)/g, (_, value = 1, unit) => {
    total += value * (SPAN_UNITS[unit] ?? SPAN_UNITS[unit.replace(/s$/, "")]);
    return "";
  });
  return plain && !rest.trim() && total >= 0 && Number.isFinite(total) ? total : undefined;
}

/** The card with all of them. Each change counts at once; its toast has Undo. Which one is edited is in the address. */
export function QueueSettings({ queue, rules, mayChange, route, changed }) {
  const send = (values) => api.patch(["queues", queue], values);
  const edit = (name) => route.set({ edit: name });
  const set = (name, words) => async (value) => {
    const before = rules[name] ?? null;
    if (JSON.stringify(value) === JSON.stringify(before)
      || await change(`${queue === "*" ? "All queues" : queue}: ${words(value)}`, () => send({ [name]: value }), () => send({ [name]: before }), changed)) edit(null);
  };
  const row = (name, label, what, text, Editor, words, more) => html`<dt>${label}</dt><dd>${route.query.edit === name && mayChange
    ? html`<${Editor} ...${more} value=${rules[name]} onEdit=${edit} set=${set(name, words)}/>`
    : html`<span class=${rules[name] == null ? "dim" : ""}>${text}</span>${mayChange && html`<${Button} look="bare end" aria-label=${`Change: ${what}`} onClick=${() => edit(name)}>Change<//>`}`}</dd>`;
  const kept = rules.retention && Object.entries(KEPT).map(([name, word]) => `${word.toLowerCase()} ${keptText(rules.retention[name])}`).join(", ");
  return html`<dl class="card settings">
    ${Object.entries(SETTINGS).map(([name, field]) => {
      const text = (value) => (value == null ? field.none : field.show(value));
      return row(name, field.label, field.label, text(rules[name]), EditOne, (value) => `${field.label.toLowerCase()} ${text(value)}`, { field });
    })}
    ${row("retention", "Finished jobs are kept", "how long finished jobs are kept", kept ?? "as everywhere", EditKept, (value) => `finished jobs are kept as ${value === null ? "everywhere" : "set"}`)}</dl>`;
}

/** A form in a row. `parse` makes what is set of what was typed, or throws a text: what is wrong. */
function Editor({ hint, parse, onEdit, set, more, children }) {
  const [problem, fail] = useState("");
  const box = useRef(null);
  useLayoutEffect(() => box.current.querySelector("input").select(), []);
  const save = (event) => {
    event.preventDefault();
    try { set(parse()); } catch (text) { fail(text); box.current.querySelector("input").focus(); }
  };
  return html`<form class="edit" ref=${box} onSubmit=${save} onKeyDown=${(event) => { if (event.key === "Escape") { event.stopPropagation(); onEdit(null); } }}>
    ${children}<div class="acts"><button class="btn main" type="submit">Save</button>${more}<${Button} look="bare" onClick=${() => onEdit(null)}>Cancel<//></div>
    <p id="setting-hint" class=${`small ${problem ? "wrong" : "dim"}`} role=${problem ? "alert" : undefined}>${problem || hint}</p></form>`;
}

function EditOne({ field, value, ...rest }) {
  const [text, write] = useState(value == null ? "" : field.show(value));
  const parse = () => {
    const parsed = text.trim() ? field.parse(text.trim()) : null;
    if (parsed === undefined) throw `Not understood. ${field.hint}`;
    return parsed;
  };
  return html`<${Editor} ...${rest} parse=${parse} hint=${`${field.hint} Empty: ${field.none}.`}>
    <input class="field" value=${text} placeholder=${field.placeholder} aria-label=${field.label} aria-describedby="setting-hint" onInput=${typed(write)}/><//>`;
}

const keptText = (value) => (value === null ? "for ever" : value === 0 ? "not at all" : span(value, 2));

function EditKept({ value, ...rest }) {
  const [texts, write] = useState(Object.fromEntries(Object.entries(value ?? USUALLY_KEPT).map(([name, kept]) => [name, kept === null ? "" : kept === 0 ? "0" : span(kept, 2)])));
  const parse = () => Object.fromEntries(Object.entries(KEPT).map(([name, word]) => {
    const parsed = texts[name].trim() ? seconds(texts[name]) : null;
    if (parsed === undefined) throw `${word}: not understood. Write 1 h, 14 d or 0; empty keeps them for ever.`;
    return [name, parsed];
  }));
  return html`<${Editor} ...${rest} parse=${parse} hint="1 h, 14 d, 0 for not at all; empty keeps them for ever." more=${value && html`<${Button} onClick=${() => rest.set(null)}>As everywhere<//>`}>
    ${Object.entries(KEPT).map(([name, word]) => html`<label>${word}<br/><input class="field" value=${texts[name]} placeholder="for ever" onInput=${typed((text) => write({ ...texts, [name]: text }))}/></label>`)}<//>`;
}

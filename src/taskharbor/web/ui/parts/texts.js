/** Long texts of a job: traceback, arguments, code to copy. Everything is text, never markup. */

import { bytes, capital } from "../format.js";
import { Button } from "./controls.js";
import { CopyButton } from "./copy.js";
import { html, useState } from "./html.js";

const LIBRARY = /site-packages|dist-packages|[\\/]lib[\\/]python3|<frozen/;
const FRAME = /^\s+File "/;
const MOST_SHOWN = 4;

/** Parts of a traceback: { text, kind: "own" | "library" | "plain" | "error" }. */
export function framesOf(trace) {
  const lines = trace.trimEnd().split("\n"), parts = [];
  lines.forEach((line, index) => {
    const last = parts.at(-1);
    if (FRAME.test(line)) parts.push({ kind: LIBRARY.test(line) ? "library" : "own", lines: [line] });
    else if (/^\s/.test(line) && last && last.kind !== "plain") last.lines.push(line);
    else parts.push({ kind: index === lines.length - 1 ? "error" : "plain", lines: [line] });
  });
  return parts;
}

/** Library frames in a row of more than four are one line, until all are asked for. */
function folded(parts, isAll) {
  const found = [];
  for (const part of parts) {
    if (part.kind === "library" && found.at(-1)?.[0].kind === "library") found.at(-1).push(part); else found.push([part]);
  }
  return found.flatMap((all) => (!isAll && all.length > MOST_SHOWN ? [{ kind: "plain", lines: [`  … ${all.length} frames of libraries`] }] : all));
}

const TraceFrame = ({ kind, lines }) => {
  const text = lines.join("\n");
  if (kind === "error") return html`<em>${text}</em>`;
  const [, before, name, after] = (kind === "own" && /^(.*?, in )([^\n]*)(.*)$/s.exec(text)) || [0, text];
  return html`<span class=${kind === "own" ? "mine" : ""}>${before}<b>${name}</b>${after}${"\n"}</span>`;
};

/** A traceback alone: own frames stand out, many of libraries in a row are one line. */
export const Trace = ({ text, label, isAll }) => html`<pre class="trace" role="region" tabindex="0" aria-label=${label}>${folded(framesOf(text), isAll).map((part) => html`<${TraceFrame} ...${part}/>`)}</pre>`;

/** @param {{ attempts: any[] }} props those with an error */
export function ErrorCard({ attempts }) {
  const [number, choose] = useState(null);
  const [isAll, all] = useState(false);
  const shown = attempts.find((one) => one.number === number) ?? attempts.at(-1), parts = framesOf(shown.error);
  return html`<section><div class="card"><div class="sub"><h2>Error</h2>
    ${attempts.length > 1 && html`<nav class="seg" aria-label="Attempt">${attempts.map((one) => html`<button type="button"
      aria-current=${one === shown ? "true" : undefined} onClick=${() => choose(one.number)}>${one.number}</button>`)}</nav>`}
    <span class="end"></span>
    ${folded(parts).length < parts.length && html`<${Button} look="bare" wide aria-pressed=${isAll} onClick=${() => all(!isAll)}>${isAll ? "Fewer" : "All"} frames<//>`}
    <${CopyButton} what="the traceback" text=${() => shown.error}/></div>
    <${Trace} text=${shown.error} label=${`Traceback of attempt ${shown.number}`} isAll=${isAll}/></div></section>`;
}

/** A value as coloured JSON; hidden values are marked. */
function Json({ value, pad = "\n" }) {
  if (value === "***") return html`<span class="x">hidden</span>`;
  if (value === null || typeof value !== "object") return html`<span class=${{ number: "n", string: "s" }[typeof value] ?? "k"}>${JSON.stringify(value)}</span>`;
  const isList = Array.isArray(value), entries = Object.entries(value), [open, close] = isList ? "[]" : "{}";
  if (!entries.length) return html`<span class="k">${open}${close}</span>`;
  return html`<span class="k">${open}</span>${entries.map(([name, inner], index) => html`${index > 0 && ","}${pad}${"  "}${!isList && html`<span class="k">${JSON.stringify(name)}: </span>`}<${Json} value=${inner} pad=${`${pad}  `}/>`)}${pad}<span class="k">${close}</span>`;
}

/** @param {{ heading: string, what: string, value?: any, base64?: string }} props */
export function ValueCard({ heading, what, value = null, base64 }) {
  const text = base64 ?? JSON.stringify(value);
  return html`<div class="card"><div class="sub"><h2>${heading}</h2><span class="dim">${bytes(new Blob([text]).size)}</span>
    <span class="end"></span><${CopyButton} what=${what} text=${() => base64 ?? JSON.stringify(value, null, 2)}/></div>
    <pre class="json" role="region" tabindex="0" aria-label=${heading}>${base64 === undefined ? html`<${Json} value=${value}/>` : html`<span class="k">${text.slice(0, 2000)}${text.length > 2000 && "…"}</span>`}</pre></div>`;
}

// ---------------------------------------------------------------- copy as

const python = (value) => {
  if (value == null || typeof value === "boolean") return capital(String(value ?? "none"));
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([name, inner]) => `${JSON.stringify(name)}: ${python(inner)}`).join(", ")}}`;
  return JSON.stringify(value);
};
const shell = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const NAME = /^[A-Za-z_]\w*$/;

/** The call that makes the same job again. */
export function asPython(job) {
  const { payload } = job, entries = payload && typeof payload === "object" ? Object.entries(payload) : [];
  const given = Array.isArray(payload) ? payload.map(python) : entries.every(([name]) => NAME.test(name)) ? entries.map(([name, value]) => `${name}=${python(value)}`) : [];
  return `${job.type.split(".").at(-1)}.enqueue(${given.join(", ")})`;
}
export const asCli = (job) => `taskharbor enqueue ${job.type} -q ${job.queue} --payload ${shell(JSON.stringify(job.payload ?? null))}`;
export const queryAsCli = (q) => `taskharbor jobs list ${shell(q)}`;
export const queryAsCurl = (url) => `curl ${shell(url)}`;
export const asCurl = (job, url) => `curl ${shell(url)} -H 'Content-Type: application/json' \\\n  -d ${shell(JSON.stringify({ type: job.type, queue: job.queue, payload: job.payload ?? null }))}`;

/** Long texts of a job: traceback, arguments, code to copy. Everything is text, never markup. */

import { html, useState } from "./html.js";
import { CopyButton } from "./controls.js";

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
  if (isAll) return parts;
  const found = [];
  for (const part of parts) {
    if (part.kind === "library" && found.at(-1)?.kind === "library") found.at(-1).all.push(part);
    else found.push({ ...part, all: [part] });
  }
  return found.flatMap((part) => (part.kind === "library" && part.all.length > MOST_SHOWN ? [{ kind: "plain", lines: [`  … ${part.all.length} frames of libraries`] }] : part.all));
}

const TraceFrame = ({ part }) => {
  const text = `${part.lines.join("\n")}\n`;
  if (part.kind === "error") return html`<em>${part.lines.join("\n")}</em>`;
  if (part.kind !== "own") return html`<span>${text}</span>`;
  const [, before, name, after] = /^(.*?, in )([^\n]*)(.*)$/s.exec(text) ?? [null, text, "", ""];
  return html`<span class="mine">${before}<b>${name}</b>${after}</span>`;
};

/** A traceback alone: own frames stand out, many of libraries in a row are one line. */
export const Trace = ({ text, label = "Traceback", isAll = false }) => html`<pre class="trace" role="region" tabindex="0" aria-label=${label}>
  ${folded(framesOf(text), isAll).map((part, index) => html`<${TraceFrame} key=${index} part=${part}/>`)}</pre>`;

/** @param {{ attempts: any[] }} props those with an error */
export function ErrorCard({ attempts }) {
  const [number, choose] = useState(null);
  const [isAll, all] = useState(false);
  const shown = attempts.find((one) => one.number === number) ?? attempts.at(-1);
  const parts = framesOf(shown.error), short = folded(parts, false);
  return html`<section><div class="card"><div class="sub"><h2>Error</h2>
    ${attempts.length > 1 && html`<nav class="seg" aria-label="Attempt">${attempts.map((one) => html`<button key=${one.number} type="button"
      aria-current=${one.number === shown.number ? "true" : undefined} onClick=${() => choose(one.number)}>${one.number}</button>`)}</nav>`}
    <span class="end"></span>
    ${short.length < parts.length && html`<button class="btn bare wide" type="button" aria-pressed=${isAll} onClick=${() => all(!isAll)}>${isAll ? "Fewer frames" : "All frames"}</button>`}
    <${CopyButton} what="the traceback" text=${() => shown.error}/></div>
    <${Trace} text=${shown.error} label=${`Traceback of attempt ${shown.number}`} isAll=${isAll}/></div></section>`;
}

/** A value as coloured JSON; hidden values are marked. */
export function Json({ value, depth = 0 }) {
  if (value === "***") return html`<span class="x">hidden</span>`;
  if (value === null || typeof value === "boolean") return html`<span class="k">${String(value)}</span>`;
  if (typeof value === "number") return html`<span class="n">${value}</span>`;
  if (typeof value === "string") return html`<span class="s">${JSON.stringify(value)}</span>`;
  const isList = Array.isArray(value), entries = Object.entries(value), pad = "  ".repeat(depth + 1);
  const [open, close] = isList ? ["[", "]"] : ["{", "}"];
  if (entries.length === 0) return html`<span class="k">${open}${close}</span>`;
  return html`<span class="k">${open}</span>${"\n"}${entries.map(([name, inner], index) => html`<span key=${name}>${pad}${!isList && html`<span class="k">${JSON.stringify(name)}: </span>`}<${Json} value=${inner} depth=${depth + 1}/>${index < entries.length - 1 ? "," : ""}${"\n"}</span>`)}${"  ".repeat(depth)}<span class="k">${close}</span>`;
}

const size = (value) => new Blob([typeof value === "string" ? value : JSON.stringify(value)]).size;

/** @param {{ title: string, what: string, value: any, base64?: string, sizeText: (bytes: number) => string }} props */
export const ValueCard = ({ title, what, value, base64, sizeText }) => html`<div class="card"><div class="sub"><h2>${title}</h2><span class="dim">${sizeText(size(base64 ?? value))}</span>
  <span class="end"></span><${CopyButton} what=${what} text=${() => base64 ?? JSON.stringify(value, null, 2)}/></div>
  <pre class="json" role="region" tabindex="0" aria-label=${title}>${base64 === undefined ? html`<${Json} value=${value}/>` : html`<span class="k">${base64.slice(0, 2000)}${base64.length > 2000 ? "…" : ""}</span>`}</pre></div>`;

// ---------------------------------------------------------------- copy as

const python = (value) => {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([name, inner]) => `${JSON.stringify(name)}: ${python(inner)}`).join(", ")}}`;
  return JSON.stringify(value);
};
const shell = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const NAME = /^[A-Za-z_]\w*$/;

/** The call that makes the same job again. */
export function asPython(job) {
  const { payload } = job, name = job.type.split(".").at(-1);
  const isPlain = payload && typeof payload === "object" && !Array.isArray(payload) && Object.keys(payload).every((key) => NAME.test(key));
  const given = isPlain ? Object.entries(payload).map(([key, value]) => `${key}=${python(value)}`).join(", ") : Array.isArray(payload) ? payload.map(python).join(", ") : "";
  return `${name}.enqueue(${given})`;
}
export const asCli = (job) => `taskharbor enqueue ${job.type} -q ${job.queue} --payload ${shell(JSON.stringify(job.payload ?? null))}`;
export const queryAsCli = (q) => `taskharbor jobs list ${shell(q)}`;
export const queryAsCurl = (url) => `curl ${shell(url)}`;
export const asCurl = (job, url) => `curl ${shell(url)} -H 'Content-Type: application/json' \\\n  -d ${shell(JSON.stringify({ type: job.type, queue: job.queue, payload: job.payload ?? null }))}`;

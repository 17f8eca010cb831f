/** The life of a job to scale: when it waited, ran, failed, fell silent. */

import { capital, clock, exact, measured, span, time } from "../format.js";
import { html } from "./html.js";
import { outcomeOf, State } from "./state.js";

const WIDTH = 790;
const CLASSES = { completed: "b-ok", failed: "b-bad", retried: "b-bad", stalled: "b-dash", cancelled: "b-none", released: "b-none", superseded: "b-none" };

/** Every attempt, oldest first, with its number; a first-try success and the running attempt are not in the history. */
export function attemptsOf(job) {
  const first = Math.max(job.starts - job.history.length, 0) + (job.state === "running" ? 0 : 1);
  const known = job.history.map((attempt, index) => ({ ...attempt, number: first + index }));
  if (job.state === "running") {
    known.push({ number: job.starts, worker_id: job.worker_id, started_at: job.started_at, ended_at: null, outcome: "running", fence: job.fence, error: null });
  } else if (!known.length && job.started_at && job.finished_at) {
    known.push({ number: job.starts, worker_id: job.worker_id, started_at: job.started_at, ended_at: job.finished_at, outcome: job.state === "completed" ? "completed" : job.state, fence: job.fence, error: job.last_error });
  }
  return known;
}

const endOf = (job) => job.finished_at ?? (job.state === "scheduled" ? job.run_at : null) ?? new Date(clock.now()).toISOString();

export function Life({ job, attempts }) {
  const begin = Date.parse(job.created_at), end = Math.max(Date.parse(endOf(job)), begin + 1);
  const x = (at) => ((Math.min(Math.max(Date.parse(at), begin), end) - begin) / (end - begin)) * WIDTH;
  const total = (end - begin) / 1000;
  const words = `${attempts.length} ${attempts.length === 1 ? "attempt" : "attempts"} in ${span(total, 2)}: ${attempts.map((one) => `${one.outcome} after ${measured(lasted(one))}`).join(", ")}`;
  return html`<section><div class="cap"><h2>Life</h2><span class="dim">${span(total, 2)}, to scale</span></div><div class="card">
    <div class="pad wide"><svg class="plot life" width="100%" viewBox=${`0 0 ${WIDTH} 104`} role="img" aria-label=${words}>
      <line x1="0" x2=${WIDTH} y1="46" y2="46" class="grid" stroke-width="2"/>
      ${attempts.map((one, index) => html`<${Box} key=${one.number} attempt=${one} x=${x} next=${attempts[index + 1] ? x(attempts[index + 1].started_at) : WIDTH}/>`)}
      <text x="0" y="82" class="flag">${time(job.created_at, "ms")}</text><text x="0" y="97">enqueued${attempts[0] ? `, waited ${span((Date.parse(attempts[0].started_at) - begin) / 1000)}` : ""}</text>
      <text x=${WIDTH} y="82" text-anchor="end" class="flag">${time(endOf(job), "ms")}</text><text x=${WIDTH} y="97" text-anchor="end">${job.finished_at ? job.state : job.state === "scheduled" ? "runs next" : "now"}</text></svg></div>
    ${attempts.length > 0 && html`<${Attempts} attempts=${attempts}/>`}</div></section>`;
}

const lasted = (attempt) => ((attempt.ended_at ? Date.parse(attempt.ended_at) : clock.now()) - Date.parse(attempt.started_at)) / 1000;

function Box({ attempt, x, next }) {
  const from = x(attempt.started_at), wide = Math.max(x(attempt.ended_at ?? new Date(clock.now()).toISOString()) - from, 3);
  const isBad = ["failed", "retried"].includes(attempt.outcome);
  const text = attempt.outcome === "stalled" ? "silent, lease ran out" : measured(lasted(attempt));
  return html`<g>${next - from > 16 && html`<text x=${from} y="24" class="flag">${attempt.number}</text>`}
    ${next - from > 60 && html`<text x=${from + 8 + String(attempt.number).length * 7} y="24">${cut(attempt.worker_id ?? "", (next - from - 24) / 6.2)}</text>`}
    <rect x=${from} y="34.6" width=${wide} height="23" rx=${Math.min(5, wide / 2)} class=${CLASSES[attempt.outcome] ?? "b-run"}/>
    ${isBad && wide > 8 && html`<rect x=${from + wide - 4} y="34.6" width="4" height="23" rx="2" class="f-bad"/>`}
    ${wide > text.length * 6 + 16 && html`<text x=${from + 10} y="50">${text}</text>`}</g>`;
}

const cut = (text, length) => (text.length > length ? `${text.slice(0, Math.max(Math.floor(length) - 1, 0))}…` : text);

function Attempts({ attempts }) {
  return html`<table><thead class="wide"><tr><th class="num">#</th><th>Outcome</th><th>Error</th><th>Worker</th><th class="num">Ran</th><th class="num">Ended</th><th class="num">Fence</th></tr></thead>
    <tbody>${[...attempts].reverse().map((one) => {
      const [shape, word, tone] = one.outcome === "running" ? ["running", "running", "running"] : outcomeOf(one.outcome);
      return html`<tr key=${one.number}><td class="num w30">${one.number}</td><td><${State} name=${shape} word=${word} tone=${tone}/></td>
        <td class="soft hide">${errorName(one)}</td><td class="soft hide">${one.worker_id}</td><td class="num nowrap">${measured(lasted(one))}</td>
        <td class="num hide soft">${time(one.ended_at)}</td><td class="num hide"><code class="dim">${exact(one.fence)}</code></td></tr>`;
    })}</tbody></table>`;
}

/** The class of the error: the last line of a traceback up to the colon. */
function errorName(attempt) {
  if (attempt.outcome === "stalled") return "Worker fell silent";
  const last = (attempt.error ?? "").trimEnd().split("\n").at(-1);
  return capital(last.split(":")[0].slice(0, 60));
}

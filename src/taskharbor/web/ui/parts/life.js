/** The life of a job to scale: when it waited, ran, failed, fell silent. */

import { capital, clock, exact, measured, NONE, plural, short, span, time } from "../format.js";
import { html } from "./html.js";
import { Cells, Heads, Section } from "./page.js";
import { State } from "./state.js";

const WIDTH = 790;
/** What became of an attempt: [shape, word, tone, class of its box]. */
const OUTCOMES = {
  completed: ["completed", "completed", "completed", "b-ok"], failed: ["failed", "failed", "failed", "b-bad"], retried: ["retrying", "retried", "retrying", "b-bad"], running: ["running", "running", "running", "b-run"],
  stalled: ["lost", "lease lost", "retrying", "b-dash"], cancelled: ["cancelled", "cancelled", "cancelled", "b-none"], released: ["ready", "released", "ready", "b-none"],
};
const outcomeOf = ({ outcome }) => OUTCOMES[outcome] ?? ["ready", outcome.replaceAll("_", " "), "ready", "b-none"];

/** Every attempt, oldest first, with its number; a first-try success and the running attempt are not in the history. */
export function attemptsOf(job) {
  const { starts, history, state, worker_id, started_at, finished_at: ended_at, fence, last_error: error } = job, isRunning = state === "running";
  const first = Math.max(starts - history.length, 0) + !isRunning;
  const known = history.map((attempt, index) => ({ ...attempt, number: first + index }));
  if (isRunning || (!known.length && started_at && ended_at)) known.push({ number: starts, worker_id, started_at, ended_at, outcome: state, fence, error: isRunning ? null : error });
  return known;
}

const iso = () => new Date(clock.now()).toISOString();
const lasted = (attempt) => (Date.parse(attempt.ended_at ?? iso()) - Date.parse(attempt.started_at)) / 1000;

export function Life({ job, attempts }) {
  const isNext = job.state === "scheduled", last = job.finished_at ?? (isNext ? job.run_at : iso());
  const begin = Date.parse(job.created_at), end = Math.max(Date.parse(last), begin + 1), total = span((end - begin) / 1000, 2);
  const x = (at) => ((Math.min(Math.max(Date.parse(at), begin), end) - begin) / (end - begin)) * WIDTH;
  return html`<${Section} heading="Life" note=${`${total}, to scale`}><div class="card">
    <div class="pad wide"><svg class="plot life" width="100%" viewBox=${`0 0 ${WIDTH} 104`} role="img"
      aria-label=${`${plural(attempts.length, "attempt")} in ${total}: ${attempts.map((one) => `${one.outcome} after ${measured(lasted(one))}`).join(", ")}`}>
      <line x1="0" x2=${WIDTH} y1="46" y2="46" class="grid" stroke-width="2"/>
      ${attempts.map((one, index) => html`<${Box} attempt=${one} x=${x} next=${attempts[index + 1] ? x(attempts[index + 1].started_at) : WIDTH}/>`)}
      <text x="0" y="82" class="flag">${time(job.created_at, "ms")}</text><text x="0" y="97">enqueued${attempts[0] && `, waited ${span((Date.parse(attempts[0].started_at) - begin) / 1000)}`}</text>
      <text x=${WIDTH} y="82" text-anchor="end" class="flag">${time(last, "ms")}</text><text x=${WIDTH} y="97" text-anchor="end">${job.finished_at ? job.state : isNext ? "runs next" : "now"}</text></svg></div>
    ${attempts.length > 0 && html`<table><thead class="wide"><tr><${Heads} columns=${ATTEMPTS}/></tr></thead><tbody>${[...attempts].reverse().map((one) => html`<tr key=${one.number}><${Cells} columns=${ATTEMPTS} row=${one}/></tr>`)}</tbody></table>`}</div><//>`;
}

function Box({ attempt, x, next }) {
  const from = x(attempt.started_at), wide = Math.max(x(attempt.ended_at ?? iso()) - from, 3), room = next - from;
  const text = attempt.outcome === "stalled" ? "silent, lease ran out" : measured(lasted(attempt)), look = outcomeOf(attempt)[3];
  return html`${room > 16 && html`<text x=${from} y="24" class="flag">${attempt.number}</text>`}
    ${room > 60 && html`<text x=${from + 8 + String(attempt.number).length * 7} y="24">${short(attempt.worker_id ?? "", Math.floor((room - 24) / 6.2))}</text>`}
    <rect x=${from} y="34.6" width=${wide} height="23" rx=${Math.min(5, wide / 2)} class=${look}/>
    ${look === "b-bad" && wide > 8 && html`<rect x=${from + wide - 4} y="34.6" width="4" height="23" rx="2" class="f-bad"/>`}
    ${wide > text.length * 6 + 16 && html`<text x=${from + 10} y="50">${text}</text>`}`;
}

const ATTEMPTS = [
  ["#", "num w30", (one) => one.number], ["Outcome", "", (one) => { const [shape, word, tone] = outcomeOf(one); return html`<${State} glyph=${shape} word=${word} tone=${tone}/>`; }],
  ["Error", "soft hide", errorName], ["Worker", "soft hide", (one) => one.worker_id ?? NONE], ["Ran", "num nowrap", (one) => measured(lasted(one))],
  ["Ended", "num hide soft", (one) => time(one.ended_at)], ["Fence", "num hide", (one) => html`<code class="dim">${exact(one.fence)}</code>`],
];

/** The class of the error: the last line of a traceback up to the colon. */
function errorName({ outcome, error }) {
  return outcome === "stalled" ? "Worker fell silent" : capital((error ?? "").trimEnd().split("\n").at(-1).split(":")[0].slice(0, 60));
}

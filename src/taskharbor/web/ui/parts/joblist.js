/** Jobs as rows. A row renders again only when its record is another one; its times tick by themselves. */

import { ago, NONE, percent, secondsSince, span, measured, instant, shortId } from "../format.js";
import { live, useTick } from "../live.js";
import { href } from "../route.js";
import { Bar } from "./charts.js";
import { Tick } from "./controls.js";
import { html, memo } from "./html.js";
import { Cells, Heads } from "./page.js";
import { State, stateOf } from "./state.js";

const between = (from, to) => (from && to ? Math.max((Date.parse(to) - Date.parse(from)) / 1000, 0) : null);

/** Since when it could run. */
export const dueAt = (job) => [job.created_at, job.run_at ?? ""].sort()[1];

function waited(job) {
  if (job.started_at) return between(dueAt(job), job.started_at);
  return ["ready", "blocked"].includes(job.state) ? secondsSince(dueAt(job)) : null;
}

export const ran = (job) => (job.state === "running" ? secondsSince(job.started_at) : between(job.started_at, job.finished_at));

/** When it ended, will run or why it waits: as short as fits a cell. */
export function whenText(job) {
  const queue = live.board?.queues.find((one) => one.name === job.queue);
  if (job.finished_at) return ago(job.finished_at);
  if (job.cancel_requested) return "stopping";
  if (job.state === "running") return `for ${span(ran(job))}`;
  if (job.state === "scheduled") return ago(job.run_at);
  if (queue?.paused) return "queue is paused";
  if (job.state === "blocked") return job.key ? `behind ${job.key}` : "waits for others";
  return waited(job) > 60 && !["any", "", undefined].includes(job.requires) ? `waits for ${job.requires}` : `for ${span(waited(job))}`;
}

/** A text that ticks by itself while its job goes on. */
const Ticking = ({ job, read }) => { useTick(1); return read(job); };
const ticking = (job, read) => (job.finished_at ? read(job) : html`<${Ticking} job=${job} read=${read}/>`);

const whenCell = (job) => (job.state === "running" && job.progress ? html`<span class="row"><${Bar} tone="run" height=${5} share=${job.progress.fraction}/><span>${percent(job.progress.fraction)}</span></span>`
  : html`<span title=${instant(job.finished_at ?? job.run_at ?? job.created_at)}>${whenText(job)}</span>`);

/** The attempt that it is at or ended with: the store counts those that failed. */
export const attempts = (job) => `${job.attempts + ["running", "completed"].includes(job.state)} of ${job.max_attempts ?? "∞"}`;

/** [word, class, what it shows], as in other tables; widths are those of the heads. */
const JOB_COLUMNS = [
  ["State", "stc c-state", (job) => html`<${State} glyph=${stateOf(job)}/>`],
  ["Job", "tyc", (job) => html`<span class="row"><a class="strong cut" href=${href("jobs", [job.id])}>${job.type}</a>
    <span class="dim mono cut wide">${job.args}</span>${(job.tags ?? []).slice(0, 2).map((tag) => html`<span class="chip wide">${tag}</span>`)}</span>`],
  ["Queue", "hide soft mid2 c-queue", (job) => job.queue], ["", "narrow dim", (job) => `${job.queue} · ${attempts(job)}`],
  ["Attempt", "num hide soft mid2 c-att", attempts], ["Waited", "num hide soft mid c-wait", (job) => ticking(job, (one) => span(waited(one)))],
  ["Ran", "num hide mid2 c-ran", (job) => ticking(job, (one) => measured(ran(one)))], ["Worker", "hide soft mid c-worker", (job) => job.worker_id ?? NONE],
  ["When", "num whc soft c-when", (job) => html`<${Ticking} job=${job} read=${whenCell}/>`], ["Id", "hide num mid c-id", (job) => html`<code class="dim">${shortId(job.id)}</code>`],
];

const JobRow = memo(({ job, isOn, isAt, isFresh, mayPick, onPick, onPoint }) => html`
  <tr class=${`${isOn ? "on" : ""} ${isAt ? "at" : ""} ${isFresh ? "fresh" : ""}`} data-id=${job.id} onFocusIn=${() => onPoint(job.id)}>
    ${mayPick && html`<td class="hide"><${Tick} label=${`Select ${shortId(job.id)}`} isOn=${isOn} onClick=${(event) => onPick(job.id, event.shiftKey)}/></td>`}<${Cells} columns=${JOB_COLUMNS} row=${job}/></tr>`);

/** @param {{ jobs: any[], picked: Set<string>, at: string, fresh: Set<string>, mayPick: boolean, onPick: Function, onPoint: Function }} props */
export const JobTable = ({ jobs, picked, at, fresh, ...rest }) => html`
  <table class="cards jobs"><thead><tr>${rest.mayPick && html`<th class="c-tick"><span class="sr">Select</span></th>`}<${Heads} columns=${JOB_COLUMNS}/></tr></thead>
    <tbody>${jobs.map((job) => html`<${JobRow} key=${job.id} job=${job} isOn=${picked.has(job.id)} isAt=${at === job.id} isFresh=${fresh.has(job.id)} ...${rest}/>`)}</tbody></table>`;

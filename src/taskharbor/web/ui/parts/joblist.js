/** Jobs as rows. A row renders again only when its record is another one; its times tick by themselves. */

import { ago, NONE, percent, secondsSince, span, measured, instant, shortId } from "../format.js";
import { live, useTick } from "../live.js";
import { href } from "../route.js";
import { Bar } from "./charts.js";
import { Tick } from "./controls.js";
import { html, memo } from "./html.js";
import { State, stateOf } from "./state.js";

const between = (from, to) => (from && to ? Math.max((Date.parse(to) - Date.parse(from)) / 1000, 0) : null);
const later = (a, b) => (!a ? b : !b || a > b ? a : b);

/** Since when it could run. */
export const dueAt = (job) => later(job.created_at, job.run_at);

export function waited(job) {
  if (job.started_at) return between(dueAt(job), job.started_at);
  return ["ready", "blocked"].includes(job.state) ? secondsSince(dueAt(job)) : null;
}

export function ran(job) {
  if (job.state === "running") return secondsSince(job.started_at);
  return between(job.started_at, job.finished_at);
}

/** When it ended, will run or why it waits: as short as fits a cell. */
export function whenText(job) {
  const queue = live.board?.queues.find((one) => one.name === job.queue);
  if (job.finished_at) return ago(job.finished_at);
  if (job.cancel_requested) return "stopping";
  if (job.state === "running") return `since ${span(ran(job))}`;
  if (queue?.paused && job.state !== "scheduled") return "queue is paused";
  if (job.state === "blocked") return job.key ? `behind ${job.key}` : "waits for others";
  if (job.state === "scheduled") return ago(job.run_at);
  return job.requires && !["any", ""].includes(job.requires) && waited(job) > 60 ? `waits for ${job.requires}` : `for ${span(waited(job))}`;
}

function When({ job }) {
  useTick(1);
  if (job.state === "running" && job.progress) {
    return html`<span class="row"><${Bar} tone="run" height=${5} share=${job.progress.fraction}/><span>${percent(job.progress.fraction)}</span></span>`;
  }
  return html`<span title=${instant(job.finished_at ?? job.run_at ?? job.created_at)}>${whenText(job)}</span>`;
}

function Ticking({ read, job }) {
  useTick(1);
  return read(job);
}
const Waited = ({ job }) => (job.started_at || job.state === "scheduled" ? span(waited(job)) : html`<${Ticking} job=${job} read=${(one) => span(waited(one))}/>`);
const Ran = ({ job }) => (job.state === "running" ? html`<${Ticking} job=${job} read=${(one) => measured(ran(one))}/>` : measured(ran(job)));

/** The attempt that it is at or ended with: the store counts those that failed. */
export const attempts = (job) => `${job.attempts + ["running", "completed"].includes(job.state)} of ${job.max_attempts ?? "∞"}`;
const tagsOf = (job) => (job.tags ?? []).slice(0, 2);

const JobRow = memo(({ job, isOn, isAt, isFresh, mayPick, onPick, onPoint }) => html`
  <tr class=${[isOn && "on", isAt && "at", isFresh && "fresh"].filter(Boolean).join(" ")} data-id=${job.id} onFocusIn=${() => onPoint(job.id)}>
    ${mayPick && html`<td class="hide"><${Tick} label=${`Select ${shortId(job.id)}`} isOn=${isOn} onClick=${(event) => onPick(job.id, event.shiftKey)}/></td>`}
    <td class="stc"><${State} name=${stateOf(job)}/></td>
    <td class="tyc"><span class="row"><a class="strong cut" href=${href("jobs", [job.id])}>${job.type}</a>
      <span class="dim mono cut wide">${job.args ?? ""}</span>${tagsOf(job).map((tag) => html`<span key=${tag} class="chip wide">${tag}</span>`)}</span></td>
    <td class="hide soft mid2">${job.queue}</td><td class="narrow dim">${job.queue} · ${attempts(job)}</td>
    <td class="num hide soft mid2">${attempts(job)}</td><td class="num hide soft mid"><${Waited} job=${job}/></td><td class="num hide mid2"><${Ran} job=${job}/></td>
    <td class="hide soft mid">${job.worker_id ?? NONE}</td><td class="num whc soft"><${When} job=${job}/></td>
    <td class="hide num mid"><code class="dim">${shortId(job.id)}</code></td></tr>`);

/** @param {{ jobs: any[], picked: Set<string>, at: string, fresh: Set<string>, mayPick: boolean, onPick: Function, onPoint: Function }} props */
export const JobTable = ({ jobs, picked, at, fresh, mayPick, onPick, onPoint }) => html`
  <table class="cards jobs"><thead><tr>${mayPick && html`<th class="c-tick"><span class="sr">Select</span></th>`}<th class="c-state">State</th><th>Job</th>
    <th class="c-queue mid2">Queue</th><th class="num c-att mid2">Attempt</th><th class="num c-wait mid">Waited</th><th class="num c-ran mid2">Ran</th>
    <th class="c-worker mid">Worker</th><th class="num c-when">When</th><th class="num c-id mid">Id</th></tr></thead>
    <tbody>${jobs.map((job) => html`<${JobRow} key=${job.id} job=${job} isOn=${picked.has(job.id)} isAt=${at === job.id} isFresh=${fresh.has(job.id)}
      mayPick=${mayPick} onPick=${onPick} onPoint=${onPoint}/>`)}</tbody></table>`;

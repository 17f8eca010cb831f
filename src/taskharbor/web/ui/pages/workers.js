/** Workers: who is alive, what every slot does, who is slow, and who fell silent. `#/workers/<id>` is the page of one. */

import { NONE, ago, bytes, instant, measured, number, percent, secondsSince, shortId, span, time } from "../format.js";
import { useTick } from "../live.js";
import { Bar } from "../parts/charts.js";
import { Button, Segments } from "../parts/controls.js";
import { useAsk } from "../parts/data.js";
import { html, useAgain, useState } from "../parts/html.js";
import { Icon } from "../parts/icons.js";
import { Empty } from "../parts/notes.js";
import { Asked, Head, marked } from "../parts/page.js";
import { useRowKeys } from "../parts/rows.js";
import { Shape, State } from "../parts/state.js";
import { href } from "../route.js";
import { GROUPS, doing, isSlow, nameOf, serves, slowness } from "./fleet.js";
import { WorkerPage } from "./worker.js";

export const workersPage = { Page: Workers, title: () => "Workers" };

const MOST_WORKERS = 60;
const dismissed = new Set(); // lost workers that this visit does not want to see again

/** Workers, the jobs that they run, and how long jobs of a type usually take. Lost ones have `isLost`. */
export function useFleet() {
  const asked = useAsk("workers", {}, { every: 5, on: "workers" });
  const jobs = useAsk("jobs", { q: "state:running", limit: 200, args: true }, { every: 5 }).answer?.items ?? [];
  const types = useAsk("stats", {}, { every: 60 }).answer?.types ?? [];
  const items = asked.answer?.items ?? [], lost = (asked.answer?.lost ?? []).map((one) => ({ ...one, isLost: true }));
  return { ...asked, items, lost, all: [...items, ...lost], jobs, usual: new Map(types.map((one) => [one.type, one.usual_s])) };
}

function Workers({ route }) {
  return route.path.length ? html`<${WorkerPage} id=${route.path[0]}/>` : html`<${Everybody} route=${route}/>`;
}

function Everybody({ route }) {
  const fleet = useFleet();
  const [isAll, showAll] = useState(false);
  useRowKeys();
  useTick(1);
  const by = GROUPS[route.query.by] ? route.query.by : "host", total = fleet.all.length;
  let room = isAll ? Infinity : MOST_WORKERS;
  return html`
    <${Head} heading="Workers" lede=${marked(fleet.answer?.text ?? "", (name) => workerLink(fleet.items.find((one) => nameOf(one) === name)) ?? html`<code>${name}</code>`)}
      acts=${html`<${Segments} label="Group" value=${by} items=${Object.keys(GROUPS).map((name) => [name, `By ${name}`, href("workers", [], { by: name === "host" ? null : name })])}/>`}/>
    <${Asked} of=${fleet}>${() => (total === 0 ? html`<${Empty} heading="Nobody is at work" text="Start a worker for your app; it appears here within seconds." code=${["taskharbor worker app:harbor"]}/>`
      : html`<${Lost} lost=${fleet.lost}/><div class="card">
        <div class="wk h" aria-hidden="true"><span>Worker</span><span>Slots</span><span class="num">Busy</span><span class="num">Usual run</span><span>Release</span><span class="num">Beat</span></div>
        ${GROUPS[by](fleet.all).map(([name, members]) => {
          const shown = members.slice(0, Math.max(room, 0));
          room -= members.length;
          return shown.length > 0 && html`<${Group} key=${name} name=${name} by=${by} members=${shown} fleet=${fleet}/>`;
        })}
        ${room < 0 && html`<div class="more"><span>${MOST_WORKERS} of ${number(total)} shown</span><${Button} look="bare end" onClick=${() => showAll(true)}>Show all<//></div>`}</div>
      <p class="foot-keys legend"><span><i class="sw b"></i>busy</span><span><i class="sw s"></i>over its usual time</span><span><i class="sw"></i>free</span>${fleet.lost.length > 0 && html`<span><i class="sw l"></i>fell silent</span>`}</p>`)}<//>`;
}

const workerLink = (worker) => worker && html`<a class="link" href=${href("workers", [worker.id])}>${nameOf(worker)}</a>`;

function Lost({ lost }) {
  const again = useAgain();
  const shown = lost.filter((one) => one.running.length > 0 && !dismissed.has(one.id)).slice(0, 3);
  return shown.length > 0 && html`<div class="needs gapb">${shown.map((one) => html`<div key=${one.id} class="need bad"><${Icon} glyph="bad" width=${1.5}/>
    <div><b>${nameOf(one)} fell silent ${ago(one.seen_at)}</b></div>
    <p>Its last heartbeat came at ${time(one.seen_at)}. When its leases end, ${one.running.length === 1 ? "its job runs" : `its ${number(one.running.length)} jobs run`} elsewhere.</p>
    <div class="acts"><${Button} href=${href("jobs", [], { q: `worker:${one.id}` })}>What it did last<//>
      <${Button} look="bare" onClick=${() => { dismissed.add(one.id); again(); }}>Dismiss<//></div></div>`)}</div>`;
}

const Group = ({ name, by, members, fleet }) => html`<div class="host"><b class="strong">${name}</b>${by === "host" && (members.every((one) => one.isLost)
    ? html`<${State} glyph="lost" word="no answer" tone="failed"/>` : html`<span class="dim cut">${members[0].machine_text}</span>`)}</div>
  ${members.map((one) => html`<${WorkerRow} key=${one.id} worker=${one} fleet=${fleet}/>`)}`;

function WorkerRow({ worker, fleet }) {
  const jobs = fleet.jobs.filter((job) => worker.running.includes(job.id)); // what it reported: the squares say the same
  const late = jobs.filter((job) => isSlow(job, fleet.usual)).length;
  const usual = fleet.items.map((one) => one.latency_s).filter((value) => value != null).sort((a, b) => a - b);
  const times = slowness(worker), full = 4 * usual[usual.length >> 1]; // the bar is full at four times the usual
  return html`<div class="wk">
    <div><p class="strong cut"><a data-row href=${href("workers", [worker.id])}>${nameOf(worker)}</a></p><p class="dim cut">${serves(worker)}</p></div>
    <div class="slotcell"><${Slots} worker=${worker} late=${late}/><p class="dim cut what">${doing(worker, jobs, late)}</p></div>
    <div class="num">${worker.isLost ? "lost" : `${worker.running.length} / ${worker.concurrency}`}</div>
    <div class="num hide">${span(worker.latency_s)}${times && html`<span class="blk"><${Slow} times=${times}/></span>`}<span class="mini"><${Bar} share=${worker.latency_s / full} tone=${times ? "full" : "acc"} height=${3}/></span></div>
    <div class="hide"><code class="soft">${worker.release || NONE}</code></div>
    <div class="num" title=${instant(worker.seen_at)}><span class=${`beat${worker.isLost ? " late" : ""}`}><i></i>${span(Math.max(Math.floor(secondsSince(worker.seen_at)), 0))}</span></div>
    <${Gpus} worker=${worker} jobs=${jobs}/></div>`;
}

export const Slow = ({ times }) => html`<span class="st slow"><b>${times.toFixed(1)} ×</b> slower</span>`;

const MOST_SQUARES = 128;

export function Slots({ worker, late }) {
  const count = worker.running.length, [total, busy] = worker.isLost ? [count, 0] : [worker.concurrency, count];
  const label = worker.isLost ? `${total} slots were busy when it fell silent` : `${busy} of ${total} slots busy${late ? `, ${late} over the usual time` : ""}`;
  const kind = (index) => (worker.isLost ? "l" : index < late ? "s" : index < busy ? "b" : "");
  return html`<div class="slots" role="img" aria-label=${label}>${total > MOST_SQUARES ? html`<${Bar} share=${busy / total} tone="run" height=${11}/>`
    : Array.from({ length: total }, (_, index) => html`<i class=${`sw ${kind(index)}`}></i>`)}</div>`;
}

export const Gpus = ({ worker, jobs }) => worker.gpus?.length > 0 && html`<div class="gpus">${worker.gpus.map((gpu) => html`<${Gpu} key=${gpu.id} gpu=${gpu} job=${jobs.find((one) => one.id === gpu.job)}/>`)}</div>`;

const Gpu = ({ gpu, job }) => html`<div class="gpu"><div class="row"><b>${gpu.id}</b><span class="dim cut">${gpu.name}</span><span class="end dim">${gpu.celsius == null ? "" : `${number(gpu.celsius)} °C`}</span></div>
  <${Meter} word="Use" share=${gpu.use} tone="run">${percent(gpu.use)}<//>
  <${Meter} word="Memory" share=${gpu.memory_used / gpu.memory} tone=${gpu.memory_used > gpu.memory * 0.85 ? "full" : "run"}>${gpu.memory == null ? NONE : `${bytes(gpu.memory_used).replace(" GiB", "")} / ${bytes(gpu.memory)}`}<//>
  ${gpu.job && html`<div class="row soft"><span class="st running"><${Shape} glyph="running"/></span><a class="cut" href=${href("jobs", [gpu.job])}>${job ? jobLine(job) : shortId(gpu.job)}</a></div>`}</div>`;

const Meter = ({ word, children, ...bar }) => html`<div class="meter"><span>${word}</span><${Bar} height=${5} ...${bar}/><span class="num">${children}</span></div>`;

const jobLine = (job) => [`${job.type} ${shortId(job.id)}`, measured(Math.round(secondsSince(job.started_at))), job.progress && percent(job.progress.fraction)].filter(Boolean).join(" · ");

/** The task of a job and the beginning of its arguments, for tables. */
export const JobCell = (job) => html`<a class="strong" href=${href("jobs", [job.id])}>${job.type}</a> <span class="dim mono">${job.args}</span>`;

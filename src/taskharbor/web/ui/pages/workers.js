/** Workers: who is alive, what every slot does, who is slow, and who fell silent. `#/workers/<id>` is the page of one. */

import { NONE, ago, bytes, instant, measured, number, percent, plural, secondsSince, shortId, span, time } from "../format.js";
import { useTick } from "../live.js";
import { Bar } from "../parts/charts.js";
import { Button, Segments } from "../parts/controls.js";
import { useAsk } from "../parts/data.js";
import { html, useState } from "../parts/html.js";
import { Icon } from "../parts/icons.js";
import { Empty, Loading, Trouble } from "../parts/notes.js";
import { useRowKeys } from "../parts/rows.js";
import { Shape, State } from "../parts/state.js";
import { href } from "../route.js";
import { GROUPS, doing, hostLine, isSlow, laggards, median, nameOf, oldRelease, serves } from "./fleet.js";
import { WorkerPage } from "./worker.js";

export const workersPage = { Page: Workers, title: () => "Workers" };

const MOST_WORKERS = 60;
const dismissed = new Set(); // lost workers that this visit does not want to see again

/** Workers, the jobs that they run, and how long jobs of a type usually take. */
export function useFleet() {
  const { data, problem, ask } = useAsk("workers", {}, { every: 5, on: "workers" });
  const jobs = useAsk("jobs", { q: "state:running", limit: 200, args: true }, { every: 5 }).data?.items ?? [];
  const types = useAsk("stats", {}, { every: 60 }).data?.types ?? [];
  const items = data?.items ?? [], lost = data?.lost ?? [];
  return { data, problem, ask, items, lost, jobs, usual: new Map(types.map((one) => [one.type, one.usual_s])), slow: laggards(items) };
}

function Workers({ route, session }) {
  return route.path.length ? html`<${WorkerPage} key=${route.path[0]} id=${route.path[0]} session=${session}/>` : html`<${Everybody} route=${route}/>`;
}

function Everybody({ route }) {
  const fleet = useFleet();
  const [isAll, showAll] = useState(false);
  useRowKeys();
  useTick(1);
  const by = GROUPS[route.query.by] ? route.query.by : "host";
  const segments = [["host", "By host"], ["speed", "By speed"], ["release", "By release"]].map(([name, word]) => [name, word, href("workers", [], { by: name === "host" ? null : name })]);
  const groups = GROUPS[by](fleet.items, fleet.lost);
  const total = fleet.items.length + fleet.lost.length;
  let room = isAll ? Infinity : MOST_WORKERS;
  return html`
    <div class="head"><div class="grow"><h1>Workers</h1><p class="lede">${fleet.data && workersLede(fleet)}</p></div>
      <div class="acts"><${Segments} label="Group" items=${segments} value=${by}/></div></div>
    ${fleet.problem && html`<div class="gapb"><${Trouble} problem=${fleet.problem} onAgain=${fleet.ask}/></div>`}
    ${!fleet.data ? !fleet.problem && html`<${Loading}/>`
      : total === 0 ? html`<${Empty} title="Nobody is at work" text="Start a worker for your app; it appears here within seconds." code=${["taskharbor worker app:harbor"]}/>`
      : html`<${Lost} lost=${fleet.lost}/><div class="card">
        <div class="wk h" aria-hidden="true"><span>Worker</span><span>Slots</span><span class="num">Busy</span><span class="num">Usual run</span><span>Release</span><span class="num">Beat</span></div>
        ${groups.map(([name, members]) => {
          const shown = members.slice(0, Math.max(room, 0));
          room -= members.length;
          return shown.length > 0 && html`<${Group} key=${name} name=${name} by=${by} members=${shown} fleet=${fleet}/>`;
        })}
        ${room < 0 && html`<div class="more"><span>${MOST_WORKERS} of ${number(total)} shown</span><${Button} kind="bare end" onClick=${() => showAll(true)}>Show all<//></div>`}</div>
      <p class="foot-keys legend"><span><i class="sw b"></i>busy</span><span><i class="sw s"></i>over its usual time</span><span><i class="sw"></i>free</span>${fleet.lost.length > 0 && html`<span><i class="sw l"></i>fell silent</span>`}</p>`}`;
}

/** The answer of the page in one sentence: how many are alive, how busy, and which one is slow. */
function workersLede({ items, lost, slow }) {
  const gone = lost.length ? ` ${lost.length === 1 ? "One was" : `${number(lost.length)} were`} lost.` : "";
  if (!items.length) return lost.length ? `Nobody is alive.${gone}` : "";
  const hosts = new Set(items.map((one) => one.host)).size;
  const slots = items.reduce((sum, one) => sum + one.concurrency, 0), busy = items.reduce((sum, one) => sum + one.running.length, 0);
  const [slowest] = items.filter((one) => slow.has(one.id)).sort((a, b) => slow.get(b.id) - slow.get(a.id));
  const old = oldRelease(items);
  return html`${number(items.length)} alive on ${hosts === 1 ? "one host" : `${number(hosts)} hosts`}, ${number(busy)} of ${plural(slots, "slot")} busy.
    ${slowest && html` <a class="link" href=${href("workers", [slowest.id])}>${nameOf(slowest)}</a> is slow: its jobs take ${slow.get(slowest.id).toFixed(1)} times as long as on the others.`}
    ${gone}${old && html` ${number(old.count)} still ${old.count === 1 ? "runs" : "run"} release <code>${old.release}</code>.`}`;
}

function Lost({ lost }) {
  const [, again] = useState(0);
  const shown = lost.filter((one) => one.running.length > 0 && !dismissed.has(one.id)).slice(0, 3);
  if (!shown.length) return null;
  return html`<div class="needs gapb">${shown.map((one) => html`<div key=${one.id} class="need bad"><${Icon} name="bad" width=${1.5}/>
    <div><b>${nameOf(one)} fell silent ${ago(one.seen_at)}</b></div>
    <p>Its last heartbeat came at ${time(one.seen_at)}. When its leases end, ${one.running.length === 1 ? "its job runs" : `its ${number(one.running.length)} jobs run`} elsewhere.</p>
    <div class="acts"><${Button} href=${href("jobs", [], { q: `worker:${one.id}` })}>What it did last<//>
      <${Button} kind="bare" onClick=${() => { dismissed.add(one.id); again((count) => count + 1); }}>Dismiss<//></div></div>`)}</div>`;
}

function Group({ name, by, members, fleet }) {
  const isLost = members.every((one) => one.isLost);
  return html`<div class="host"><b class="strong">${name}</b>${by === "host" && (isLost
      ? html`<${State} name="lost" word="no answer" tone="failed"/>` : html`<span class="dim cut">${hostLine(members)}</span>`)}</div>
    ${members.map((one) => html`<${WorkerRow} key=${one.id} worker=${one} fleet=${fleet}/>`)}`;
}

function WorkerRow({ worker, fleet }) {
  const jobs = fleet.jobs.filter((job) => worker.running.includes(job.id)); // what it reported: the squares say the same
  const late = jobs.filter((job) => isSlow(job, fleet.usual)).length;
  const full = 4 * median(fleet.items.map((one) => one.latency_s).filter((value) => value != null)); // the bar is full at four times the usual
  const times = fleet.slow.get(worker.id);
  return html`<div class="wk">
    <div><p class="strong cut"><a data-row href=${href("workers", [worker.id])}>${nameOf(worker)}</a></p><p class="dim cut">${serves(worker)}</p></div>
    <div class="slotcell"><${Slots} worker=${worker} late=${late}/><p class="dim cut what">${doing(worker, jobs, late)}</p></div>
    <div class="num">${worker.isLost ? "lost" : `${worker.running.length} / ${worker.concurrency}`}</div>
    <div class="num hide">${worker.latency_s == null ? NONE : span(worker.latency_s)}${times && html`<span class="blk"><${Slow} times=${times}/></span>`}<span class="mini"><${Bar} share=${full ? (worker.latency_s ?? 0) / full : 0} tone=${times ? "full" : "acc"} height=${3}/></span></div>
    <div class="hide"><code class="soft">${worker.release || NONE}</code></div>
    <div class="num" title=${instant(worker.seen_at)}><span class=${`beat${worker.isLost ? " late" : ""}`}><i></i>${beat(worker.seen_at)}</span></div>
    ${worker.gpus?.length > 0 && html`<div class="gpus">${worker.gpus.map((gpu) => html`<${Gpu} key=${gpu.id} gpu=${gpu} jobs=${jobs}/>`)}</div>`}</div>`;
}

export const Slow = ({ times }) => html`<span class="st slow"><b>${times.toFixed(1)} ×</b> slower</span>`;
const beat = (at) => span(Math.max(Math.floor(secondsSince(at)), 0) || 0);

const MOST_SQUARES = 128;

export function Slots({ worker, late }) {
  const total = worker.isLost ? worker.running.length : worker.concurrency, busy = worker.isLost ? 0 : worker.running.length;
  const label = worker.isLost ? `${total} slots were busy when it fell silent` : `${busy} of ${total} slots busy${late ? `, ${late} over the usual time` : ""}`;
  if (total > MOST_SQUARES) return html`<div class="row" role="img" aria-label=${label}><${Bar} share=${busy / total} tone="run" height=${11}/></div>`;
  const kind = (index) => (worker.isLost ? "l" : index < late ? "s" : index < busy ? "b" : "");
  return html`<div class="slots" role="img" aria-label=${label}>${Array.from({ length: total }, (_, index) => html`<i key=${index} class=${kind(index)}></i>`)}</div>`;
}

export function Gpu({ gpu, jobs }) {
  const job = jobs.find((one) => one.id === gpu.job);
  const filled = gpu.memory ? gpu.memory_used / gpu.memory : null;
  return html`<div class="gpu"><div class="row"><b>${gpu.id}</b><span class="dim cut">${gpu.name}</span><span class="end dim">${gpu.celsius == null ? "" : `${number(gpu.celsius)} °C`}</span></div>
    <div class="meter"><span>Use</span><${Bar} share=${gpu.use} tone="run" height=${5}/><span class="num">${percent(gpu.use)}</span></div>
    <div class="meter"><span>Memory</span><${Bar} share=${filled} tone=${filled > 0.85 ? "full" : "run"} height=${5}/><span class="num">${gpu.memory == null ? NONE : `${bytes(gpu.memory_used).replace(" GiB", "")} / ${bytes(gpu.memory)}`}</span></div>
    ${gpu.job && html`<div class="row soft"><span class="st running"><${Shape} name="running"/></span><a class="cut" href=${href("jobs", [gpu.job])}>${job ? jobLine(job) : shortId(gpu.job)}</a></div>`}</div>`;
}

const jobLine = (job) => [`${job.type} ${shortId(job.id)}`, measured(Math.round(secondsSince(job.started_at))), job.progress && percent(job.progress.fraction)].filter(Boolean).join(" · ");

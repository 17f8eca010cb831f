/** One worker: what it runs now, whether it is slow, and what it says about itself. */

import { NONE, ago, instant, measured, number, percent, secondsSince, shortId, span } from "../format.js";
import { useKeys } from "../keys.js";
import { useTick } from "../live.js";
import { Bar } from "../parts/charts.js";
import { Button, CopyButton } from "../parts/controls.js";
import { html } from "../parts/html.js";
import { Empty, Loading, Trouble } from "../parts/notes.js";
import { State } from "../parts/state.js";
import { go, href } from "../route.js";
import { hostLine, isSlow, nameOf } from "./fleet.js";
import { Gpu, Slots, Slow, useFleet } from "./workers.js";

export function WorkerPage({ id }) {
  const fleet = useFleet();
  useTick(1);
  useKeys({ Esc: () => go(href("workers")) });
  const worker = fleet.items.find((one) => one.id === id) ?? fleet.lost.filter((one) => one.id === id).map((one) => ({ ...one, isLost: true }))[0];
  const jobs = fleet.jobs.filter((job) => job.worker_id === id);
  return html`
    <div class="head"><div class="grow"><p class="crumb"><a class="link" href=${href("workers")}>Workers</a> / <span class="dim">${worker ? nameOf(worker) : id}</span></p>
        <h1 class="row title">${worker ? nameOf(worker) : id}${worker?.isLost && html`<${State} name="lost" tone="failed" pill/>`}${worker?.is_quiet && html`<${State} name="paused" word="takes no more" pill/>`}</h1>
        <p class="lede">${worker && workerLede(worker, fleet)}</p></div>
      <div class="acts"><${Button} href=${href("jobs", [], { q: `worker:${id}` })}>Its jobs<//></div></div>
    ${fleet.problem && html`<div class="gapb"><${Trouble} problem=${fleet.problem} onAgain=${fleet.ask}/></div>`}
    ${!fleet.data ? !fleet.problem && html`<${Loading}/>`
      : !worker ? html`<${Empty} title="This worker is gone" text="It was stopped, or it fell silent more than an hour ago." acts=${html`<a class="btn" href=${href("workers")}>All workers</a>`}/>`
      : html`<div class="cols"><div><${Now} worker=${worker} jobs=${jobs} usual=${fleet.usual}/>
          ${worker.gpus?.length > 0 && html`<section><div class="cap"><h2>GPUs</h2></div><div class="gpus">${worker.gpus.map((gpu) => html`<${Gpu} key=${gpu.id} gpu=${gpu} jobs=${jobs}/>`)}</div></section>`}</div>
        <${WorkerFacts} worker=${worker} fleet=${fleet}/></div>`}`;
}

function workerLede(worker, fleet) {
  if (worker.isLost) return `It fell silent ${ago(worker.seen_at)}, with ${number(worker.running.length)} ${worker.running.length === 1 ? "job" : "jobs"} at work.`;
  const times = fleet.slow.get(worker.id);
  const busy = `${number(worker.running.length)} of ${number(worker.concurrency)} slots busy, last heartbeat ${ago(worker.seen_at)}.`;
  if (times) return `${busy} Its jobs take ${times.toFixed(1)} times as long as the same jobs on other workers.`;
  return worker.times_slower == null ? busy : `${busy} Its jobs take as long as on other workers.`;
}

function Now({ worker, jobs, usual }) {
  const late = jobs.filter((job) => isSlow(job, usual)).length;
  const rows = [...jobs].sort((a, b) => (a.started_at ?? "").localeCompare(b.started_at ?? ""));
  return html`<div class="cap"><h2>Running now</h2><span class="dim">the longest first</span></div>
    <div class="gapb"><${Slots} worker=${worker} late=${late}/></div>
    ${rows.length === 0 ? html`<${Empty} title=${worker.isLost ? "Nothing is known to run here" : "Nothing runs here now"} text=${worker.isLost ? "Its jobs run elsewhere once their leases have ended." : worker.is_quiet ? "It takes no more jobs, and ends by itself." : "It takes the next job of its queues."}/>`
      : html`<div class="card"><table class="cards"><thead><tr><th>Job</th><th>Queue</th><th class="num">Runs for</th><th class="num">Usual</th><th>Progress</th><th class="num">Id</th></tr></thead>
        <tbody>${rows.map((job) => html`<tr key=${job.id}><td class="cut tyc"><a class="strong" href=${href("jobs", [job.id])}>${job.type}</a> <span class="dim mono">${job.args}</span></td>
          <td class="hide">${job.queue}</td><td class="num whc" title=${instant(job.started_at)}>${measured(Math.floor(secondsSince(job.started_at) ?? 0))}</td>
          <td class="num hide">${isSlow(job, usual) ? html`<span class="st retrying">${span(usual.get(job.type))}</span>` : usual.has(job.type) ? span(usual.get(job.type)) : NONE}</td>
          <td class="hide">${job.progress ? html`<span class="row"><${Bar} share=${job.progress.fraction} tone="run"/><span class="fix4 num">${percent(job.progress.fraction)}</span></span>` : html`<span class="dim">${NONE}</span>`}</td>
          <td class="num mono dim hide">${shortId(job.id)}</td></tr>`)}</tbody></table>
        ${rows.length < worker.running.length && html`<div class="more">${number(rows.length)} of ${number(worker.running.length)} shown</div>`}</div>`}`;
}

function WorkerFacts({ worker, fleet }) {
  const rows = [
    ["Id", html`<span class="row"><span class="mono cut">${worker.id}</span><${CopyButton} text=${() => worker.id} what="the id"/></span>`],
    ["Host", worker.host || NONE], worker.pid && ["Process", String(worker.pid)], worker.kind && ["Kind", worker.kind],
    worker.queues && ["Queues", worker.queues.length ? worker.queues.join(", ") : "every queue"],
    worker.lanes?.length && ["Lanes", worker.lanes.join(", ")], ["Release", worker.release ? html`<code>${worker.release}</code>` : NONE],
    worker.started_at && ["Started", html`<span title=${instant(worker.started_at)}>${ago(worker.started_at)}</span>`],
    ["Heartbeat", html`<span title=${instant(worker.seen_at)}>${ago(worker.seen_at)}</span>`],
    worker.latency_s != null && ["Usual run", html`${span(worker.latency_s)} <span class="dim">over ${number(worker.samples)}</span>${fleet.slow.has(worker.id) && html`<br/><${Slow} times=${fleet.slow.get(worker.id)}/>`}`],
    worker.machine && ["Machine", hostLine([worker])],
    ...Object.entries(worker.labels ?? {}).map(([name, value]) => [name, value]),
  ].filter(Boolean);
  return html`<dl class="card pad facts">${rows.map(([name, value]) => html`<dt key=${`t${name}`} class="cut">${name}</dt><dd key=${`d${name}`}>${value}</dd>`)}</dl>`;
}

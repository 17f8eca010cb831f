/** One worker: what it runs now, whether it is slow, and what it says about itself. */

import { NONE, ago, instant, measured, number, percent, plural, secondsSince, shortId, span } from "../format.js";
import { useKeys } from "../keys.js";
import { useTick } from "../live.js";
import { Bar } from "../parts/charts.js";
import { Button } from "../parts/controls.js";
import { CopyButton } from "../parts/copy.js";
import { html } from "../parts/html.js";
import { Empty } from "../parts/notes.js";
import { Ago, Asked, Cap, dim, Facts, Head, Section, Table } from "../parts/page.js";
import { State } from "../parts/state.js";
import { go, href } from "../route.js";
import { isSlow, nameOf, slowness } from "./fleet.js";
import { Gpus, JobCell, Slots, Slow, useFleet } from "./workers.js";

export function WorkerPage({ id }) {
  const fleet = useFleet();
  useTick(1);
  useKeys({ Esc: () => go(href("workers")) });
  const worker = fleet.all.find((one) => one.id === id);
  const jobs = fleet.jobs.filter((job) => job.worker_id === id);
  const name = worker ? nameOf(worker) : id;
  return html`
    <${Head} trail=${[["Workers", href("workers")]]} here=${name} heading=${name} lede=${worker && workerLede(worker)}
      pill=${worker?.isLost ? html`<${State} glyph="lost" tone="failed" pill/>` : worker?.is_quiet && html`<${State} glyph="paused" word="takes no more" pill/>`}
      acts=${html`<${Button} href=${href("jobs", [], { q: `worker:${id}` })}>Its jobs<//>`}/>
    <${Asked} of=${fleet}>${() => (worker ? html`<div class="cols"><div><${Now} worker=${worker} jobs=${jobs} usual=${fleet.usual}/>
        ${worker.gpus?.length > 0 && html`<${Section} heading="GPUs"><${Gpus} worker=${worker} jobs=${jobs}/><//>`}</div>
        <${WorkerFacts} worker=${worker}/></div>`
      : html`<${Empty} heading="This worker is gone" text="It was stopped, or it fell silent more than an hour ago." acts=${html`<${Button} href=${href("workers")}>All workers<//>`}/>`)}<//>`;
}

function workerLede(worker) {
  if (worker.isLost) return `It fell silent ${ago(worker.seen_at)}, with ${plural(worker.running.length, "job")} at work.`;
  const times = slowness(worker);
  const busy = `${number(worker.running.length)} of ${number(worker.concurrency)} slots busy, last heartbeat ${ago(worker.seen_at)}.`;
  if (times) return `${busy} Its jobs take ${times.toFixed(1)} times as long as the same jobs on other workers.`;
  return worker.times_slower == null ? busy : `${busy} Its jobs take as long as on other workers.`;
}

function Now({ worker, jobs, usual }) {
  const late = jobs.filter((job) => isSlow(job, usual)).length;
  const rows = [...jobs].sort((a, b) => (a.started_at ?? "").localeCompare(b.started_at ?? ""));
  return html`<${Cap} heading="Running now" note="the longest first"/>
    <div class="gapb"><${Slots} worker=${worker} late=${late}/></div>
    ${rows.length === 0 ? html`<${Empty} heading=${worker.isLost ? "Nothing is known to run here" : "Nothing runs here now"} text=${worker.isLost ? "Its jobs run elsewhere once their leases have ended." : worker.is_quiet ? "It takes no more jobs, and ends by itself." : "It takes the next job of its queues."}/>`
      : html`<${Table} rows=${rows} columns=${[
        ["Job", "cut tyc", JobCell], ["Queue", "hide", (job) => job.queue],
        ["Runs for", "num whc", (job) => html`<span title=${instant(job.started_at)}>${measured(Math.floor(secondsSince(job.started_at) ?? 0))}</span>`],
        ["Usual", "num hide", (job) => { const text = span(usual.get(job.type)); return isSlow(job, usual) ? html`<span class="st retrying">${text}</span>` : text; }],
        ["Progress", "hide", (job) => (job.progress ? html`<span class="row"><${Bar} share=${job.progress.fraction} tone="run"/><span class="fix4 num">${percent(job.progress.fraction)}</span></span>` : dim(NONE))],
        ["Id", "num mono dim hide", (job) => shortId(job.id)],
      ]}>${rows.length < worker.running.length && html`<div class="more">${number(rows.length)} of ${number(worker.running.length)} shown</div>`}<//>`}`;
}

const WorkerFacts = ({ worker }) => html`<${Facts} rows=${[
  ["Id", html`<span class="row"><span class="mono cut">${worker.id}</span><${CopyButton} text=${() => worker.id} what="the id"/></span>`],
  ["Host", worker.host], worker.pid && ["Process", worker.pid], worker.kind && ["Kind", worker.kind],
  worker.queues && ["Queues", worker.queues.join(", ") || "every queue"],
  worker.lanes?.length && ["Lanes", worker.lanes.join(", ")], ["Release", worker.release && html`<code>${worker.release}</code>`],
  worker.started_at && ["Started", html`<${Ago} at=${worker.started_at}/>`], ["Heartbeat", html`<${Ago} at=${worker.seen_at}/>`],
  worker.latency_s != null && ["Usual run", html`${span(worker.latency_s)} ${dim(`over ${number(worker.samples)}`)}${slowness(worker) && html`<br/><${Slow} times=${slowness(worker)}/>`}`],
  worker.machine_text && ["Machine", worker.machine_text], ...Object.entries(worker.labels ?? {}),
]}/>`;

/** One queue: whether it keeps up, who waits in it, who works on it, and its settings. */

import { may, pauseQueue, resumeQueue } from "../deeds.js";
import { NONE, instant, number, perSecond, secondsSince, shortId, span, three } from "../format.js";
import { useKeys } from "../keys.js";
import { useBoard } from "../live.js";
import { Plot, marksOf, ratesOf } from "../parts/charts.js";
import { Button } from "../parts/controls.js";
import { useAsk } from "../parts/data.js";
import { html } from "../parts/html.js";
import { Empty, Loading, Trouble } from "../parts/notes.js";
import { useCommands } from "../parts/palette.js";
import { State } from "../parts/state.js";
import { go, href } from "../route.js";
import { QueueSettings } from "./queue_settings.js";

const HARBOR = "*";

export function QueuePage({ name, route, session }) {
  const isHarbor = name === HARBOR;
  const info = useAsk(`queues/${encodeURIComponent(name)}`, {}, { every: 5 });
  const row = useBoard()?.queues.find((one) => one.name === name);
  const mayChange = may(session, "configure");
  const queue = info.data && { ...row, ...info.data };
  const toggle = () => (queue.paused ? resumeQueue : pauseQueue)(name, info.ask);
  useKeys({ Esc: () => go(href("queues")) });
  useCommands([mayChange && queue && [`${queue.paused ? "Resume" : "Pause"} this queue`, toggle, "", "paused"]]);
  return html`
    <div class="head"><div class="grow"><p class="crumb"><a class="link" href=${href("queues")}>Queues</a> / <span class="dim">${isHarbor ? "all" : name}</span></p>
        <h1 class="row title">${isHarbor ? "All queues together" : name}${queue?.paused && html`<${State} name="paused" pill/>`}</h1>
        <p class="lede">${isHarbor ? "These settings hold for every queue, in addition to its own." : queue && verdict(queue)}</p></div>
      ${queue && html`<div class="acts">
        ${mayChange && html`<${Button} kind=${queue.paused ? "main" : ""} onClick=${toggle}>${queue.paused ? "Resume" : "Pause"}<//>`}
        ${!isHarbor && html`<${Button} href=${href("jobs", [], { q: `queue:${name}` })}>Its jobs<//>`}</div>`}</div>
    ${info.problem && html`<div class="gapb"><${Trouble} problem=${info.problem} onAgain=${info.ask}/></div>`}
    ${!queue ? !info.problem && html`<${Loading}/>` : html`
      ${!isHarbor && html`<${Figures} queue=${queue}/><${Flow} name=${name} window=${route.query.window ?? "1h"}/>`}
      <div class="two"><section><div class="cap"><h2>Settings</h2>${mayChange && html`<span class="dim">a change counts at once, and can be undone</span>`}</div>
          <${QueueSettings} queue=${name} rules=${info.data} mayChange=${mayChange} edit=${route.query.edit} onEdit=${(field) => route.set({ edit: field })} changed=${info.ask}/></section>
        ${!isHarbor && html`<${AtWork} name=${name}/>`}</div>
      ${!isHarbor && html`<${WhoWaits} name=${name} queue=${queue}/>`}`}`;
}

/** The question of the page: does it keep up? One sentence from what the board measured. */
export function verdict(queue) {
  const waits = queue.ready ? `${number(queue.ready)} ${queue.ready === 1 ? "job waits" : "jobs wait"}` : "No job waits";
  if (queue.paused) return `${waits}, and none starts before the queue is resumed.`;
  const oldest = queue.ready && queue.oldest_s != null ? `, the oldest for ${span(queue.oldest_s)}` : "";
  const isLate = queue.target_s != null && queue.oldest_s > queue.target_s;
  const begun = `${waits}${oldest}${isLate ? `; the target is ${span(queue.target_s)}` : ""}.`;
  if (queue.workers === 0) return `${begun} No live worker takes jobs of this queue.`;
  if (queue.arrived_per_s == null || queue.done_per_s == null) return begun;
  const fail = queue.failed_per_s > 0 ? `, ${perSecond(queue.failed_per_s)} fail` : "";
  const flow = `${perSecond(queue.arrived_per_s)} arrive a second, ${perSecond(queue.done_per_s)} are done${fail}`;
  if (queue.ready && queue.empty_in_s == null && queue.arrived_per_s > queue.done_per_s) return `${begun} ${flow}: it falls behind${isFull(queue) ? ", and all that may run at once are running" : ""}.`;
  if (queue.ready && queue.empty_in_s > 1) return `${begun} ${flow}: empty in ${span(queue.empty_in_s)}.`;
  return `${begun} ${flow}: it keeps up.`;
}

const isFull = (queue) => queue.max_running != null && queue.running >= queue.max_running;

function Figures({ queue }) {
  const figures = [
    ["Ready", number(queue.ready), queue.blocked ? `${number(queue.blocked)} blocked` : ""],
    ["Running", number(queue.running), queue.max_running == null ? "" : `of ${number(queue.max_running)}`],
    ["Scheduled", number(queue.scheduled), ""],
    ["Oldest wait", queue.oldest_s == null ? NONE : span(queue.oldest_s), queue.target_s == null ? "" : `target ${span(queue.target_s)}`],
    ["Failed", number(queue.failed), queue.failed ? "dead letters" : ""],
    ["Completed", number(queue.completed), "kept"],
  ];
  return html`<dl class="stats">${figures.map(([label, value, more]) => html`<div key=${label} class="stat"><dt>${label}</dt><dd>${value}${more && html`<small>${more}</small>`}</dd></div>`)}</dl>`;
}

function Flow({ name, window }) {
  const { data } = useAsk("series", { window, by: "queue", names: name }, { every: 30 });
  const found = data?.series.find((one) => one.name === name);
  if (!found) return null;
  const from = Date.parse(data.from), rates = ratesOf(found, data.step_s);
  return html`<section><div class="cap"><h2>Jobs per ${rates.word}</h2><span class="end row gap"><span class="key ink"><i></i>arrived</span><span class="key"><i></i>done</span><span class="key warn"><i></i>waiting</span></span></div>
    <${Plot} at=${(index) => new Date(from + index * data.step_s * 1000)} count=${found.done.length} read=${three} marks=${marksOf(data)}
      label=${`Jobs of ${name} per ${rates.word} that arrived and that were done, and how many waited`}
      lines=${[{ name: "arrived", values: rates.arrived, tone: "ink" }, { name: "done", values: rates.done, tone: "acc", isFilled: true }]}
      columns=${{ name: "waiting", values: found.waiting, tone: "warn" }}/></section>`;
}

function AtWork({ name }) {
  const { data, problem } = useAsk("workers", {}, { every: 5 });
  const found = (data?.items ?? []).filter((one) => !one.queues.length || one.queues.includes(name));
  return html`<section><div class="cap"><h2>Workers</h2><span class="dim">${data ? number(found.length) : ""}</span><a class="end link" href=${href("workers")}>All workers</a></div>
    ${!data ? !problem && html`<${Loading} rows=${3}/>` : found.length ? html`<ul class="card list">${found.slice(0, 8).map((one) => html`<li key=${one.id}>
        <a class="strong cut" href=${href("workers", [one.id])}>${one.name || one.id}</a><span class="dim cut">${one.host}</span>
        <span class="end nowrap">${one.running.length} / ${one.concurrency}</span><span class="dim nowrap fix num">${one.latency_s == null ? NONE : span(one.latency_s)}</span></li>`)}
        ${found.length > 8 && html`<li class="dim">${number(found.length - 8)} more</li>`}</ul>`
      : html`<${Empty} title="Nobody is at work" text="No live worker takes jobs of this queue. Start one:" code=${[`taskharbor worker app:harbor --queues ${name}`]}/>`}</section>`;
}

function WhoWaits({ name, queue }) {
  const { data } = useAsk("jobs", { q: `queue:${name} state:ready`, sort: "seq", limit: 10, args: true }, { every: 5 });
  if (!data?.items.length) return null;
  return html`<section><div class="cap"><h2>Who waits</h2><span class="dim">the oldest first</span><a class="end link" href=${href("jobs", [], { q: `queue:${name} state:ready` })}>All ${number(queue.ready)}</a></div>
    <div class="card"><table class="cards"><thead><tr><th>Job</th><th class="num">Priority</th><th class="num">Attempt</th><th class="num">Waits</th><th class="num">Id</th></tr></thead>
      <tbody>${data.items.map((job) => html`<tr key=${job.id}><td class="cut tyc"><a class="strong" href=${href("jobs", [job.id])}>${job.type}</a> <span class="dim mono">${job.args}</span></td>
        <td class="num hide">${job.priority}</td><td class="num hide">${job.attempts} of ${job.max_attempts ?? "∞"}</td>
        <td class="num whc" title=${instant(job.run_at ?? job.created_at)}>${span(secondsSince(job.run_at ?? job.created_at))}</td>
        <td class="num mono dim hide">${shortId(job.id)}</td></tr>`)}</tbody></table></div></section>`;
}

/** One queue: whether it keeps up, who waits in it, who works on it, and its settings. */

import { may, turnQueue } from "../deeds.js";
import { instant, number, secondsSince, shortId, span } from "../format.js";
import { useKeys } from "../keys.js";
import { useBoard } from "../live.js";
import { FlowPlot } from "../parts/charts.js";
import { Button } from "../parts/controls.js";
import { useAsk } from "../parts/data.js";
import { html } from "../parts/html.js";
import { Empty } from "../parts/notes.js";
import { attempts } from "../parts/joblist.js";
import { Asked, Head, List, Section, Table } from "../parts/page.js";
import { useCommands } from "../parts/palette.js";
import { State } from "../parts/state.js";
import { go, href } from "../route.js";
import { QueueSettings } from "./queue_settings.js";
import { JobCell } from "./workers.js";

const HARBOR = "*";

export function QueuePage({ name, route }) {
  const isHarbor = name === HARBOR;
  const info = useAsk(["queues", name], {}, { every: 5 });
  const row = useBoard()?.queues.find((one) => one.name === name);
  const mayChange = may("configure");
  const queue = info.answer && { ...row, ...info.answer, name }, word = queue?.paused ? "Resume" : "Pause";
  const turn = () => turnQueue(queue, info.ask);
  useKeys({ Esc: () => go(href("queues")) });
  useCommands([mayChange && queue && [`${word} this queue`, turn, "", !queue.paused && "paused"]]);
  return html`
    <${Head} trail=${[["Queues", href("queues")]]} here=${isHarbor ? "all" : name} heading=${isHarbor ? "All queues together" : name} pill=${queue?.paused && html`<${State} glyph="paused" pill/>`}
      lede=${queue?.text}
      acts=${queue && html`${mayChange && html`<${Button} look=${queue.paused ? "main" : ""} onClick=${turn}>${word}<//>`}
        ${!isHarbor && html`<${Button} href=${href("jobs", [], { q: `queue:${name}` })}>Its jobs<//>`}`}/>
    <${Asked} of=${info}>${(rules) => html`
      ${!isHarbor && html`<${Figures} queue=${queue}/><${Flow} name=${name} window=${route.query.window ?? "1h"}/>`}
      <div class="two"><${Section} heading="Settings" note=${mayChange && "a change counts at once, and can be undone"}>
          <${QueueSettings} queue=${name} rules=${rules} mayChange=${mayChange} route=${route} changed=${info.ask}/><//>
        ${!isHarbor && html`<${AtWork} name=${name}/>`}</div>
      ${!isHarbor && html`<${WhoWaits} name=${name} queue=${queue}/>`}`}<//>`;
}

const Figures = ({ queue }) => html`<dl class="stats">${[
  ["Ready", number(queue.ready), queue.blocked > 0 && `${number(queue.blocked)} blocked`],
  ["Running", number(queue.running), queue.max_running != null && `of ${number(queue.max_running)}`],
  ["Scheduled", number(queue.scheduled)],
  ["Oldest wait", span(queue.oldest_s), queue.target_s != null && `target ${span(queue.target_s)}`],
  ["Failed", number(queue.failed), queue.failed > 0 && "dead letters"],
  ["Completed", number(queue.completed), "kept"],
].map(([word, value, more]) => html`<div class="stat"><dt>${word}</dt><dd>${value}${more && html`<small>${more}</small>`}</dd></div>`)}</dl>`;

function Flow({ name, window }) {
  const { answer: data } = useAsk("series", { window, by: "queue", names: name }, { every: 30 });
  const found = data?.series.find((one) => one.name === name);
  return found && html`<section><${FlowPlot} series=${{ ...data, ...found }} columns=${{ name: "waiting", values: found.waiting, tone: "warn" }}
    label=${({ word }) => `Jobs of ${name} per ${word} that arrived and that were done, and how many waited`}/></section>`;
}

function AtWork({ name }) {
  const asked = useAsk("workers", {}, { every: 5 });
  const found = asked.answer?.items.filter((one) => !one.queues.length || one.queues.includes(name));
  return html`<${Section} heading="Workers" note=${found && number(found.length)} end=${html`<a class="link" href=${href("workers")}>All workers</a>`}>
    <${Asked} of=${asked} rows=${3}>${() => (found.length ? html`<${List} rows=${found.slice(0, 8)}>${(one) => html`<li key=${one.id}>
        <a class="strong cut" href=${href("workers", [one.id])}>${one.name || one.id}</a><span class="dim cut">${one.host}</span>
        <span class="end nowrap">${one.running.length} / ${one.concurrency}</span><span class="dim nowrap fix num">${span(one.latency_s)}</span></li>`}<//>
        ${found.length > 8 && html`<p class="dim gap1">${number(found.length - 8)} more</p>`}`
      : html`<${Empty} heading="Nobody is at work" text="No live worker takes jobs of this queue. Start one:" code=${[`taskharbor worker app:harbor --queues ${name}`]}/>`)}<//><//>`;
}

function WhoWaits({ name, queue }) {
  const q = `queue:${name} state:ready`, { answer: data } = useAsk("jobs", { q, sort: "seq", limit: 10, args: true }, { every: 5 });
  return data?.items.length > 0 && html`<${Section} heading="Who waits" note="the oldest first" end=${html`<a class="link" href=${href("jobs", [], { q })}>All ${number(queue.ready)}</a>`}>
    <${Table} rows=${data.items} columns=${[["Job", "cut tyc", JobCell], ["Priority", "num hide", (job) => job.priority], ["Attempt", "num hide", attempts],
      ["Waits", "num whc", (job) => html`<span title=${instant(job.run_at ?? job.created_at)}>${span(secondsSince(job.run_at ?? job.created_at))}</span>`], ["Id", "num mono dim hide", (job) => shortId(job.id)]]}/><//>`;
}

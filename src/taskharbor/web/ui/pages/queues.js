/** Queues: does each keep up? Worst first. `#/queues/<name>` is the page of one, `#/queues/*` has the settings of all. */

import { may, pauseQueue, resumeQueue } from "../deeds.js";
import { NONE, number, perSecond, span } from "../format.js";
import { useBoard } from "../live.js";
import { Spark } from "../parts/charts.js";
import { Button } from "../parts/controls.js";
import { useAsk } from "../parts/data.js";
import { html, memo } from "../parts/html.js";
import { Empty, Loading, Trouble } from "../parts/notes.js";
import { QueueSign, Running, emptyIn, isLate, needsByQueue, worstFirst } from "../parts/queues.js";
import { useRowKeys } from "../parts/rows.js";
import { href } from "../route.js";
import { QueuePage } from "./queue.js";

export const queuesPage = { Page: Queues, title: (route) => (route.path.length ? `Queue ${route.path[0]}` : "Queues"), hasWindow: true };

function Queues({ route, session }) {
  return route.path.length
    ? html`<${QueuePage} key=${route.path[0]} name=${route.path[0]} route=${route} session=${session}/>`
    : html`<${AllQueues} route=${route} session=${session}/>`;
}

function AllQueues({ route, session }) {
  const board = useBoard();
  const window = route.query.window ?? "1h";
  const names = (board?.queues ?? []).map((queue) => queue.name);
  const series = useAsk(names.length ? "series" : null, { window, by: "queue", names: [...names].sort().join() }, { every: 60 }).data;
  const asked = useAsk(board ? null : "board"); // only until the stream has brought one
  const waiting = new Map((series?.series ?? []).map((one) => [one.name, one.waiting]));
  const mayChange = may(session, "configure");
  useRowKeys();
  const queues = board ? worstFirst(board) : [], needs = board ? needsByQueue(board) : new Map();
  return html`
    <div class="head"><div class="grow"><h1>Queues</h1><p class="lede">${board && queuesLede(queues, needs)}</p></div>
      <div class="acts"><${Button} href=${href("queues", ["*"])}>Settings of all<//></div></div>
    ${!board ? (asked.problem ? html`<${Trouble} problem=${asked.problem} onAgain=${asked.ask}/>` : html`<${Loading}/>`)
      : !queues.length ? html`<${Empty} title="No queue yet" text="A queue appears with its first job." code=${["send_welcome.enqueue(user_id=7)"]}/>`
      : html`<div class="card"><table class="cards"><thead><tr><th>Queue</th><th class="num">Ready</th><th class="w160">Running</th><th class="num">In /s</th><th class="num">Done /s</th>
          <th class="num">Oldest</th><th class="num">Empty in</th><th class="w120">Waiting, ${window.replace(/(\d+)/, "$1 ")}</th><th class="num">Failed</th>${mayChange && html`<th class="num"><span class="sr">Pause or resume</span></th>`}</tr></thead>
        <tbody>${queues.map((queue) => html`<${WideQueueRow} key=${queue.name} queue=${queue} need=${needs.get(queue.name)} waiting=${waiting.get(queue.name)} mayChange=${mayChange}/>`)}</tbody></table></div>`}`;
}

const BEHIND = ["behind", "unserved"];

/** The answer of the page: which fall behind, which are paused, and whether the rest keeps up. */
function queuesLede(queues, needs) {
  if (!queues.length) return "";
  const behind = queues.filter((queue) => !queue.paused && (isLate(queue) || BEHIND.includes(needs.get(queue.name)?.kind)));
  const paused = queues.filter((queue) => queue.paused);
  const good = queues.length - behind.length - paused.length;
  const list = (some) => some.slice(0, 3).map((queue) => queue.name).join(", ") + (some.length > 3 ? ` and ${number(some.length - 3)} more` : "");
  const parts = [behind.length && `${list(behind)} ${behind.length === 1 ? "falls" : "fall"} behind.`, paused.length && `${list(paused)} ${paused.length === 1 ? "is" : "are"} paused.`,
    good && (behind.length || paused.length ? `${good === 1 ? "The other one keeps" : `The other ${number(good)} keep`} up.` : good === 1 ? "It keeps up." : `All ${number(good)} keep up.`)];
  return parts.filter(Boolean).join(" ");
}

const WideQueueRow = memo(({ queue, need, waiting, mayChange }) => {
  const tone = need?.level === "bad" ? "bad" : need ? "warn" : queue.paused ? "ink" : "acc";
  const toggle = () => (queue.paused ? resumeQueue : pauseQueue)(queue.name);
  const empty = emptyIn(queue);
  return html`<tr><td><span class="row"><a class="strong cut" data-row href=${href("queues", [queue.name])}>${queue.name}</a><${QueueSign} queue=${queue} need=${need}/></span></td>
    <td class="num">${number(queue.ready)}<span class="tag"> ready</span></td>
    <td class="narrow left dim">${perSecond(queue.arrived_per_s)} in, ${perSecond(queue.done_per_s)} done /s</td>
    <td class="hide"><${Running} queue=${queue}/></td>
    <td class="num hide">${perSecond(queue.arrived_per_s)}</td><td class="num hide">${perSecond(queue.done_per_s)}</td>
    <td class="num"><span class="tag">oldest </span>${span(queue.oldest_s)}</td>
    <td class=${`num hide${["now", "paused", NONE].includes(empty) ? " dim" : ""}`}>${empty}</td>
    <td class="hide">${waiting && html`<${Spark} values=${waiting} tone=${tone} width=${104} height=${22}/>`}</td>
    <td class="num hide">${queue.failed ? html`<a class="link" href=${href("jobs", [], { q: `queue:${queue.name} state:failed` })}>${number(queue.failed)}</a>` : NONE}</td>
    ${mayChange && html`<td class="num hide"><${Button} kind="bare small" aria-label=${`${queue.paused ? "Resume" : "Pause"} ${queue.name}`} onClick=${toggle}>${queue.paused ? "Resume" : "Pause"}<//></td>`}</tr>`;
});

/** Queues as rows, on the overview and on their own page. Worst first, and rows change places only when a queue changes its rank. */

import { NONE, number, perSecond, span } from "../format.js";
import { href } from "../route.js";
import { Bar, Spark } from "./charts.js";
import { html, memo } from "./html.js";
import { Icon } from "./icons.js";
import { Shape } from "./state.js";

/** 0 is worst. The exact wait does not count, so that the table holds still. */
function rank(queue, need) {
  if (need) return need.level === "bad" ? 0 : 1;
  if (queue.paused) return 5;
  if (isLate(queue)) return 2;
  return queue.ready + queue.running > 0 ? 3 : 4;
}

export const isLate = (queue) => queue.oldest_s !== null && queue.target_s != null && queue.oldest_s > queue.target_s;

export const needsByQueue = (board) =>
  new Map([...(board.needs ?? [])].reverse().filter((need) => need.queue).map((need) => [need.queue, need]));

export function worstFirst(board) {
  const needs = needsByQueue(board);
  return [...board.queues].sort((a, b) => rank(a, needs.get(a.name)) - rank(b, needs.get(b.name)) || a.name.localeCompare(b.name));
}

/** When it will have nothing left, in words. */
export function emptyIn(queue) {
  if (queue.paused) return "paused";
  if (queue.ready === 0 || (queue.empty_in_s !== null && queue.empty_in_s < 1)) return "now";
  if (queue.empty_in_s !== null && queue.empty_in_s !== undefined) return span(queue.empty_in_s);
  if (queue.arrived_per_s === null || queue.done_per_s === null || queue.arrived_per_s === undefined) return NONE;
  return queue.done_per_s === 0 ? "never" : "growing";
}

export const Running = ({ queue }) => html`<span class="row"><span class="num fix">${number(queue.running)}
  ${queue.max_running !== null && html`<span class="dim"> / ${number(queue.max_running)}</span>`}</span>
  ${queue.max_running !== null && html`<${Bar} height=${4} share=${queue.running / queue.max_running}
    tone=${queue.running >= queue.max_running ? "full" : "run"}/>`}</span>`;

/** What is wrong in a word or two; the title of the sign has the sentence. */
const NEEDS = { behind: "falls behind", unserved: "needs a worker", cause: "new failures" };

/** A sign beside the name: what is wrong, or that it is paused. */
export const QueueSign = ({ queue, need }) => {
  if (need && !queue.paused) {
    return html`<span class=${`st ${need.level === "bad" ? "failed" : "retrying"}`} title=${need.text}>
      <${Icon} name=${need.level === "bad" ? "bad" : "warn"} size=${14} width=${1.5}/><span class="sr">${need.text}</span></span><span class="dim cut">${NEEDS[need.kind]}</span>`;
  }
  return queue.paused && html`<span class="st paused"><${Shape} name="paused"/></span><span class="dim">paused</span>`;
};

const QueueRow = memo(({ queue, need, waiting, window, Cells }) => {
  const tone = need?.level === "bad" ? "bad" : need ? "warn" : queue.paused ? "ink" : "acc";
  const empty = emptyIn(queue);
  return html`<tr><td><span class="row"><a class="strong cut" data-row href=${href("queues", [queue.name])}>${queue.name}</a>
      <${QueueSign} queue=${queue} need=${need}/></span></td>
    <td class="num">${number(queue.ready)}<span class="tag"> ready</span></td>
    <td class="narrow left dim">${perSecond(queue.arrived_per_s)} in, ${perSecond(queue.done_per_s)} done /s</td>
    <td class="hide"><${Running} queue=${queue}/></td>
    <td class="num hide">${perSecond(queue.arrived_per_s)}</td><td class="num hide">${perSecond(queue.done_per_s)}</td>
    <td class="num"><span class="tag">oldest </span>${span(queue.oldest_s)}</td>
    <td class=${`num hide${["now", "paused", NONE].includes(empty) ? " dim" : ""}`}>${empty}</td>
    <td class="hide">${waiting && html`<${Spark} values=${waiting} tone=${tone} width=${120} height=${22} label=${`${queue.name}: waiting jobs, ${window}`}/>`}</td>
    ${Cells && html`<${Cells} queue=${queue}/>`}</tr>`;
});

/** `heads` and `Cells`: more columns of a page. */
export function QueueTable({ board, waiting, window, most, heads, Cells }) {
  const needs = needsByQueue(board);
  return html`<div class="card"><table class="cards"><thead><tr><th>Queue</th><th class="num">Ready</th><th class="w160">Running</th>
    <th class="num">In /s</th><th class="num">Done /s</th><th class="num">Oldest</th><th class="num">Empty in</th>
    <th class="w120">Waiting, ${window}</th>${heads}</tr></thead>
    <tbody>${worstFirst(board).slice(0, most).map((queue) => html`<${QueueRow} key=${queue.name} queue=${queue} need=${needs.get(queue.name)}
      waiting=${waiting?.get(queue.name)} window=${window} Cells=${Cells}/>`)}</tbody></table></div>`;
}

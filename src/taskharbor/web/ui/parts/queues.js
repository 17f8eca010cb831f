/** Queues as rows, on the overview and on their own page. Worst first as of the first look. */

import { NONE, number, perSecond, span } from "../format.js";
import { href } from "../route.js";
import { Bar, Spark } from "./charts.js";
import { html, useRef } from "./html.js";
import { Icon } from "./icons.js";
import { dim, Table } from "./page.js";
import { Shape } from "./state.js";

/** 0 is worst. */
const rank = (queue, need) => (need ? +(need.level !== "bad") : queue.paused ? 5 : isLate(queue) ? 2 : queue.ready + queue.running ? 3 : 4);

export const isLate = (queue) => queue.target_s != null && queue.oldest_s > queue.target_s;

export const needsByQueue = (board) =>
  new Map([...(board.needs ?? [])].reverse().filter((need) => need.queue).map((need) => [need.queue, need]));

/** Rows hold still while a page is open: one that moves puts another queue's button under the pointer. New queues come last. */
export function useWorstFirst(board) {
  const needs = needsByQueue(board), ranks = useRef({}), rankOf = (queue) => (ranks.current[queue.name] ??= ranks.isOld ? 6 : rank(queue, needs.get(queue.name)));
  const rows = [...board.queues].sort((a, b) => rankOf(a) - rankOf(b) || a.name.localeCompare(b.name));
  ranks.isOld = true;
  return rows;
}

/** When it will have nothing left, in words. */
function emptyIn(queue) {
  if (queue.paused) return "paused";
  if (queue.ready === 0 || (queue.empty_in_s ?? 1) < 1) return "now";
  if (queue.empty_in_s != null) return span(queue.empty_in_s);
  if (queue.arrived_per_s == null || queue.done_per_s == null || queue.oldest_s < queue.target_s / 10) return NONE;
  return queue.done_per_s === 0 ? "never" : "growing";
}

const Running = ({ queue: { running, max_running: limit } }) => html`<span class="row"><span class="num fix">${number(running)}
  ${limit !== null && dim(` / ${number(limit)}`)}</span>${limit !== null && html`<${Bar} height=${4} share=${running / limit} tone=${running >= limit ? "full" : "run"}/>`}</span>`;

/** What is wrong in a word or two; the title of the sign has the sentence. */
const NEEDS = { behind: "falls behind", unserved: "needs a worker", cause: "new failures" };

/** A sign beside the name: what is wrong, or that it is paused. */
const QueueSign = ({ queue, need }) => (queue.paused ? html`<span class="st paused"><${Shape} glyph="paused"/></span>${dim("paused")}`
  : need && html`<span class=${`st ${need.level === "bad" ? "failed" : "retrying"}`} title=${need.text}>
    <${Icon} glyph=${need.level === "bad" ? "bad" : "warn"} size=${14} width=${1.5}/><span class="sr">${need.text}</span></span><span class="dim cut">${NEEDS[need.kind]}</span>`);

/** @param {{ board: any, series: any, window: string, most?: number, more?: any[] }} props `more` are further columns of a page */
export function QueueTable({ board, series, window, most, more = [] }) {
  const needs = needsByQueue(board), waiting = new Map(series?.series.map((one) => [one.name, one.waiting]));
  const toneOf = (queue) => ({ bad: "bad", warn: "warn" }[needs.get(queue.name)?.level] ?? (queue.paused ? "ink" : "acc"));
  return html`<${Table} id=${(queue) => queue.name} rows=${useWorstFirst(board).slice(0, most)} columns=${[
    ["Queue", "", (queue) => html`<span class="row"><a class="strong cut" data-row href=${href("queues", [queue.name])}>${queue.name}</a><${QueueSign} queue=${queue} need=${needs.get(queue.name)}/></span>`],
    ["Ready", "num", (queue) => html`${number(queue.ready)}<span class="tag"> ready</span>`],
    ["", "narrow left dim", (queue) => `${perSecond(queue.arrived_per_s)} in, ${perSecond(queue.done_per_s)} done /s`],
    ["Running", "hide c-run", (queue) => html`<${Running} queue=${queue}/>`],
    ["In /s", "num hide", (queue) => perSecond(queue.arrived_per_s)], ["Done /s", "num hide", (queue) => perSecond(queue.done_per_s)],
    ["Oldest", "num", (queue) => html`<span class="tag">oldest </span>${span(queue.oldest_s)}`],
    ["Empty in", "num hide", (queue) => {
      const text = emptyIn(queue);
      return ["now", "paused", NONE].includes(text) ? dim(text) : text;
    }],
    [`Waiting, ${window}`, "hide c-spark", (queue) => waiting.has(queue.name) && html`<${Spark} values=${waiting.get(queue.name)} tone=${toneOf(queue)} width=${120} height=${22} label=${`${queue.name}: waiting jobs, ${window}`}/>`],
    ...more]}/>`;
}

/** The overview: a verdict in words, then the numbers that explain it. */

import { ago, clock, number, percent, rate, span, three, time, zoneName } from "../format.js";
import { useBoard, useTick } from "../live.js";
import { Bar, Columns, marksOf, onLogScale, perSpan, Plot, ratesOf, Spark } from "../parts/charts.js";
import { Button } from "../parts/controls.js";
import { useAsk } from "../parts/data.js";
import { html, useMemo } from "../parts/html.js";
import { Icon } from "../parts/icons.js";
import { Empty, Loading, Trouble } from "../parts/notes.js";
import { isLate, needsByQueue, QueueTable, worstFirst } from "../parts/queues.js";
import { WINDOWS } from "../parts/shell.js";
import { Shape } from "../parts/state.js";
import { href } from "../route.js";

export const overviewPage = { Page: Overview, title: () => "Overview", hasWindow: true };

function Overview({ route, session }) {
  const board = useBoard();
  const first = useAsk(board ? null : "board");
  const seen = board ?? first.data;
  const window = route.query.window ?? "1h";
  const total = useAsk("series", { window, by: "total" }, { every: 15 });
  const measured = useMemo(() => wholeSteps(total.data), [total.data]);
  const byQueue = useAsk("series", { window, by: "queue" }, { every: 30 });
  const waiting = useMemo(() => byQueue.data && new Map(byQueue.data.series.map((one) => [one.name, one.waiting])), [byQueue.data]);
  if (!seen) {
    return html`<div class="head"><div class="grow"><h1>Overview</h1></div></div>
      ${first.problem ? html`<${Trouble} problem=${first.problem} what="The store could not be asked" onAgain=${first.ask}/>` : html`<${Loading} rows=${8}/>`}`;
  }
  if (isUnused(seen)) return html`<${Unused}/>`;
  const words = (WINDOWS.find(([value]) => value === window) ?? [window, window])[1].replace(" m", " min");
  return html`<${Verdict} board=${seen} session=${session}/>
    <section><${Stats} board=${seen} series=${measured}/></section>
    <section class="two"><${Rates} series=${measured} route=${route} problem=${total.problem}/><${Waits} board=${seen}/></section>
    <section id="queues"><div class="cap"><h2>Queues</h2><span class="dim">worst first</span><a class="end link" href="#/queues">All queues</a></div>
      <${QueueTable} board=${seen} waiting=${waiting} window=${words} most=${12}/></section>
    <div class="three"><${Failing} window=${window} words=${words}/><${SlotUse} board=${seen}/><${NextRuns}/></div>`;
}

/** The series of all jobs without the step that is not over yet: half a minute would look like a fall. */
function wholeSteps(data) {
  if (!data?.series.length) return null;
  const { name, ...numbers } = data.series[0];
  const count = Math.floor((Math.min(Date.parse(data.to), clock.now()) - Date.parse(data.from)) / (data.step_s * 1000));
  const cut = Object.fromEntries(Object.entries(numbers).map(([key, values]) => [key, values.slice(0, Math.max(count, 1))]));
  return { ...cut, from: Date.parse(data.from), step_s: data.step_s, marks: data.marks ?? [] };
}

const isUnused = (board) => board.queues.length === 0 && Object.values(board.counts).every((count) => !count);

const Unused = () => html`<div class="head"><div class="grow"><h1>No jobs yet</h1><p class="lede">The store is empty and answers.</p></div></div>
  <${Empty} title="Put the first one in, and it appears here by itself" code=${["send_welcome.enqueue(user_id=7)",
    `curl ${location.origin}/api/jobs -H "Content-Type: application/json" \\\n  -d '{"type": "send_welcome", "payload": {"user_id": 7}}'`]}/>`;

/** "Two things need you", or "All calm": the sentences are the server's, the same as on the command line. */
const Verdict = ({ board }) => html`<div class="head"><div class="grow"><h1>${board.verdict.text}</h1><p class="lede">${board.verdict.detail}</p></div></div>
  ${board.needs.length > 0 && html`<div class="needs">${board.needs.map((need) => html`<${Need} key=${need.kind + need.text} need=${need}/>`)}
    ${board.more > 0 && html`<div class="need"><span></span><div>${number(board.more)} more</div></div>`}</div>`}`;

const Need = ({ need }) => html`<div class=${`need ${need.level}`}><${Icon} name=${need.level === "bad" ? "bad" : "warn"} width=${1.5}/>
  <div><b>${need.text}</b></div><p>${need.detail}</p>
  <div class="acts">${(need.actions ?? []).map((action, index) => html`
    <${Button} key=${action.label} kind=${index ? "bare" : ""} href=${action.view}>${action.label}<//>`)}</div></div>`;

const sum = (queues, name) => queues.reduce((total, queue) => (queue[name] == null ? total : (total ?? 0) + queue[name]), null);

function Stats({ board, series }) {
  const { queues, counts } = board;
  const last = series?.arrived.findLast((value) => value !== null);
  const [arrived, arrivedUnit] = rate(sum(queues, "arrived_per_s") ?? (last == null ? null : last / series.step_s)), [done, doneUnit] = rate(sum(queues, "done_per_s"));
  const failed = sum(queues, "failed_per_s"), ended = sum(queues, "done_per_s");
  const slots = Object.values(board.slots ?? {}).reduce((total, slot) => total + slot.total, 0);
  const oldest = queues.filter((queue) => !queue.paused && queue.oldest_s !== null).sort((a, b) => b.oldest_s - a.oldest_s)[0];
  const share = failed && ended ? ` · ${percent(failed / (failed + ended), three)}` : "";
  const isBehind = (board.needs ?? []).some((need) => need.kind === "behind");
  const some = (values) => values?.some((value) => value > 0);
  return html`<dl class="stats">
    <${Stat} name="Arrived" value=${arrived} unit=${arrivedUnit} values=${series?.arrived} tone="ink"/>
    <${Stat} name="Done" value=${done} unit=${doneUnit} values=${series?.done} tone="acc"/>
    <${Stat} name="Failed" value=${failed === null ? "–" : failed === 0 ? "0" : three(failed * 60)} unit=${failed === null ? "" : `/min${share}`} values=${series?.failed} tone=${some(series?.failed) ? "bad" : "ink"}/>
    <${Stat} name="Running" value=${number(counts.running)} unit=${slots ? `of ${number(slots)} slots` : "jobs"} values=${series?.running} tone="acc"/>
    <${Stat} name="Waiting" value=${number(counts.ready + counts.scheduled + counts.blocked)} unit="jobs" values=${series?.waiting} tone=${isBehind ? "warn" : "ink"}/>
    <${Stat} name="Oldest wait" value=${span(oldest?.oldest_s)} unit=${oldest ? `in ${oldest.name}` : ""} values=${series?.oldest_s} tone=${oldest && isLate(oldest) ? "bad" : "ink"}/>
  </dl>`;
}

const Stat = ({ name, value, unit, values, tone }) => html`<div class="stat"><dt>${name}</dt><dd class="cut">${value}<small>${unit}</small></dd>
  ${values && html`<${Spark} values=${values} tone=${tone}/>`}</div>`;

/** Jobs per second (a minute where few are done), and failed attempts a minute below. */
function Rates({ series, route, problem }) {
  const shown = useMemo(() => {
    if (!series) return null;
    return { ...ratesOf(series, series.step_s), failed: perSpan(series.failed, 60 / series.step_s) };
  }, [series]);
  const at = (index) => new Date(series.from + index * series.step_s * 1000);
  const last = (values) => values.findLast((value) => value !== null) ?? null;
  const zoom = (first, end) => route.set({ window: fitting((end - first) * series.step_s) });
  return html`<div class="col"><div class="cap"><h2>Jobs per ${shown?.word ?? "second"}</h2><span class="end row gap"><span class="key ink"><i></i>arrived</span>
    <span class="key"><i></i>done</span><span class="key bad"><i></i>failed a minute</span></span></div>
    ${!shown?.done.some((value) => value !== null) ? html`<div class="card empty">${problem ? html`<b>No history</b><span class="soft">${problem.message}</span>` : html`<span class="dim">The first full minute appears here.</span>`}</div>`
      : html`<${Plot} at=${at} count=${shown.done.length} marks=${marksOf(series)} read=${three} onWindow=${zoom}
        lines=${[{ name: "arrived", values: shown.arrived, tone: "ink" }, { name: "done", values: shown.done, tone: "acc", isFilled: true }]}
        columns=${{ name: "failed a minute", values: shown.failed, tone: "bad" }}
        label=${`About ${three(last(shown.arrived))} jobs arrive and ${three(last(shown.done))} are done a ${shown.word}. At most ${number(Math.max(0, ...shown.failed))} attempts failed in a minute.`}/>`}</div>`;
}

/** The smallest window that holds so many seconds. */
const SIZES = [["15m", 900], ["1h", 3600], ["6h", 21600], ["24h", 86400], ["7d", 604800]];
const fitting = (seconds) => (SIZES.find(([, size]) => size >= seconds) ?? SIZES.at(-1))[0];

function Waits({ board }) {
  const needs = needsByQueue(board);
  const tone = (queue) => (isLate(queue) ? "bad" : needs.has(queue.name) || queue.oldest_s > queue.target_s / 2 ? "full" : "acc");
  return html`<div class="col"><div class="cap"><h2>Oldest wait</h2><span class="dim">log scale; the mark is the target</span></div>
    <div class="card pad"><ul class="waits">${worstFirst(board).slice(0, 7).map((queue) => html`<li key=${queue.name}>
      <a class="cut" href=${href("queues", [queue.name])}>${queue.name}</a>
      <${Bar} tone=${queue.paused ? "" : tone(queue)} share=${queue.paused || queue.oldest_s === null ? 0 : onLogScale(queue.oldest_s)}
        target=${queue.paused || queue.target_s == null ? null : onLogScale(queue.target_s)}/>
      <span class=${`num nowrap${queue.paused || queue.oldest_s === null ? " dim" : ""}`}>${queue.paused ? "paused" : span(queue.oldest_s)}</span></li>`)}</ul></div></div>`;
}

function Failing({ window, words }) {
  const { data, problem } = useAsk("failures", { window }, { every: 30 });
  const items = (data?.items ?? []).filter((item) => item.status !== "muted").sort((a, b) => b.attempts - a.attempts).slice(0, 3);
  return html`<section><div class="cap"><h2>What fails</h2><span class="dim">${words}</span><a class="end link" href="#/failures">Failures</a></div>
    <ul class="card list">${items.map((item) => html`<li key=${item.cause} class=${item.dead ? "bad" : "warn"}>
      <${Shape} name=${item.dead ? "failed" : "retrying"}/><a class="grow" href=${href("failures", [item.cause], { window })}>
        <span class="cut blk"><span class="strong">${item.title.split(/: /)[0]}</span> <span class="dim">${item.type}</span></span></a>
      <span class="wide"><${Columns} values=${item.per_step} tone=${item.dead ? "bad" : "warn"}/></span>
      <span class="num fix4">${number(item.attempts)}</span></li>`)}
      ${items.length === 0 && html`<li class="dim">${problem ? problem.message : data ? "Nothing failed." : ""}</li>`}</ul></section>`;
}

function SlotUse({ board }) {
  const slots = Object.entries(board.slots ?? {});
  return html`<section><div class="cap"><h2>Slots</h2><span class="dim">as last reported</span><a class="end link" href="#/workers">Workers</a></div>
    <ul class="card list">${slots.map(([name, slot]) => html`<li key=${name}><span class="fix3">${name}</span>
      <${Bar} tone="run" share=${slot.total ? slot.busy / slot.total : 0}/><span class="num fix">${number(slot.busy)} / ${number(slot.total)}</span></li>`)}
      ${slots.length === 0 && html`<li><span class="soft">Nobody is at work. Start a worker: <code>taskharbor worker app:harbor</code></span></li>`}</ul></section>`;
}

function NextRuns() {
  useTick(5);
  const { data } = useAsk("schedules", {}, { every: 30 });
  const items = (data?.items ?? []).filter((item) => item.next_tick_at && !item.paused)
    .sort((a, b) => a.next_tick_at.localeCompare(b.next_tick_at)).slice(0, 3);
  return html`<section><div class="cap"><h2>Next</h2><span class="dim">${zoneName()}</span><a class="end link" href="#/schedules">Schedules</a></div>
    <ul class="card list">${items.map((item) => html`<li key=${item.name}><span class="soft fix4">${time(item.next_tick_at, "min")}</span>
      <span class="cut grow">${item.name}</span><span class="dim nowrap">${ago(item.next_tick_at)}</span></li>`)}
      ${data && items.length === 0 && html`<li class="dim">No schedule is waiting.</li>`}</ul></section>`;
}

/** The overview: a verdict in words, then the numbers that explain it. */

import { ago, clock, number, percent, rate, span, three, time, zoneName } from "../format.js";
import { useBoard, useTick } from "../live.js";
import { Bar, Columns, FlowPlot, onLogScale, Spark } from "../parts/charts.js";
import { Button } from "../parts/controls.js";
import { useAsk } from "../parts/data.js";
import { html, useMemo } from "../parts/html.js";
import { Icon } from "../parts/icons.js";
import { Empty } from "../parts/notes.js";
import { Asked, Cap, Head, List, Section } from "../parts/page.js";
import { isLate, needsByQueue, QueueTable, useWorstFirst } from "../parts/queues.js";
import { WINDOWS } from "../parts/shell.js";
import { Shape } from "../parts/state.js";
import { href } from "../route.js";

export const overviewPage = { Page: Overview, title: () => "Overview", hasWindow: true };

function Overview({ route }) {
  const live = useBoard(), first = useAsk(live ? null : "board"), board = live ?? first.answer;
  const window = route.query.window ?? "1h", words = (WINDOWS.find(([value]) => value === window) ?? ["", window])[1].replace(" m", " min");
  const total = useAsk("series", { window, by: "total" }, { every: 15 });
  const series = useMemo(() => wholeSteps(total.answer), [total.answer]);
  const byQueue = useAsk("series", { window, by: "queue" }, { every: 30 }).answer;
  if (!board) return html`<${Head} heading="Overview"/><${Asked} of=${first} what="The store could not be asked" rows=${8}/>`;
  if (board.queues.length === 0 && Object.values(board.counts).every((count) => !count)) return html`<${Unused}/>`;
  return html`<${Verdict} board=${board}/>
    <section><${Stats} board=${board} series=${series}/></section>
    <section class="two"><${Rates} series=${series} route=${route} problem=${total.problem}/><${Waits} board=${board}/></section>
    <section id="queues"><${Cap} heading="Queues" note="worst first" end=${html`<a class="link" href="#/queues">All queues</a>`}/>
      <${QueueTable} board=${board} series=${byQueue} window=${words} most=${12}/></section>
    <div class="three"><${Failing} window=${window} words=${words}/><${SlotUse} board=${board}/><${NextRuns}/></div>`;
}

/** The series of all jobs without the step that is not over yet: half a minute would look like a fall. */
function wholeSteps(data) {
  if (!data?.series.length) return null;
  const count = Math.floor((Math.min(Date.parse(data.to), clock.now()) - Date.parse(data.from)) / (data.step_s * 1000));
  const cut = Object.entries(data.series[0]).map(([name, values]) => [name, values.slice(0, Math.max(count, 1))]);
  return { ...data, ...Object.fromEntries(cut) };
}

const Unused = () => html`<${Head} heading="No jobs yet" lede="The store is empty and answers."/>
  <${Empty} heading="Put the first one in, and it appears here by itself" code=${["send_welcome.enqueue(user_id=7)",
    `curl ${location.origin}/api/jobs -H "Content-Type: application/json" \\\n  -d '{"type": "send_welcome", "payload": {"user_id": 7}}'`]}/>`;

/** "Two things need you", or "All calm": the sentences are the server's, the same as on the command line. */
const Verdict = ({ board: { verdict, needs, more } }) => html`<${Head} heading=${verdict.text} lede=${verdict.detail}/>
  ${needs.length > 0 && html`<div class="needs">${needs.map((need) => html`<div key=${need.kind + need.text} class=${`need ${need.level}`}><${Icon} glyph=${need.level === "bad" ? "bad" : "warn"} width=${1.5}/>
    <div><b>${need.text}</b></div><p>${need.detail}</p><div class="acts">${need.actions.map((action, index) => html`<${Button} look=${index ? "bare" : ""} href=${action.view}>${action.label}<//>`)}</div></div>`)}
    ${more > 0 && html`<div class="need"><span></span><div>${number(more)} more</div></div>`}</div>`}`;

function Stats({ board: { queues, counts, slots, needs }, series }) {
  const sum = (name) => queues.reduce((total, queue) => (queue[name] == null ? total : (total ?? 0) + queue[name]), null);
  const last = series?.arrived.findLast((value) => value !== null);
  const failed = sum("failed_per_s"), ended = sum("done_per_s");
  const places = Object.values(slots ?? {}).reduce((total, slot) => total + slot.total, 0);
  const oldest = queues.filter((queue) => queue.oldest_s !== null).sort((a, b) => b.oldest_s - a.oldest_s)[0];
  const share = failed && ended ? ` · ${percent(failed / (failed + ended), three)}` : "";
  return html`<dl class="stats">${[
    ["Arrived", ...rate(sum("arrived_per_s") ?? (last == null ? null : last / series.step_s)), "arrived", "ink"],
    ["Done", ...rate(ended), "done", "acc"],
    ["Failed", failed === 0 ? "0" : three(failed && failed * 60), failed === null ? "" : `/min${share}`, "failed", series?.failed.some((value) => value > 0) ? "bad" : "ink"],
    ["Running", number(counts.running), places ? `of ${number(places)} slots` : "jobs", "running", "acc"],
    ["Waiting", number(counts.ready + counts.scheduled + counts.blocked), "jobs", "waiting", needs.some((need) => need.kind === "behind") ? "warn" : "ink"],
    ["Oldest wait", span(oldest?.oldest_s), oldest && `in ${oldest.name}`, "oldest_s", oldest && isLate(oldest) ? "bad" : "ink"],
  ].map(([word, value, unit, name, tone]) => html`<div class="stat"><dt>${word}</dt><dd class="cut">${value}<small>${unit}</small></dd>${series && html`<${Spark} values=${series[name]} tone=${tone}/>`}</div>`)}</dl>`;
}

/** Jobs per second (a minute where few are done), and failed attempts a minute below. */
function Rates({ series, route, problem }) {
  const failed = series?.failed.map((value) => (value == null ? null : (value * 60) / series.step_s));
  const last = (values) => three(values.findLast((value) => value !== null));
  return html`<div class="col"><${FlowPlot} series=${series ?? {}} columns=${{ name: "failed a minute", values: failed, tone: "bad" }} onWindow=${(first, end) => route.set({ window: fitting((end - first) * series.step_s) })}
    none=${!series?.done.some((value) => value !== null) && html`<div class="card empty">${problem ? html`<b>No history</b><span class="soft">${problem.message}</span>` : html`<span class="dim">The first full minute appears here.</span>`}</div>`}
    label=${({ word, came, went }) => `About ${last(came)} jobs arrive and ${last(went)} are done a ${word}. At most ${number(Math.max(0, ...(failed ?? [])))} attempts failed in a minute.`}/></div>`;
}

/** The smallest window that holds so many seconds. */
const fitting = (seconds) => WINDOWS.find(([, , size]) => size >= seconds)[0];

function Waits({ board }) {
  const needs = needsByQueue(board);
  return html`<div class="col"><${Cap} heading="Oldest wait" note="log scale; the mark is the target"/>
    <div class="card pad"><ul class="waits">${useWorstFirst(board).slice(0, 7).map((queue) => {
      const { name, oldest_s: oldest, target_s: target } = queue, isNone = queue.paused || oldest === null;
      return html`<li key=${name}><a class="cut" href=${href("queues", [name])}>${name}</a>
        <${Bar} tone=${queue.paused ? "" : isLate(queue) ? "bad" : needs.has(name) || oldest > target / 2 ? "full" : "acc"} share=${isNone ? 0 : onLogScale(oldest)} target=${queue.paused || target == null ? null : onLogScale(target)}/>
        <span class=${`num nowrap${isNone ? " dim" : ""}`}>${queue.paused ? "paused" : span(oldest)}</span></li>`;
    })}</ul></div></div>`;
}

const Lines = ({ page, word, children, ...rest }) => html`<${Section} ...${rest} end=${html`<a class="link" href=${href(page)}>${word}</a>`}>${children}<//>`;

function Failing({ window, words }) {
  const { answer: data, problem } = useAsk("failures", { window }, { every: 30 });
  const items = (data?.items ?? []).filter((item) => item.status !== "muted").slice(0, 3);
  return html`<${Lines} heading="What fails" note=${words} page="failures" word="Failures"><${List} rows=${items} none=${problem ? problem.message : data && "Nothing failed."}>${(item) => html`
    <li key=${item.cause} class=${item.dead ? "bad" : "warn"}><${Shape} glyph=${item.dead ? "failed" : "retrying"}/><a class="grow" href=${href("failures", [item.cause], { window })}>
        <span class="cut blk"><span class="strong">${item.title.split(": ")[0]}</span> <span class="dim">${item.type}</span></span></a>
      <span class="wide"><${Columns} values=${item.per_step} tone=${item.dead ? "bad" : "warn"}/></span><span class="num fix4">${number(item.attempts)}</span></li>`}<//><//>`;
}

const SlotUse = ({ board }) => html`<${Lines} heading="Slots" note="as last reported" page="workers" word="Workers">
  <${List} rows=${Object.entries(board.slots ?? {})} none=${html`<span class="soft">Nobody is at work. Start a worker: <code>taskharbor worker app:harbor</code></span>`}>${([name, slot]) => html`
    <li key=${name}><span class="fix3">${name}</span><${Bar} tone="run" share=${slot.busy / slot.total}/><span class="num fix">${number(slot.busy)} / ${number(slot.total)}</span></li>`}<//><//>`;

function NextRuns() {
  useTick(5);
  const { answer: data } = useAsk("schedules", {}, { every: 30 });
  const items = (data?.items ?? []).filter((item) => item.next_tick_at && !item.paused).sort((a, b) => a.next_tick_at.localeCompare(b.next_tick_at)).slice(0, 3);
  return html`<${Lines} heading="Next" note=${zoneName()} page="schedules" word="Schedules"><${List} rows=${items} none=${data && "No schedule is waiting."}>${(item) => html`
    <li key=${item.name}><span class="soft fix4">${time(item.next_tick_at, "min")}</span><span class="cut grow">${item.name}</span><span class="dim nowrap">${ago(item.next_tick_at)}</span></li>`}<//><//>`;
}

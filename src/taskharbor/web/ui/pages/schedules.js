/** Schedules: what runs by the clock, when next, and how the last runs ended. `#/schedules/<name>` is the page of one. */

import { api } from "../api.js";
import { change, may } from "../deeds.js";
import { NONE, ago, instant, number, plural, secondsSince, shortId, span, dateText } from "../format.js";
import { useTick } from "../live.js";
import { Button } from "../parts/controls.js";
import { useAsk } from "../parts/data.js";
import { html } from "../parts/html.js";
import { Empty, Loading, Trouble } from "../parts/notes.js";
import { useRowKeys } from "../parts/rows.js";
import { Shape, State } from "../parts/state.js";
import { say, sayProblem } from "../parts/toast.js";
import { href } from "../route.js";
import { Preview, SchedulePage } from "./schedule.js";

export const schedulesPage = { Page: Schedules, title: (route) => (route.path.length ? `Schedule ${route.path[0]}` : "Schedules") };

const EXAMPLE = '@harbor.cron("0 3 * * *", timezone="Europe/Berlin")\n@harbor.task\ndef nightly_export() -> None: ...';

function Schedules({ route, session }) {
  return route.path.length ? html`<${SchedulePage} key=${route.path[0]} name=${route.path[0]} session=${session}/>` : html`<${AllSchedules} route=${route} session=${session}/>`;
}

function AllSchedules({ route, session }) {
  const { data, problem, ask } = useAsk("schedules", {}, { every: 10 });
  useRowKeys();
  useTick(1);
  const items = [...(data?.items ?? [])].sort((a, b) => (nextAt(a) < nextAt(b) ? -1 : nextAt(a) > nextAt(b) ? 1 : a.name.localeCompare(b.name)));
  return html`
    <div class="head"><div class="grow"><h1>Schedules</h1><p class="lede">${data && schedulesLede(items)}</p></div></div>
    ${problem && html`<div class="gapb"><${Trouble} problem=${problem} onAgain=${ask}/></div>`}
    ${!data ? !problem && html`<${Loading}/>`
      : !items.length ? html`<${Empty} title="No schedule yet" text="Declare one beside its task; it appears here when a worker has started." code=${[EXAMPLE]}/>`
      : html`<div class="card"><table class="cards scheds"><thead><tr><th>Schedule</th><th>Makes</th><th>When</th><th>Last runs</th><th class="num">Last</th><th class="num">Next</th>${may(session, "schedule") && html`<th><span class="sr">Actions</span></th>`}</tr></thead>
        <tbody>${items.map((item) => html`<${ScheduleRow} key=${item.name} item=${item} session=${session} ask=${ask}/>`)}</tbody></table></div>`}
    ${data && html`<${Preview} route=${route}/>`}`;
}

/** What comes next, and what is wrong: one sentence. */
function schedulesLede(items) {
  if (!items.length) return "";
  const next = items.find((item) => item.next_tick_at);
  const late = items.filter(isScheduleLate), failing = items.filter((item) => !item.paused && lastState(item) === "failed"), paused = items.filter((item) => item.paused).length;
  const parts = [next ? `Next: ${next.name}, ${ago(next.next_tick_at)}.` : "Nothing is due.",
    late.length && `${names(late)} ${late.length === 1 ? "is" : "are"} late.`, failing.length && `The last run of ${names(failing)} failed.`, paused && `${number(paused)} ${paused === 1 ? "is" : "are"} paused.`];
  return parts.filter(Boolean).join(" ");
}

const nextAt = (item) => item.next_tick_at ?? "9";
const names = (items) => items.slice(0, 3).map((item) => item.name).join(", ") + (items.length > 3 ? ` and ${number(items.length - 3)} more` : "");
export const lastState = (item) => item.runs?.[0]?.state ?? null;
export const isScheduleLate = (item) => !item.paused && item.next_tick_at !== null && secondsSince(item.next_tick_at) > 60;

/** Every 5 min, or the cron line with its zone. */
export const Rule = ({ item }) => (item.cron ? html`<code>${item.cron}</code> <span class="dim">${item.timezone}</span>` : html`every ${span(item.every_s, 2)}`);

function ScheduleRow({ item, session, ask }) {
  return html`<tr><td class="tyc"><span class="row"><a class="strong cut" data-row href=${href("schedules", [item.name])}>${item.name}</a>
      ${item.paused && html`<${State} name="paused"/>`}${isScheduleLate(item) && html`<${State} name="lost" word="late" tone="retrying"/>`}${item.is_undeclared && html`<span class="chip" title="No live program declares it any more">not declared</span>`}</span></td>
    <td class="hide nowrap">${item.type} <span class="dim">in ${item.queue}</span></td>
    <td class="stc nowrap"><${Rule} item=${item}/></td>
    <td class="hide"><${Runs} item=${item}/></td>
    <td class="num hide nowrap" title=${instant(item.fired_at)}>${item.fired_at ? ago(item.fired_at) : html`<span class="dim">never</span>`}</td>
    <td class="num whc nowrap" title=${instant(item.next_tick_at)}>${item.paused ? html`<span class="dim">paused</span>` : item.next_tick_at ? ago(item.next_tick_at) : NONE}</td>
    ${may(session, "schedule") && html`<td class="num hide"><${Deeds} item=${item} ask=${ask}/></td>`}</tr>`;
}

/** The last 20 runs as shapes, the newest at the right; the page of the schedule lists them. */
export function Runs({ item }) {
  const runs = [...(item.runs ?? [])].reverse();
  if (!runs.length) return html`<span class="dim">none known</span>`;
  const failed = runs.filter((run) => run.state === "failed").length;
  return html`<span class="runs" role="img" aria-label=${`${plural(runs.length, "run")}, ${failed ? `${number(failed)} failed` : "none failed"}`}>${runs.map((run) => html`
    <span key=${run.tick} class=${`st ${run.state ?? "gone"}`} title=${`${dateText(run.tick)}: ${run.state ?? "not kept any more"}`}><${Shape} name=${run.state ?? "cancelled"}/></span>`)}</span>`;
}

export const setPaused = (item, isPaused, done) => change(`${item.name} is ${isPaused ? "paused" : "at work again"}`,
  () => api.post(`schedules/${encodeURIComponent(item.name)}/${isPaused ? "pause" : "resume"}`),
  () => api.post(`schedules/${encodeURIComponent(item.name)}/${isPaused ? "resume" : "pause"}`), done);

/** Make its job now. Undo cancels the job if it has not begun. */
export async function runNow(item, done) {
  try {
    const made = await api.post(`schedules/${encodeURIComponent(item.name)}/run`);
    say(`${item.type} ${shortId(made.id)} is enqueued`, { undo: () => takeBack(made.id, done) });
    done();
  } catch (problem) { sayProblem(problem, "No job was made"); }
}

async function takeBack(id, done) {
  try {
    const job = await api.get(`jobs/${id}`);
    if (!["ready", "scheduled", "blocked"].includes(job.state)) { say(`Too late: it is ${job.state}`); return; }
    await api.post(`jobs/${id}/cancel`);
    say("Taken back: the job is cancelled and did not run");
  } catch (problem) { sayProblem(problem, "It was not taken back"); }
  done();
}

export const Deeds = ({ item, ask, isLarge = false }) => html`<span class=${isLarge ? "acts" : "acts end-acts"}>
  <${Button} kind=${isLarge ? "" : "bare small"} aria-label=${`Run ${item.name} now`} onClick=${() => runNow(item, ask)}>Run now<//>
  <${Button} kind=${isLarge ? (item.paused ? "main" : "") : "bare small"} aria-label=${`${item.paused ? "Resume" : "Pause"} ${item.name}`} onClick=${() => setPaused(item, !item.paused, ask)}>${item.paused ? "Resume" : "Pause"}<//></span>`;

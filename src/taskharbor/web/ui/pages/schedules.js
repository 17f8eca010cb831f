/** Schedules: what runs by the clock, when next, and how the last runs ended. `#/schedules/<name>` is the page of one. */

import { api } from "../api.js";
import { change, may, takeBack } from "../deeds.js";
import { ago, number, plural, secondsSince, shortId, span, dateText } from "../format.js";
import { useTick } from "../live.js";
import { Button } from "../parts/controls.js";
import { useAsk } from "../parts/data.js";
import { html } from "../parts/html.js";
import { Empty } from "../parts/notes.js";
import { Ago, Asked, dim, Head, Table } from "../parts/page.js";
import { useRowKeys } from "../parts/rows.js";
import { Shape, State } from "../parts/state.js";
import { say, trying } from "../parts/toast.js";
import { href } from "../route.js";
import { Preview, SchedulePage } from "./schedule.js";

export const schedulesPage = { Page: Schedules, title: (route) => (route.path.length ? `Schedule ${route.path[0]}` : "Schedules") };

const EXAMPLE = '@harbor.cron("0 3 * * *", timezone="Europe/Berlin")\n@harbor.task\ndef nightly_export() -> None: ...';

function Schedules({ route }) {
  return route.path.length ? html`<${SchedulePage} name=${route.path[0]}/>` : html`<${AllSchedules} route=${route}/>`;
}

function AllSchedules({ route }) {
  const asked = useAsk("schedules", {}, { every: 10 });
  useRowKeys();
  useTick(1);
  const items = [...(asked.answer?.items ?? [])].sort((a, b) => nextAt(a).localeCompare(nextAt(b)) || a.name.localeCompare(b.name));
  return html`<${Head} heading="Schedules" lede=${asked.answer && schedulesLede(items)}/>
    <${Asked} of=${asked}>${() => html`${!items.length ? html`<${Empty} heading="No schedule yet" text="Declare one beside its task; it appears here when a worker has started." code=${[EXAMPLE]}/>`
      : html`<${Table} id=${(item) => item.name} rows=${items} columns=${[
        ["Schedule", "tyc", (item) => html`<span class="row"><a class="strong cut" data-row href=${href("schedules", [item.name])}>${item.name}</a>
          ${item.paused && html`<${State} glyph="paused"/>`}${isScheduleLate(item) && html`<${State} glyph="lost" word="late" tone="retrying"/>`}${item.is_undeclared && html`<span class="chip" title="No live program declares it any more">not declared</span>`}</span>`],
        ["Makes", "hide nowrap", (item) => html`${item.type} ${dim(`in ${item.queue}`)}`],
        ["When", "stc nowrap", Rule], ["Last runs", "hide", Runs],
        ["Last", "num hide nowrap", (item) => html`<${Ago} at=${item.fired_at} none=${dim("never")}/>`],
        ["Next", "num whc nowrap", (item) => (item.paused ? dim("paused") : html`<${Ago} at=${item.next_tick_at}/>`)],
        may("schedule") && [html`<span class="sr">Actions</span>`, "num hide", (item) => html`<${Deeds} item=${item} ask=${asked.ask}/>`],
      ]}/>`}<${Preview} route=${route}/>`}<//>`;
}

/** What comes next, and what is wrong: one sentence. */
function schedulesLede(items) {
  if (!items.length) return "";
  const next = items.find((item) => item.next_tick_at);
  const late = items.filter(isScheduleLate), failing = items.filter((item) => !item.paused && lastState(item) === "failed"), paused = items.filter((item) => item.paused).length;
  const parts = [next ? `Next: ${next.name}, ${ago(next.next_tick_at)}.` : "Nothing is due.",
    late.length && `${names(late)} ${late.length === 1 ? "is" : "are"} late.`, failing.length && `The last run of ${names(failing)} failed.`, paused && `${plural(paused, "is", "are")} paused.`];
  return parts.filter(Boolean).join(" ");
}

const nextAt = (item) => item.next_tick_at ?? "9";
/** The first three names, and how many more there are. */
const names = (items) => items.slice(0, 3).map((item) => item.name).join(", ") + (items.length > 3 ? ` and ${number(items.length - 3)} more` : "");
export const lastState = (item) => item.runs?.[0]?.state;
export const isScheduleLate = (item) => !item.paused && secondsSince(item.next_tick_at) > 60;

/** Every 5 min, or the cron line with its zone. */
export const Rule = (item) => (item.cron ? html`<code>${item.cron}</code> ${dim(item.timezone)}` : `every ${span(item.every_s, 2)}`);

/** The last 20 runs as shapes, the newest at the right; the page of the schedule lists them. */
function Runs(item) {
  const runs = [...(item.runs ?? [])].reverse(), failed = runs.filter((run) => run.state === "failed").length;
  return !runs.length ? dim("none known") : html`<span class="runs" role="img" aria-label=${`${plural(runs.length, "run")}, ${failed ? number(failed) : "none"} failed`}>${runs.map((run) => html`
    <span class=${`st ${run.state ?? "gone"}`} title=${`${dateText(run.tick)}: ${run.state ?? "not kept any more"}`}><${Shape} glyph=${run.state ?? "cancelled"}/></span>`)}</span>`;
}

const tell = (item, verb) => api.post(["schedules", item.name, verb]);

/** [what a button says, what it does], for a schedule as it is now. */
export const deedsOf = (item, done) => {
  const [word, verb, back] = item.paused ? ["Resume", "resume", "pause"] : ["Pause", "pause", "resume"];
  return [
    // Its job is made now. Undo cancels the job if it has not begun.
    ["Run", () => trying("No job was made", async () => {
      const made = await tell(item, "run");
      say(`${item.type} ${shortId(made.id)} is enqueued`, { undo: () => takeBack(made.id, done) });
      done();
    })],
    [word, () => change(`${item.name} is ${item.paused ? "at work again" : "paused"}`, () => tell(item, verb), () => tell(item, back), done)],
  ];
};

export const Deeds = ({ item, ask, isLarge }) => html`<span class=${isLarge ? "acts" : "acts end-acts"}>${deedsOf(item, ask).map(([word, act]) => html`
  <${Button} look=${!isLarge ? "bare small" : word === "Resume" ? "main" : ""} aria-label=${`${word} ${item.name}${word === "Run" ? " now" : ""}`} onClick=${act}>${word}${word === "Run" && " now"}<//>`)}</span>`;

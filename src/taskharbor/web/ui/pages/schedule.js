/** One schedule: its next times with the changes of its clock, its last runs; and a field to try a cron line. */

import { api } from "../api.js";
import { may } from "../deeds.js";
import { LANGUAGE, ago, instant, shortId, dateText, zoneName } from "../format.js";
import { useKeys } from "../keys.js";
import { useTick } from "../live.js";
import { Button, Input } from "../parts/controls.js";
import { useAsk } from "../parts/data.js";
import { html, useEffect, useState } from "../parts/html.js";
import { Banner, Empty } from "../parts/notes.js";
import { Ago, Asked, Facts, Head, List, Section } from "../parts/page.js";
import { useCommands } from "../parts/palette.js";
import { State } from "../parts/state.js";
import { go, href } from "../route.js";
import { Deeds, deedsOf, isScheduleLate, lastState, Rule } from "./schedules.js";

export function SchedulePage({ name }) {
  const asked = useAsk("schedules", {}, { every: 10 });
  const item = asked.answer?.items.find((one) => one.name === name);
  const mayChange = may("schedule") && item;
  useTick(1);
  useKeys({ Esc: () => go(href("schedules")) });
  useCommands(mayChange ? deedsOf(item, asked.ask).map(([word, act]) => [`${word} ${name}${word === "Run" ? " now" : ""}`, act, "", word === "Run" ? "" : "paused"]) : []);
  return html`
    <${Head} trail=${[["Schedules", href("schedules")]]} here=${name} heading=${name} pill=${item?.paused && html`<${State} glyph="paused" pill/>`} lede=${item && scheduleLede(item)}
      acts=${mayChange && html`<${Deeds} item=${item} ask=${asked.ask} isLarge/>`}/>
    <${Asked} of=${asked}>${() => (!item ? html`<${Empty} heading="There is no schedule of this name" acts=${html`<${Button} href=${href("schedules")}>All schedules<//>`}/>`
      : html`<div class="cols"><div class="two even"><${Section} look="first" heading="Next times" note=${item.cron ? item.timezone : zoneName()}><${NextTimes} item=${item}/><//>
          <${Section} look="first" heading="Last runs"><${List} rows=${item.runs ?? []} none="No run is known. They are remembered for seven days.">${(run) => html`
            <li><${State} glyph=${run.state ?? "cancelled"} word=${run.state ?? "not kept"} tone=${run.state ?? ""}/>
              <span title=${instant(run.tick)}>${dateText(run.tick)}</span><a class="end link mono" href=${href("jobs", [run.job])}>${shortId(run.job)}</a></li>`}<//><//></div>
        <${Facts} rows=${[["Rule", Rule(item)], ["Makes", item.type], ["In queue", html`<a class="link" href=${href("queues", [item.queue])}>${item.queue}</a>`],
          ["Missed ticks", MISFIRES[item.misfire] ?? item.misfire], ["Fired last", html`<${Ago} at=${item.fired_at} none="never"/>`],
          ["Declared", item.is_undeclared ? "not any more" : html`<${Ago} at=${item.declared_at}/>`]]}/></div>`)}<//>`;
}

const MISFIRES = { latest: "only the latest runs", skip: "are skipped", all: "all run" };

function scheduleLede(item) {
  if (item.paused) return "Paused: it makes no job. “Run now” still works.";
  if (item.is_undeclared) return "No live program declares it any more, so it makes no job.";
  const last = lastState(item) === "failed" ? " Its last run failed." : "", next = ago(item.next_tick_at);
  if (!item.next_tick_at) return `It has no next time.${last}`;
  return isScheduleLate(item) ? `It is late: it was due ${next}. Does a scheduler run?${last}` : `It runs next ${next}.${last}`;
}

/** The next ten times of a cron line, with the changes of its clock: { found } or { problem }. */
function useTimes(cron, timezone, wait = 0) {
  const [state, become] = useState({});
  useEffect(() => {
    become((before) => (cron ? before : {}));
    if (!cron) return undefined;
    let isOver = false;
    const take = (next) => { if (!isOver) become(next); };
    const timer = setTimeout(() => api.post("schedules/preview", { cron, timezone, n: 10 }).then((found) => take({ found }), (problem) => take({ problem })), wait);
    return () => { isOver = true; clearTimeout(timer); };
  }, [cron, timezone]);
  return state;
}

function NextTimes({ item }) {
  const { found } = useTimes(item.cron, item.timezone);
  return item.paused ? html`<${List} rows=${[]} none="None while it is paused."/>` : html`<${Times} next=${item.next} ...${found} zone=${item.cron ? item.timezone : zoneName()}/>`;
}

/** Each in the schedule's own zone, beside yours where they differ.
 *
 * @param {{ next?: string[], changes?: string[], zone: string }} props */
const Times = ({ next = [], changes = [], zone }) => html`<${List} look="times" rows=${next} none="No next time.">${(at) => html`
    <li><span>${zoneFormat(zone).format(new Date(at))}</span>${zone !== zoneName() && html`<span class="dim cut">${dateText(at)} here</span>`}<span class="end dim nowrap">${ago(at)}</span></li>`}<//>
  ${changes.map((text) => html`<div class="gap1"><${Banner} plain icon="schedules">${text}<//></div>`)}`;

function zoneFormat(timeZone) {
  try { return new Intl.DateTimeFormat(LANGUAGE, { weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23", timeZone }); } catch { return zoneFormat("UTC"); }
}

/** Try a cron line before it goes into the code. What is typed is in the address. */
export function Preview({ route }) {
  const { cron = "", tz = zoneName() } = route.query;
  const { found, problem } = useTimes(cron.trim(), tz, 250);
  return html`<${Section} heading="Try a rule" note="changes nothing">
    <div class="two even"><div class="card pad">
      <${Input} id="cron" look="mono" label="Cron" hint="minute hour day month weekday, as in 30 2 * * *" error=${problem?.message} value=${cron} placeholder="30 2 * * *" spellcheck=${false} onInput=${(event) => route.set({ cron: event.target.value })}/>
      <${Input} id="tz" label="Time zone" value=${tz} spellcheck=${false} onChange=${(event) => route.set({ tz: event.target.value })}/></div>
      <div>${found ? html`<${Times} ...${found} zone=${tz}/>` : html`<p class="dim">The next ten times appear here, with what summer time does to them.</p>`}</div></div><//>`;
}

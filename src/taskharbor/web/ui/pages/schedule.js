/** One schedule: its next times with the changes of its clock, its last runs; and a field to try a cron line. */

import { api } from "../api.js";
import { may } from "../deeds.js";
import { LANGUAGE, NONE, ago, instant, shortId, dateText, zoneName } from "../format.js";
import { useKeys } from "../keys.js";
import { useTick } from "../live.js";
import { useAsk } from "../parts/data.js";
import { Field } from "../parts/controls.js";
import { html, useEffect, useState } from "../parts/html.js";
import { Banner, Empty, Loading, Trouble } from "../parts/notes.js";
import { useCommands } from "../parts/palette.js";
import { State } from "../parts/state.js";
import { go, href } from "../route.js";
import { Deeds, Rule, isScheduleLate, lastState, runNow, setPaused } from "./schedules.js";

const TIMES = 10;

export function SchedulePage({ name, session }) {
  const { data, problem, ask } = useAsk("schedules", {}, { every: 10 });
  const item = data?.items.find((one) => one.name === name);
  const mayChange = may(session, "schedule") && item;
  useTick(1);
  useKeys({ Esc: () => go(href("schedules")) });
  useCommands(mayChange ? [[`Run ${name} now`, () => runNow(item, ask)], [`${item.paused ? "Resume" : "Pause"} ${name}`, () => setPaused(item, !item.paused, ask), "", "paused"]] : []);
  return html`
    <div class="head"><div class="grow"><p class="crumb"><a class="link" href=${href("schedules")}>Schedules</a> / <span class="dim">${name}</span></p>
        <h1 class="row title">${name}${item?.paused && html`<${State} name="paused" pill/>`}</h1><p class="lede">${item && scheduleLede(item)}</p></div>
      ${mayChange && html`<div class="acts"><${Deeds} item=${item} ask=${ask} isLarge=${true}/></div>`}</div>
    ${problem && html`<div class="gapb"><${Trouble} problem=${problem} onAgain=${ask}/></div>`}
    ${!data ? !problem && html`<${Loading}/>`
      : !item ? html`<${Empty} title="There is no schedule of this name" acts=${html`<a class="btn" href=${href("schedules")}>All schedules</a>`}/>`
      : html`<div class="cols"><div class="two even"><section class="first"><div class="cap"><h2>Next times</h2><span class="dim">${item.cron ? item.timezone : zoneName()}</span></div><${NextTimes} item=${item}/></section>
          <section class="first"><div class="cap"><h2>Last runs</h2></div><${Last} item=${item}/></section></div>
        <dl class="card pad facts"><dt>Rule</dt><dd><${Rule} item=${item}/></dd><dt>Makes</dt><dd>${item.type}</dd><dt>In queue</dt><dd><a class="link" href=${href("queues", [item.queue])}>${item.queue}</a></dd>
          <dt>Missed ticks</dt><dd>${MISFIRES[item.misfire] ?? item.misfire}</dd><dt>Fired last</dt><dd title=${instant(item.fired_at)}>${item.fired_at ? ago(item.fired_at) : "never"}</dd>
          <dt>Declared</dt><dd title=${instant(item.declared_at)}>${item.is_undeclared ? "not any more" : item.declared_at ? ago(item.declared_at) : NONE}</dd></dl></div>`}`;
}

const MISFIRES = { latest: "only the latest runs", skip: "are skipped", all: "all run" };

function scheduleLede(item) {
  if (item.paused) return "Paused: it makes no job until it is resumed. “Run now” still works.";
  if (item.is_undeclared) return "No live program declares it any more, so it makes no job.";
  const last = lastState(item) === "failed" ? " Its last run failed." : "";
  if (!item.next_tick_at) return `It has no next time.${last}`;
  return isScheduleLate(item) ? `It is late: it was due ${ago(item.next_tick_at)}. Does a scheduler run?${last}` : `It runs next ${ago(item.next_tick_at)}.${last}`;
}

/** The next times in the schedule's own zone, each beside yours when they differ. */
function NextTimes({ item }) {
  const [found, become] = useState(null);
  useEffect(() => {
    let isOver = false;
    if (item.cron) api.post("schedules/preview", { cron: item.cron, timezone: item.timezone, n: TIMES }).then((answer) => { if (!isOver) become(answer); }, () => {});
    return () => { isOver = true; };
  }, [item.cron, item.timezone]);
  if (item.paused) return html`<ul class="card list"><li class="dim">None while it is paused.</li></ul>`;
  return html`<${Times} times=${found?.next ?? item.next ?? []} changes=${found?.changes ?? []} zone=${item.cron ? item.timezone : zoneName()}/>`;
}

/** @param {{ times: string[], changes: string[], zone: string }} props */
function Times({ times, changes, zone }) {
  const own = zoneFormat(zone), isElsewhere = zone !== zoneName();
  return html`<ul class="card list times">${times.map((at) => html`<li key=${at}><span>${own.format(new Date(at))}</span>${isElsewhere && html`<span class="dim cut">${dateText(at)} here</span>`}<span class="end dim nowrap">${ago(at)}</span></li>`)}
      ${times.length === 0 && html`<li class="dim">No next time.</li>`}</ul>
    ${changes.map((text) => html`<div key=${text} class="gap1"><${Banner} plain icon="schedules">${text}<//></div>`)}`;
}

function zoneFormat(zone) {
  const options = { weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  try { return new Intl.DateTimeFormat(LANGUAGE, { ...options, timeZone: zone }); } catch { return new Intl.DateTimeFormat(LANGUAGE, { ...options, timeZone: "UTC" }); }
}

function Last({ item }) {
  if (!item.runs?.length) return html`<ul class="card list"><li class="dim">No run is known. They are remembered for seven days.</li></ul>`;
  return html`<ul class="card list">${item.runs.map((run) => html`<li key=${run.tick}><${State} name=${run.state ?? "cancelled"} word=${run.state ?? "not kept"} tone=${run.state ?? ""}/>
    <span title=${instant(run.tick)}>${dateText(run.tick)}</span><a class="end link mono" href=${href("jobs", [run.job])}>${shortId(run.job)}</a></li>`)}</ul>`;
}

/** Try a cron line before it goes into the code. What is typed is in the address. */
export function Preview({ route }) {
  const { cron = "", zone: asked = "" } = { cron: route.query.cron, zone: route.query.tz };
  const zone = asked || zoneName();
  const [state, become] = useState({ found: null, problem: null });
  useEffect(() => {
    if (!cron.trim()) { become({ found: null, problem: null }); return undefined; }
    let isOver = false;
    const timer = setTimeout(() => api.post("schedules/preview", { cron: cron.trim(), timezone: zone, n: TIMES })
      .then((found) => { if (!isOver) become({ found, problem: null }); }, (problem) => { if (!isOver) become({ found: null, problem }); }), 250);
    return () => { isOver = true; clearTimeout(timer); };
  }, [cron, zone]);
  return html`<section><div class="cap"><h2>Try a rule</h2><span class="dim">changes nothing</span></div>
    <div class="two even"><div class="card pad"><${Field} label="Cron" id="cron" hint="minute hour day month weekday, as in 30 2 * * *" error=${state.problem?.message}>
        <input id="cron" class="field mono" value=${cron} placeholder="30 2 * * *" spellcheck="false" autocomplete="off" onInput=${(event) => route.set({ cron: event.target.value })}/><//>
      <${Field} label="Time zone" id="tz"><input id="tz" class="field" value=${zone} spellcheck="false" autocomplete="off" onChange=${(event) => route.set({ tz: event.target.value })}/><//></div>
      <div>${state.found ? html`<${Times} times=${state.found.next} changes=${state.found.changes} zone=${zone}/>` : html`<p class="dim">The next ten times appear here, with what summer time does to them.</p>`}</div></div></section>`;
}

/** Failures: every cause once, and which of them are new. `#/failures/<cause>` is the page of one. */

import { NONE, ago, instant, number, plural } from "../format.js";
import { useBoard, useTick } from "../live.js";
import { Columns } from "../parts/charts.js";
import { Segments } from "../parts/controls.js";
import { useAsk } from "../parts/data.js";
import { html } from "../parts/html.js";
import { Empty, Loading, Trouble } from "../parts/notes.js";
import { useRowKeys } from "../parts/rows.js";
import { Shape } from "../parts/state.js";
import { href } from "../route.js";
import { Cause, CausePage, kindText, since } from "./cause.js";

export const failuresPage = { Page: Failures, title: () => "Failures", hasWindow: "24h" };

const SPANS = { "15m": "15 minutes", "1h": "an hour", "6h": "6 hours", "24h": "24 hours", "7d": "7 days", "30d": "30 days" };
const SORTS = {
  dead: ["dead first", (a, b) => b.dead - a.dead || b.attempts - a.attempts],
  new: ["newest cause first", (a, b) => b.first_at.localeCompare(a.first_at)],
  last: ["last failure first", (a, b) => b.last_at.localeCompare(a.last_at)],
  attempts: ["most attempts first", (a, b) => b.attempts - a.attempts],
};

function Failures({ route, session }) {
  return route.path.length
    ? html`<${CausePage} key=${route.path[0]} id=${route.path[0]} session=${session} window=${windowOf(route)}/>`
    : html`<${Causes} route=${route} session=${session}/>`;
}

const windowOf = (route) => (SPANS[route.query.window] ? route.query.window : failuresPage.hasWindow);

function Causes({ route, session }) {
  const { queue = "", release = "", sort = "dead", show = "open", open = "" } = route.query;
  const window = windowOf(route);
  const { data, problem, ask } = useAsk("failures", { window, queue, release }, { every: 15, on: "failures" });
  useRowKeys();
  useTick(5);
  const items = data && [...data.items].sort((SORTS[sort] ?? SORTS.dead)[1]);
  const by = (status) => (items ?? []).filter((item) => item.status === status);
  const shown = by(show);
  const segments = [["open", "Open"], ["snoozed", "Snoozed"], ["muted", "Muted"]].map(([name, word]) =>
    [name, html`${word} ${data ? by(name).length : ""}`, href("failures", [], { ...route.query, open: null, show: name === "open" ? null : name })]);
  return html`
    <div class="head"><div class="grow"><h1>Failures</h1><p class="lede">${data && data.is_kept !== false && failuresLede(by("open"), window)}</p></div>
      <div class="acts"><${Segments} label="Which" items=${segments} value=${show}/></div></div>
    ${problem && html`<div class="gapb"><${Trouble} problem=${problem} onAgain=${ask}/></div>`}
    ${data ? html`<${Filters} route=${route} items=${items} sort=${sort}/>
      ${shown.length ? html`<div class="card groups">
        <div class="group h" aria-hidden="true"><span></span><span>Cause</span><span>${window.replace(/(\d+)/, "$1 ")}</span><span class="num">Attempts</span><span class="num">Jobs</span><span class="num">Since</span></div>
        ${shown.map((item) => html`<${CauseRow} key=${item.cause} item=${item} isOpen=${item.cause === open} route=${route} window=${window} session=${session} ask=${ask}/>`)}
      </div>` : html`<${NoCause} show=${show} window=${window} isKept=${data.is_kept !== false} isNarrowed=${Boolean(queue || release)}/>`}` : !problem && html`<${Loading}/>`}`;
}

/** The answer of the page in one sentence: how much failed, for how many causes, and whether any is new. */
function failuresLede(open, window) {
  if (!open.length) return `NoCause failed in ${SPANS[window]}.`;
  const attempts = open.reduce((sum, item) => sum + item.attempts, 0);
  const fresh = open.filter((item) => item.is_new);
  const releases = [...new Set(fresh.map((item) => item.release).filter(Boolean))];
  const who = fresh.length === 0 ? "None of them is" : open.length === 1 ? "It is" : fresh.length === open.length ? "All of them are" : `${number(fresh.length)} of them ${fresh.length === 1 ? "is" : "are"}`;
  return html`${plural(attempts, "attempt")} failed in ${SPANS[window]}, for ${open.length === 1 ? "one cause" : `${number(open.length)} causes`}.
    ${" "}${open.length === 1 && !fresh.length ? "It is not" : who} new${releases.length === 1 && html` since release <code>${releases[0]}</code>`}.`;
}

function Filters({ route, items, sort }) {
  const { queue = "", release = "" } = route.query;
  const board = useBoard();
  const queues = [...new Set([...(board?.queues ?? []).map((one) => one.name), ...items.flatMap((item) => item.queues ?? []), queue])].filter(Boolean).sort();
  const releases = [...new Set([...items.map((item) => item.release), release])].filter(Boolean);
  const dead = board?.counts.failed ?? 0;
  const pick = (name, word, value, options) => html`<label class="chip line pick">${word}: <select value=${value} onChange=${(event) => route.set({ [name]: event.target.value, open: null })}>
    ${options.map(([each, text]) => html`<option key=${each} value=${each} selected=${each === value}>${text}</option>`)}</select></label>`;
  const names = (all) => [["", "all"], ...all.map((each) => [each, each])];
  return html`<div class="row filters">
    ${pick("queue", "Queue", queue, names(queues))}
    ${releases.length > 0 && pick("release", "Release", release, names(releases))}
    ${pick("sort", "Sort", sort, Object.entries(SORTS).map(([name, [text]]) => [name, text]))}
    ${dead > 0 && html`<a class="end link" href=${href("jobs", [], { q: "state:failed" })}>Dead letters, ${number(dead)}</a>`}</div>`;
}

function CauseRow({ item, isOpen, route, window, session, ask }) {
  const name = `${item.title} in ${item.type}`;
  const toggle = (event) => { event.preventDefault(); route.set({ open: isOpen ? null : item.cause }); };
  return html`<div class=${`group${item.dead ? "" : " quiet"}`}>
      <${Shape} name=${item.dead ? "failed" : "retrying"}/>
      <div class="what"><p class="cut"><a class="t" data-row href=${href("failures", [item.cause])} aria-expanded=${isOpen} onClick=${toggle}>${item.title}</a> <span class="dim">in ${item.type}</span></p>
        <p class="dim mono cut">${item.frame ?? kindText(item.failure_kind)}</p></div>
      <div class="hide"><${Columns} values=${item.per_step} width=${132} height=${26} tone=${item.dead ? "bad" : "warn"} label=${`${name}: attempts in ${SPANS[window]}`}/></div>
      <div class="num"><b>${number(item.attempts)}</b><span class="dim blk" title=${instant(item.last_at)}>last ${ago(item.last_at)}</span></div>
      <div class="num hide">${number(item.dead)}<span class="dim blk">${item.dead ? "dead" : "none dead"}</span></div>
      <div class="num hide" title=${instant(item.first_at)}>${since(item.first_at)}<span class="dim blk">${item.is_new ? (item.release ? html`<code>${item.release}</code>` : "new") : NONE}</span></div>
    </div>${isOpen && html`<${Cause} id=${item.cause} item=${item} session=${session} window=${window} changed=${ask}/>`}`;
}

function NoCause({ show, window, isKept, isNarrowed }) {
  if (!isKept) return html`<${Empty} title="This store keeps no history of failures" text="It has no logbook. Failed jobs are in the list of jobs." acts=${html`<a class="btn" href=${href("jobs", [], { q: "state:failed" })}>Failed jobs</a>`}/>`;
  if (isNarrowed) return html`<${Empty} title="Nothing matches" text="No cause of this queue and release." acts=${html`<a class="btn" href=${href("failures")}>Show all</a>`}/>`;
  if (show !== "open") return html`<${Empty} title=${`No cause is ${show}`} text=${`A cause that you ${show === "muted" ? "mute" : "snooze"} is listed here, and can be opened again.`}/>`;
  return html`<${Empty} title="Nothing failed" text=${`No attempt failed in ${SPANS[window]}. When one does, its cause appears here by itself.`}/>`;
}

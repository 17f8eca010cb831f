/** Failures: every cause once, and which of them are new. `#/failures/<cause>` is the page of one. */

import { NONE, ago, instant, number } from "../format.js";
import { useBoard, useTick } from "../live.js";
import { Columns } from "../parts/charts.js";
import { Button, Segments, typed } from "../parts/controls.js";
import { useAsk } from "../parts/data.js";
import { html } from "../parts/html.js";
import { Empty } from "../parts/notes.js";
import { Asked, Head, marked } from "../parts/page.js";
import { useRowKeys } from "../parts/rows.js";
import { Shape } from "../parts/state.js";
import { href } from "../route.js";
import { Cause, CausePage, since } from "./cause.js";

export const failuresPage = { Page: Failures, title: () => "Failures", hasWindow: "24h" };

const SPANS = ["15m", "1h", "6h", "24h", "7d", "30d"];
const SORTS = {
  dead: ["dead first", (a, b) => b.dead - a.dead || b.attempts - a.attempts],
  new: ["newest cause first", (a, b) => b.first_at.localeCompare(a.first_at)],
  last: ["last failure first", (a, b) => b.last_at.localeCompare(a.last_at)],
  attempts: ["most attempts first", (a, b) => b.attempts - a.attempts],
};
const some = (values) => [...new Set(values)].filter(Boolean);

function Failures({ route }) {
  const window = SPANS.includes(route.query.window) ? route.query.window : failuresPage.hasWindow;
  return route.path.length ? html`<${CausePage} id=${route.path[0]} window=${window}/>` : html`<${Causes} route=${route} window=${window}/>`;
}

function Causes({ route, window }) {
  const { queue = "", release = "", sort = "dead", show = "open", open = "" } = route.query;
  const asked = useAsk("failures", { window, queue, release }, { every: 15, on: "failures" });
  useRowKeys();
  useTick(5);
  const isKept = asked.answer?.is_kept !== false, items = [...(asked.answer?.items ?? [])].sort((SORTS[sort] ?? SORTS.dead)[1]);
  const by = (status) => items.filter((item) => item.status === status), shown = by(show);
  return html`
    <${Head} heading="Failures" lede=${marked(asked.answer?.text ?? "")} acts=${html`<${Segments} label="Which" value=${show} items=${[["open", "Open"], ["snoozed", "Snoozed"], ["muted", "Muted"]].map(([name, word]) =>
      [name, html`${word} ${asked.answer && by(name).length}`, href("failures", [], { ...route.query, open: null, show: name === "open" ? null : name })])}/>`}/>
    <${Asked} of=${asked}>${() => html`<${Filters} route=${route} items=${items} sort=${sort}/>
      ${shown.length ? html`<div class="card groups">
        <div class="group h" aria-hidden="true"><span></span><span>Cause</span><span>${window.replace(/(\d+)/, "$1 ")}</span><span class="num">Attempts</span><span class="num">Jobs</span><span class="num">Since</span></div>
        ${shown.map((item) => html`<${CauseRow} key=${item.cause} item=${item} isOpen=${item.cause === open} route=${route} window=${window} ask=${asked.ask}/>`)}</div>`
      : !isKept ? html`<${Empty} heading="This store keeps no history of failures" text="It has no logbook. Failed jobs are in the list of jobs." acts=${html`<${Button} href="#/jobs?q=state:failed">Failed jobs<//>`}/>`
      : queue || release ? html`<${Empty} heading="Nothing matches" text="No cause of this queue and release." acts=${html`<${Button} href="#/failures">Show all<//>`}/>`
      : show !== "open" ? html`<${Empty} heading=${`No cause is ${show}`} text="A cause that you mute or snooze is listed here."/>`
      : html`<${Empty} heading="Nothing failed"/>`}`}<//>`;
}

function Filters({ route, items, sort }) {
  const { queue = "", release = "" } = route.query;
  const board = useBoard();
  const releases = some([...items.map((item) => item.release), release]), dead = board?.counts.failed;
  const pick = (name, word, value, options) => html`<label class="chip line pick">${word}: <select value=${value} onChange=${typed((text) => route.set({ [name]: text, open: null }))}>
    ${options.map(([each, text]) => html`<option value=${each} selected=${each === value}>${text}</option>`)}</select></label>`;
  const names = (all) => [["", "all"], ...all.map((each) => [each, each])];
  return html`<div class="row filters">
    ${pick("queue", "Queue", queue, names(some([...(board?.queues ?? []).map((one) => one.name), ...items.flatMap((item) => item.queues ?? []), queue]).sort()))}
    ${releases.length > 0 && pick("release", "Release", release, names(releases))}
    ${pick("sort", "Sort", sort, Object.entries(SORTS).map(([name, [text]]) => [name, text]))}
    ${dead > 0 && html`<a class="end link" href="#/jobs?q=state%3Afailed">Dead letters, ${number(dead)}</a>`}</div>`;
}

const CauseRow = ({ item, isOpen, route, window, ask }) => html`<div class=${`group${item.dead ? "" : " quiet"}`}>
    <${Shape} glyph=${item.dead ? "failed" : "retrying"}/>
    <div class="what"><p class="cut"><a class="t" data-row href=${href("failures", [item.cause])} aria-expanded=${isOpen} onClick=${(event) => { event.preventDefault(); route.set({ open: isOpen ? null : item.cause }); }}>${item.title}</a> <span class="dim">in ${item.type}</span></p>
      <p class="dim mono cut">${item.place}</p></div>
    <div class="hide"><${Columns} values=${item.per_step} width=${132} height=${26} tone=${item.dead ? "bad" : "warn"} label=${`${item.title} in ${item.type}: attempts in ${window}`}/></div>
    <div class="num"><b>${number(item.attempts)}</b><span class="dim blk" title=${instant(item.last_at)}>last ${ago(item.last_at)}</span></div>
    <div class="num hide">${number(item.dead)}<span class="dim blk">${item.dead ? "dead now" : "none dead"}</span></div>
    <div class="num hide" title=${instant(item.first_at)}>${since(item.first_at)}<span class="dim blk">${!item.is_new ? NONE : item.began_with ? html`<code>${item.began_with}</code>` : "new"}</span></div>
  </div>${isOpen && html`<${Cause} id=${item.cause} item=${item} window=${window} changed=${ask}/>`}`;

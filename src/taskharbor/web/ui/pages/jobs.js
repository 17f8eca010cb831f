/** Jobs: search, list, selection. New rows gather behind "37 new" and never move what is there. */

import { api } from "../api.js";
import { hold, may, retryOne } from "../deeds.js";
import { capital, number, plural, time } from "../format.js";
import { useKeys } from "../keys.js";
import { useBoard } from "../live.js";
import { BulkBar, counted } from "../parts/bulkbar.js";
import { Button, Menu } from "../parts/controls.js";
import { copy } from "../parts/copy.js";
import { useAsk } from "../parts/data.js";
import { html, useCallback, useEffect, useRef, useState } from "../parts/html.js";
import { Icon } from "../parts/icons.js";
import { NewJob, SaveView, SearchHelp } from "../parts/jobdialogs.js";
import { JobTable } from "../parts/joblist.js";
import { useJobs } from "../parts/jobsearch.js";
import { Empty, Loading, Trouble } from "../parts/notes.js";
import { Head } from "../parts/page.js";
import { useCommands } from "../parts/palette.js";
import { SearchField } from "../parts/search.js";
import { Shape, STATES } from "../parts/state.js";
import { queryAsCli, queryAsCurl } from "../parts/texts.js";
import { usePref } from "../prefs.js";
import { isPlain, join, queuesOf, fieldValue, textsOf, withField } from "../query.js";
import { go, href } from "../route.js";

export const jobsPage = { Page: Jobs, title: (route) => (route.query.q ? `${route.query.q} · Jobs` : "Jobs"), note: "new rows wait until you ask for them" };

function Jobs({ route }) {
  const { q = "", sort = "" } = route.query;
  const board = useBoard();
  const list = useJobs(q, sort);
  const [picked, pick] = useState(new Set());
  const [isAll, all] = useState(false);
  const [at, point] = useState(route.query.at ?? "");
  const [open, show] = useState(null);
  const [views, setViews] = usePref("views");
  const count = useCount(q, board);
  const known = useAsk("search").answer ?? { fields: [], types: [], queues: [] };
  const search = (next) => route.set({ q: next, at: null }, { replace: false });
  const without = (name) => views.filter((view) => view.name !== name);
  const clear = useCallback(() => { pick(new Set()); all(false); }, []), close = () => show(null);
  useEffect(clear, [q, sort]);
  useEffect(() => { const timer = setTimeout(() => { if (at) route.set({ at }); }, 500); return () => clearTimeout(timer); }, [at]);
  const mayPick = ["retry", "cancel", "delete"].some((what) => may(what));
  const last = useRef(null);
  const onPick = useCallback((id, isRange) => mayPick && pick((before) => {
    const next = new Set(before), ids = list.ids.current, from = ids.indexOf(last.current), to = ids.indexOf(id);
    if (isRange && from >= 0) ids.slice(Math.min(from, to), Math.max(from, to) + 1).forEach((one) => next.add(one));
    else if (!next.delete(id)) next.add(id);
    last.current = id;
    return next;
  }), []);
  const selected = list.jobs.filter((job) => picked.has(job.id));
  useJobKeys({ list, at, picked, onPick, clear });
  useCommands([may("enqueue") && ["New job", () => show("new"), "", "plus"], ["Save this search", () => show("save"), "", "star"],
    ["Failed jobs of the last hour", () => search("state:failed ended:<1h"), "", "jobs"]]);
  return html`<${Head} heading="Jobs" acts=${html`
      <${Menu} label="Copy as" text="Copy as" items=${[["CLI", () => copy(queryAsCli(q), "the command")], ["curl", () => copy(queryAsCurl(api.url("jobs", { q, sort }).href), "the request")]]}/>
      <${Button} onClick=${() => show("save")}><${Icon} glyph="star" size=${14}/>Save view<//>
      ${may("enqueue") && html`<${Button} look="main" onClick=${() => show("new")}><${Icon} glyph="plus" size=${14}/>New job<//>`}`}/>
    <${SearchField} q=${q} onSearch=${search} known=${known} problem=${list.problem?.status === 422 && list.problem} views=${views} onHelp=${() => show("help")} onDropView=${(name) => setViews(without(name))}/>
    <div class="tabrow"><${StateTabs} q=${q} board=${board} sort=${sort}/><a class="end link nowrap" href="#/workflows">Workflows</a>
      ${list.fresh > 0 && html`<button class="pillnew" type="button" onClick=${list.showNew}>${list.fresh > 49 ? "50+" : number(list.fresh)} new</button>`}</div>
    <section class="flush" aria-busy=${list.isOld}><${Found} list=${list} q=${q} count=${count} onSearch=${search}>
      ${(selected.length > 0 || isAll) && html`<${BulkBar} jobs=${selected} q=${q} isAll=${isAll} count=${count} onAll=${() => all(true)} onClear=${clear} onDone=${list.again}/>`}
      <${JobTable} jobs=${list.jobs} picked=${picked} at=${at} fresh=${list.changed} mayPick=${mayPick} onPick=${onPick} onPoint=${point}/><//></section>
    <p class="foot-keys">${KEYS.filter(([, word]) => mayPick || !["select", "retry", "cancel"].includes(word)).map(([keys, word]) => html`<span>${keys.split(" ").map((key) => html`<kbd>${key}</kbd>`)} ${word}</span>`)}</p>
    ${open === "help" && html`<${SearchHelp} known=${known} onClose=${close}/>`}
    ${open === "save" && html`<${SaveView} onClose=${close} onSave=${(name) => { setViews([...without(name), { name, q, sort }]); close(); }}/>`}
    ${open === "new" && html`<${NewJob} known=${known} onClose=${close} onDone=${list.again}/>`}`;
}

const KEYS = [["j k", "move"], ["x", "select"], ["Enter", "open"], ["r", "retry"], ["c", "cancel"], ["y", "copy id"], ["p", "pause live"], ["?", "all keys"]];
const total = (counts) => Object.values(counts).reduce((sum, count) => sum + count, 0);

/** How many match: from the board when only queues and states are asked, else by a walk of its own. */
function useCount(q, board) {
  const walked = useAsk(q && !isPlain(q) ? "jobs/count" : null, { q });
  if (!board) return null;
  if (!isPlain(q)) return walked.problem ? null : walked.answer;
  const states = fieldValue(q, "state"), known = counts(board, q);
  return states.includes("retrying") ? null : { count: total(states ? states.split(",").map((state) => known[state] ?? 0) : known), exact: true };
}

/** Jobs by state, in the queues that the query names. */
function counts(board, q) {
  const queues = queuesOf(q);
  return queues ? Object.fromEntries(Object.keys(board.counts).map((state) => [state, total(board.queues.filter((queue) => queues.has(queue.name)).map((queue) => queue[state] ?? 0))])) : board.counts;
}

function StateTabs({ q, board, sort }) {
  const now = fieldValue(q, "state"), known = board && isPlain(withField(q, "state", "")) && counts(board, q);
  const retrying = useAsk(known && known.scheduled + known.ready < 2e4 ? "jobs/count" : null, { q: withField(q, "state", "state:retrying") }, { every: 30 }).answer;
  const tab = (state, word, count) => html`<a href=${href("jobs", [], { q: withField(q, "state", state && `state:${state}`), sort })} aria-current=${now === state ? "true" : undefined}>${word} <b>${count}</b></a>`;
  return html`<nav class="tabs" aria-label="State" tabindex="-1">${tab("", "All", known && number(total(known)))}
    ${STATES.map((state) => tab(state, html`<span class=${`st ${state}`}><${Shape} glyph=${state}/></span> ${capital(state)}`, known && (state === "retrying" ? retrying && counted(retrying) : number(known[state]))))}</nav>`;
}

const backTo = (list, before) => (list.backTo ? `${before}back to ${time(list.backTo, "min")}` : "");
const looked = (list) => `looked at ${plural(list.lookedAt, "job")}${backTo(list, ", ")}`;

/** The list, or why there is none, and how far was looked. */
function Found({ list, q, count, onSearch, children }) {
  if (list.jobs.length === 0) {
    if (list.problem) return list.problem.status !== 422 && html`<${Trouble} problem=${list.problem} what="The jobs could not be listed" onAgain=${list.again}/>`;
    if (list.isLoading || list.isWalking) return html`<${Loading} rows=${8}/>${list.isWalking && html`<p class="dim gap1">${looked(list)}</p>`}`;
    return q ? html`<${Nothing} q=${q} list=${list} onSearch=${onSearch}/>`
      : html`<${Empty} heading="No jobs yet" text="The first one appears here." code=${["send_welcome.enqueue(user_id=7)"]}/>`;
  }
  const isSearch = list.lookedAt > list.jobs.length;
  return html`<div class="card rel">${children}<div class="more"><span>${number(list.jobs.length)}${count?.count >= list.jobs.length && html` of <b class="soft">${counted(count)}</b>`}${isSearch ? ` · ${looked(list)}` : backTo(list, " · ")}</span>
    ${list.cursor && html`<button class="end link" type="button" disabled=${list.isLoading} onClick=${list.older}>${list.isWalking ? "Looking…" : isSearch ? "Keep looking" : "Older"}</button>`}</div></div>`;
}

/** Which word removed the most: the query without each of its words is counted. */
function Nothing({ q, list, onSearch }) {
  const [most, found] = useState(null);
  useEffect(() => {
    const all = textsOf(q);
    if (all.length < 2 || all.length > 5) return undefined;
    let isCurrent = true;
    Promise.all(all.map(async (word) => { const rest = join(all.filter((other) => other !== word)); return { word, rest, ...await api.get("jobs/count", { q: rest }) }; }))
      .then((answers) => { if (isCurrent) found(answers.reduce((a, b) => (b.count > a.count ? b : a))); }, () => {});
    return () => { isCurrent = false; };
  }, [q]);
  return html`<${Empty} heading="Nothing matches" text=${most?.count > 0 ? html`<code>${most.rest}</code> alone has ${counted(most)}. <code>${most.word}</code> removed the most.`
      : list.cursor ? `Nothing found yet: ${looked(list)}.` : "No job in the store is like that."} acts=${html`
    ${most?.count > 0 && html`<${Button} onClick=${() => onSearch(most.rest)}>Drop ${most.word}<//>`}
    ${list.cursor && html`<${Button} onClick=${list.older}>Keep looking<//>`}<${Button} look="bare" onClick=${() => onSearch("")}>Clear all<//>`}/>`;
}

/** j, k, x, r, c, y: on the row that has the focus; never on one of the search before. */
function useJobKeys({ list, at, picked, onPick, clear }) {
  const jobs = list.isOld ? [] : list.jobs, index = jobs.findIndex((job) => job.id === at), job = jobs[index];
  const move = (by) => {
    const next = jobs[Math.min(Math.max(index + by, 0), jobs.length - 1)];
    if (next) document.querySelector(`tr[data-id="${CSS.escape(next.id)}"] a`)?.focus();
  };
  const on = (what, action) => () => (job && (!what || may(what)) ? action() : false);
  useKeys({
    j: () => move(1), k: () => move(-1), x: on("", () => onPick(at, false)), "Shift x": on("", () => onPick(at, true)),
    Enter: on("", () => go(href("jobs", [at]))), Esc: () => (picked.size ? clear() : false),
    r: on("retry", () => retryOne(job, {}, list.again)), c: on("cancel", () => hold({ action: "cancel", ids: [at] }, list.again)),
    e: on("retry", () => go(href("jobs", [at], { edit: "1" }))), y: on("", () => copy(at, "the id")),
  });
}

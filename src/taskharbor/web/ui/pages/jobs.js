/** Jobs: search, list, selection. New rows gather behind "37 new" and never move what is there. */

import { api } from "../api.js";
import { may } from "../deeds.js";
import { number, plural, time } from "../format.js";
import { useKeys } from "../keys.js";
import { live, useBoard } from "../live.js";
import { BulkBar } from "../parts/bulkbar.js";
import { Button, copy, Menu } from "../parts/controls.js";
import { useAsk } from "../parts/data.js";
import { html, useCallback, useEffect, useRef, useState } from "../parts/html.js";
import { Icon } from "../parts/icons.js";
import { NewJob, SaveView, SearchHelp } from "../parts/jobdialogs.js";
import { JobTable } from "../parts/joblist.js";
import { useJobs } from "../parts/jobsearch.js";
import { Empty, Loading, Trouble } from "../parts/notes.js";
import { useCommands } from "../parts/palette.js";
import { SearchField } from "../parts/search.js";
import { Shape, STATES } from "../parts/state.js";
import { queryAsCli, queryAsCurl } from "../parts/texts.js";
import { hold, retryOne } from "../deeds.js";
import { usePref } from "../prefs.js";
import { isPlain, join, queuesOf, fieldValue, withField, words } from "../query.js";
import { go, href } from "../route.js";

export const jobsPage = { Page: Jobs, title: (route) => (route.query.q ? `${route.query.q} · Jobs` : "Jobs"), note: "new rows wait until you ask for them" };

function Jobs({ route, session }) {
  const q = route.query.q ?? "", sort = route.query.sort ?? "";
  const board = useBoard();
  const list = useJobs(q, sort);
  const [picked, pick] = useState(new Set());
  const [isAll, all] = useState(false);
  const [at, point] = useState(route.query.at ?? "");
  const [open, show] = useState(null);
  const [views, setViews] = usePref("views");
  const types = useAsk("types").data?.items ?? [];
  const count = useCount(q, board);
  const search = (next) => { route.set({ q: next, at: null }, { replace: false }); };
  const clear = useCallback(() => { pick(new Set()); all(false); }, []);
  useEffect(clear, [q, sort]);
  useEffect(() => { const timer = setTimeout(() => { if (at) route.set({ at }); }, 500); return () => clearTimeout(timer); }, [at]);
  const mayPick = ["retry", "cancel", "delete"].some((what) => may(session, what));
  const last = useRef(null);
  const onPick = useCallback((id, isRange) => pick((before) => {
    const next = new Set(before), ids = list.ids.current, from = ids.indexOf(last.current), to = ids.indexOf(id);
    if (isRange && from >= 0) ids.slice(Math.min(from, to), Math.max(from, to) + 1).forEach((one) => next.add(one));
    else if (!next.delete(id)) next.add(id);
    last.current = id;
    return next;
  }), []);
  const selected = list.jobs.filter((job) => picked.has(job.id));
  useJobKeys({ list, at, picked, onPick: mayPick ? onPick : () => {}, clear, session, q });
  useCommands([may(session, "enqueue") && ["New job", () => show("new"), "", "plus"], ["Save this search", () => show("save"), "", "star"],
    ["Failed jobs of the last hour", () => search("state:failed ended:<1h"), "", "jobs"]]);
  const known = { types, queues: (board?.queues ?? []).map((queue) => queue.name), states: STATES, workers: (useAsk("workers").data?.items ?? []).map((one) => one.id) };
  return html`<div class="head"><div class="grow"><h1>Jobs</h1></div><div class="acts">
      <${Menu} label="Copy as" text="Copy as" items=${[["CLI", () => copy(queryAsCli(q), "the command")], ["curl", () => copy(queryAsCurl(api.url("jobs", { q, sort }).href), "the request")]]}/>
      <${Button} onClick=${() => show("save")}><${Icon} name="star" size=${14}/>Save view<//>
      ${may(session, "enqueue") && html`<${Button} kind="main" onClick=${() => show("new")}><${Icon} name="plus" size=${14}/>New job<//>`}</div></div>
    <${SearchField} q=${q} onSearch=${search} known=${known} problem=${list.problem?.status === 422 ? list.problem : null} views=${views} onHelp=${() => show("help")}
      onDropView=${(name) => setViews(views.filter((view) => view.name !== name))}/>
    <div class="tabrow"><${StateTabs} q=${q} board=${board} sort=${sort}/><a class="end link nowrap" href="#/workflows">Workflows</a>
      ${list.fresh > 0 && html`<button class="pillnew" type="button" onClick=${list.showNew}>${list.fresh > 49 ? "50+" : number(list.fresh)} new</button>`}</div>
    <section class="flush"><${Found} list=${list} q=${q} count=${count} onClear=${() => search("")} onSearch=${search}>
      ${(selected.length > 0 || isAll) && html`<${BulkBar} jobs=${selected} q=${q} isAll=${isAll} count=${count} session=${session} onAll=${() => all(true)} onClear=${clear} onDone=${list.again}/>`}
      <${JobTable} jobs=${list.jobs} picked=${picked} at=${at} fresh=${list.changed} mayPick=${mayPick} onPick=${onPick} onPoint=${point}/><//></section>
    <${KeyLine} mayPick=${mayPick}/>
    ${open === "help" && html`<${SearchHelp} onClose=${() => show(null)}/>`}
    ${open === "save" && html`<${SaveView} onClose=${() => show(null)} onSave=${(name) => { setViews([...views.filter((view) => view.name !== name), { name, q, sort }]); show(null); }}/>`}
    ${open === "new" && html`<${NewJob} types=${types} queues=${known.queues} onClose=${() => show(null)} onDone=${list.again}/>`}`;
}

/** How many match: from the board when only queues and states are asked, else by a walk of its own. */
function useCount(q, board) {
  const walked = useAsk(q && !isPlain(q) ? "jobs/count" : null, { q });
  if (!board) return null;
  if (!isPlain(q)) return walked.problem ? null : walked.data;
  const states = fieldValue(q, "state").split(",").filter(Boolean);
  if (states.includes("retrying")) return null;
  return { count: (states.length ? states : Object.keys(board.counts)).reduce((total, state) => total + (counts(board, q)[state] ?? 0), 0), exact: true };
}

/** Jobs by state, in the queues that the query names. */
function counts(board, q) {
  const queues = queuesOf(q);
  if (!queues) return board.counts;
  const rows = board.queues.filter((queue) => queues.has(queue.name));
  return Object.fromEntries(Object.keys(board.counts).map((state) => [state, rows.reduce((total, queue) => total + (queue[state] ?? 0), 0)]));
}

function StateTabs({ q, board, sort }) {
  const now = fieldValue(q, "state"), known = board && isPlain(withField(q, "state", "")) ? counts(board, q) : null;
  const total = known && Object.values(known).reduce((sum, count) => sum + count, 0);
  const link = (state) => href("jobs", [], { q: withField(q, "state", state && `state:${state}`), sort });
  return html`<nav class="tabs" aria-label="State" tabindex="-1"><a href=${link("")} aria-current=${now === "" ? "true" : undefined}>All ${known && html`<b>${number(total)}</b>`}</a>
    ${STATES.map((state) => html`<a key=${state} href=${link(state)} aria-current=${now === state ? "true" : undefined}><span class=${`st ${state}`}><${Shape} name=${state}/></span>
      ${state[0].toUpperCase() + state.slice(1)} ${known && known[state] !== undefined && html`<b>${number(known[state])}</b>`}</a>`)}</nav>`;
}

/** The list, or why there is none, and how far was looked. */
function Found({ list, q, count, onClear, onSearch, children }) {
  if (list.jobs.length === 0) {
    if (list.problem && list.problem.status !== 422) return html`<${Trouble} problem=${list.problem} what="The jobs could not be listed" onAgain=${list.again}/>`;
    if (list.isLoading || list.isWalking) return html`<${Loading} rows=${8}/>${list.isWalking && html`<p class="dim gap1">${looked(list)}</p>`}`;
    if (list.problem) return null;
    return q ? html`<${Nothing} q=${q} list=${list} onClear=${onClear} onSearch=${onSearch}/>`
      : html`<${Empty} title="No jobs yet" text="Put the first one in, and it appears here by itself." code=${["send_welcome.enqueue(user_id=7)"]}/>`;
  }
  const of = count && html` of <b class="soft">${number(count.count)}${count.exact ? "" : "+"}</b>`;
  const isSearch = list.lookedAt > list.jobs.length;
  return html`<div class="card rel">${children}<div class="more"><span>${number(list.jobs.length)}${of}${isSearch ? ` · ${looked(list)}` : backTo(list, " · ")}</span>
    ${list.cursor && html`<button class="end link" type="button" disabled=${list.isLoading} onClick=${list.older}>${list.isWalking ? "Looking…" : isSearch ? "Keep looking" : "Older"}</button>`}</div></div>`;
}

const backTo = (list, before) => (list.backTo ? `${before}back to ${time(list.backTo, "min")}` : "");
const looked = (list) => `looked at ${plural(list.lookedAt, "job")}${backTo(list, ", ")}`;

/** Which word removed the most: the query without each of its words is counted. */
function Nothing({ q, list, onClear, onSearch }) {
  const [most, found] = useState(null);
  const all = words(q).map((word) => word.text);
  useEffect(() => {
    if (all.length < 2 || all.length > 5) return undefined;
    let isCurrent = true;
    Promise.all(all.map((word) => { const rest = join(all.filter((other) => other !== word)); return api.get("jobs/count", { q: rest }).then((answer) => ({ word, rest, ...answer })); }))
      .then((answers) => { if (isCurrent) found(answers.reduce((a, b) => (b.count > a.count ? b : a))); }, () => {});
    return () => { isCurrent = false; };
  }, [q]);
  const text = most?.count > 0 ? html`<code>${most.rest}</code> alone has ${number(most.count)}${most.exact ? "" : "+"}. <code>${most.word}</code> removed the most.`
    : list.cursor ? `Nothing found yet: ${looked(list)}.` : "No job in the store is like that.";
  return html`<${Empty} title="Nothing matches" text=${text} acts=${html`
    ${most?.count > 0 && html`<${Button} onClick=${() => onSearch(most.rest)}>Drop ${most.word}<//>`}
    ${list.cursor && html`<${Button} onClick=${list.older}>Keep looking<//>`}<${Button} kind="bare" onClick=${onClear}>Clear all<//>`}/>`;
}

/** j, k, x, r, c, y: on the row that has the focus. */
function useJobKeys({ list, at, picked, onPick, clear, session }) {
  const job = () => list.jobs.find((one) => one.id === at);
  const move = (by) => {
    const index = list.jobs.findIndex((one) => one.id === at);
    const next = list.jobs[Math.min(Math.max(index + by, 0), list.jobs.length - 1)];
    if (next) document.querySelector(`tr[data-id="${CSS.escape(next.id)}"] a`)?.focus();
  };
  const on = (what, action) => () => { const one = job(); if (!one || !may(session, what)) return false; action(one); return true; };
  useKeys({
    j: () => move(1), k: () => move(-1), x: () => at && onPick(at, false), "Shift x": () => at && onPick(at, true),
    Enter: () => (job() ? go(href("jobs", [at])) : false), Esc: () => { if (picked.size) { clear(); return true; } return false; },
    r: on("retry", (one) => retryOne(one, {}, list.again)), c: on("cancel", (one) => hold({ action: "cancel", ids: [one.id] }, list.again)),
    e: on("retry", (one) => go(href("jobs", [one.id], { edit: "1" }))), y: () => (job() ? copy(at, "the id") : false),
  });
}

const KEYS = [[["j", "k"], "move"], [["x"], "select"], [["Enter"], "open"], [["r"], "retry"], [["c"], "cancel"], [["y"], "copy id"], [["p"], "pause live"], [["?"], "all keys"]];
const KeyLine = ({ mayPick }) => html`<p class="foot-keys">${KEYS.filter(([, word]) => mayPick || !["select", "retry", "cancel"].includes(word)).map(([keys, word]) => html`
  <span key=${word}>${keys.map((key) => html`<kbd key=${key}>${key}</kbd>`)} ${word}</span>`)}</p>`;

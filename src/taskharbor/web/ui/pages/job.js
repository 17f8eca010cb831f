/** One job: why it is where it is, its life to scale, its error, its arguments. */

import { hold, may, preview, retryOne } from "../deeds.js";
import { ago, bytes, clock, day, exact, measured, NONE, number, plural, secondsSince, shortId, span, time, zoneName } from "../format.js";
import { useKeys } from "../keys.js";
import { live, useEvents, useTick } from "../live.js";
import { BulkConfirm, save } from "../parts/bulkbar.js";
import { Bar } from "../parts/charts.js";
import { Button, copy, Menu } from "../parts/controls.js";
import { useAsk } from "../parts/data.js";
import { html, useEffect, useRef, useState } from "../parts/html.js";
import { Icon } from "../parts/icons.js";
import { EditRetry } from "../parts/jobdialogs.js";
import { ran } from "../parts/joblist.js";
import { attemptsOf, Life } from "../parts/life.js";
import { Empty, Loading, Trouble } from "../parts/notes.js";
import { useCommands } from "../parts/palette.js";
import { State, isOver, stateOf } from "../parts/state.js";
import { asCli, asCurl, asPython, ErrorCard, ValueCard } from "../parts/texts.js";
import { sayProblem } from "../parts/toast.js";
import { go, href } from "../route.js";

export const jobPage = { Page: Job, title: (route) => `Job ${shortId(route.path[0])}` };

function Job({ route, api, session }) {
  const id = route.path[0];
  const { data: job, problem, ask } = useAsk(`jobs/${encodeURIComponent(id)}`);
  const why = useAsk(job ? `jobs/${id}/why` : null, {}, { every: job && !isOver(job) ? 5 : 0 });
  const [gone, lose] = useState(null);
  const again = () => { ask(); why.ask(); };
  useEffect(() => { live.follow([id]); return () => live.follow([]); }, [id]);
  useEvents("job", (changed) => { if ((changed.asked_id ?? changed.id) === id && changed.version !== job?.version) { lose(null); again(); } });
  useEvents("job_gone", (event) => { if (event.id === id) lose(id); });
  if (!job || gone === id) {
    if (!problem && gone !== id) return html`<${Loading} rows=${10}/>`;
    return gone === id || problem.status === 404 ? html`<${Empty} title="No job has this id" text="It may have been deleted when its time was over, or it is in a queue that your token may not see."
      acts=${html`<${Button} href="#/jobs">All jobs<//>`}/>` : html`<${Trouble} problem=${problem} what="The job could not be loaded" onAgain=${ask}/>`;
  }
  const attempts = attemptsOf(job);
  const failures = attempts.filter((one) => one.error);
  return html`<${Head} job=${job} session=${session} api=${api} route=${route} again=${again}/>
    <div class="cols"><div>
      ${job.state === "running" && html`<${Lease} job=${job}/>`}
      <${Why} job=${job} why=${why.data}/>
      <${Life} job=${job} attempts=${attempts}/>
      ${failures.length > 0 && html`<${ErrorCard} attempts=${failures}/>`}
      <section class="two even"><${ValueCard} title="Arguments" what="the arguments" value=${job.payload ?? null} base64=${job.payload_base64} sizeText=${bytes}/>
        ${job.state === "completed" ? html`<${ValueCard} title="Result" what="the result" value=${job.result ?? null} base64=${job.result_base64} sizeText=${bytes}/>` : html`<${Lately} job=${job}/>`}</section>
      ${job.state === "completed" && html`<section><${Lately} job=${job}/></section>`}
    </div><${JobFacts} job=${job}/></div>`;
}

/** Name, state, and what can be done. */
function Head({ job, session, api, route, again }) {
  const [asked, ask] = useState(route.query.edit ? "edit" : null);
  const [found, find] = useState(null);
  const retry = isOver(job) && may(session, "retry") && (() => retryOne(job, {}, again));
  const cancel = !isOver(job) && !job.cancel_requested && may(session, "cancel") && (() => hold({ action: "cancel", ids: [job.id] }, again));
  const remove = isOver(job) && may(session, "delete") && (() => preview({ action: "delete", ids: [job.id] }).then(find, (problem) => sayProblem(problem, "Nothing was deleted")));
  const edit = retry && (() => ask("edit"));
  const copies = [["Python", () => copy(asPython(job), "the call")], ["CLI", () => copy(asCli(job), "the command")], ["curl", () => copy(asCurl(job, api.url("jobs").href), "the request")]];
  const close = () => { ask(null); if (route.query.edit) route.set({ edit: null }); };
  useKeys({ r: () => (retry ? retry() : false), c: () => (cancel ? cancel() : false), e: () => (edit ? edit() : false), y: () => copy(job.id, "the id"), Esc: () => go("#/jobs") });
  useCommands([retry && ["Retry this job", retry, "r"], edit && ["Edit and retry this job", edit, "e"], cancel && ["Cancel this job", cancel, "c"],
    ...copies.map(([name, action]) => [`Copy as ${name}`, action, "", "copy"]), ["Copy the id", () => copy(job.id, "the id"), "y", "copy"], remove && ["Delete this job", remove]]);
  return html`<div class="head"><div class="grow"><p class="dim crumb"><a class="link" href="#/jobs">Jobs</a> / <span class="mono">${shortId(job.id)}</span></p>
      <div class="row title"><h1 class="cut">${job.type}</h1><${State} name=${stateOf(job)} pill=${true}/></div></div>
    <div class="acts">${retry && html`<${Button} kind="main" onClick=${retry}>Retry<//><${Button} onClick=${edit}>Edit and retry…<//>`}
      ${cancel && html`<${Button} onClick=${cancel}>Cancel<//>`}
      <${Menu} label="Copy as" text="Copy as" items=${copies}/>
      <${Menu} label="More actions" icon="more" items=${[["Copy the id", () => copy(job.id, "the id")], ["Jobs of this task", () => go(href("jobs", [], { q: `type:${job.type}` }))],
        ["Save as NDJSON", () => save({ ids: [job.id] })], remove && ["Delete…", remove, "bad"]]}/></div>
    ${asked === "edit" && retry && html`<${EditRetry} job=${job} onClose=${close} onDone=${again}/>`}
    ${found && html`<${BulkConfirm} action="delete" found=${found} q="" onClose=${() => find(null)} onSave=${() => save({ ids: [job.id] })}
      onDo=${async () => { if (await hold({ action: "delete", ids: [job.id], expect: 1 }, (end) => end === "done" && go("#/jobs"))) find(null); }}/>`}</div>`;
}

/** The lease runs down and is extended; the longest that was seen is the whole bar. */
function Lease({ job }) {
  useTick(1);
  const most = useRef(1);
  const left = Math.max(-(secondsSince(job.lease_expires_at) ?? 0), 0);
  most.current = Math.max(most.current, left);
  return html`<div class="card pad gapb"><div class="row"><${State} name="running" pill=${true}/><b class="cut">${job.worker_id}</b>
      <span class="end soft nowrap">${left > 0 ? html`lease ends in <b>${Math.round(left)} s</b>` : html`<b>lease has run out</b>`}</span></div>
    <div class="gap1"><${Bar} tone=${left > 0 ? "run" : "full"} height=${5} share=${left / most.current}/></div>
    <div class="row gap1 dim wrap"><span>runs for ${measured(ran(job))}</span><span>·</span><span>fence <code>${exact(job.fence)}</code></span>
      ${job.progress && html`<span>·</span><span>${Math.round(job.progress.fraction * 100)} % ${job.progress.text}</span>`}</div></div>`;
}

export function Why({ job, why }) {
  const known = useAsk(job.state === "failed" ? "jobs" : null, { q: `id:${job.id}` }).data?.items[0]?.cause;
  const causes = useAsk(known ? "failures" : null, { window: "24h" }).data;
  const cause = causes?.items.find((item) => item.cause === known);
  if (!why) return null;
  const isBad = job.state === "failed" || why.reason === "lease_over";
  return html`<div class=${`why${isBad ? " bad" : ""}`}><${Icon} name=${isBad ? "bad" : "help"} width=${1.5}/><div>
    <p><b>${`It ${why.text}`.replace(/\.?$/, ".")}</b></p>
    ${why.facts.filter((fact) => !fact.startsWith("last error")).map((fact) => html`<p key=${fact}>${fact}</p>`)}
    ${cause && html`<p>${plural(cause.attempts, "attempt")} failed this way since ${cause.release ? html`release <code>${cause.release}</code> at ` : ""}${time(cause.first_at, "min")}. ${" "}
      <a class="link" href=${href("failures", [cause.cause])}>Open the cause</a></p>`}
    ${why.hint && !isOver(job) && html`<p>${why.hint}</p>`}</div></div>`;
}

/** The last 50 runs of the same task: their lengths, and which failed. */
function Lately({ job }) {
  const { data } = useAsk("jobs", { q: `type:${job.type} state:completed,failed`, sort: "-ended", limit: 50 });
  const runs = (data?.items ?? []).filter((one) => one.started_at && one.finished_at).reverse();
  if (!data) return html`<div class="card"><div class="sub"><h2>This task lately</h2></div><${Loading} rows=${2}/></div>`;
  const lengths = runs.map(ran), longest = Math.max(...lengths, 0.001), sorted = [...lengths].sort((a, b) => a - b);
  const good = runs.filter((one) => one.state === "completed").length;
  const words = runs.length ? `${good} of the last ${runs.length} runs succeeded. Half took less than ${span(sorted[Math.floor(sorted.length / 2)])}, the longest ${span(longest)}.` : "No run of this task has ended yet.";
  return html`<div class="card"><div class="sub"><h2>This task lately</h2><span class="dim">last ${plural(runs.length, "run")}</span></div><div class="pad">
    ${runs.length > 0 && html`<svg width="100%" height="24" viewBox=${`0 0 ${Math.max(runs.length, 30) * 9} 24`} preserveAspectRatio="none" role="img" aria-label=${words}>
      ${runs.map((one, index) => { const tall = Math.max((lengths[index] / longest) * 22, 4); return html`<rect key=${one.id} x=${index * 9} y=${24 - tall} width="7" height=${tall} rx="1.5" class=${one.state === "failed" ? "f-bad" : "f-ink"}/>`; })}</svg>`}
    <p class="soft gap2">${words}</p></div></div>`;
}

const Instant = ({ at }) => html`${ago(at)}<br/><span class="dim">${day(at) === day(clock.now()) ? "" : `${day(at)} `}${time(at, "ms")}</span>`;

function JobFacts({ job }) {
  useTick(1);
  const tags = (job.headers.tags ?? "").split(",").map((tag) => tag.trim()).filter(Boolean);
  const trace = (job.headers.traceparent ?? "").split("-")[1];
  const of = (count, most) => `${number(count)} of ${most === null ? "∞" : number(most)}`;
  const groups = [
    [["Id", html`<code title=${job.id} class="cut blk">${job.id}</code>`], ["Queue", html`<a class="link" href=${href("queues", [job.queue])}>${job.queue}</a>`],
      ["Priority", `${job.priority}, in lane ${job.requires}`], job.key && ["Key", html`<code>${job.key}</code>`],
      job.idempotency_key && ["Idempotency", html`<code>${job.idempotency_key}</code>`], tags.length > 0 && ["Tags", tags.map((tag) => html`<span key=${tag} class="chip">${tag}</span> `)]],
    [["Attempts", of(job.attempts, job.max_attempts)], ["Stalls", of(job.stalls, job.max_stalls)], ["Timeout", job.timeout_s === null ? NONE : span(job.timeout_s)],
      ["Backoff", job.min_backoff_s === null ? NONE : `${span(job.min_backoff_s)} to ${span(job.max_backoff_s)}`], ["Fence", html`<code>${exact(job.fence)}</code>`]],
    (job.parent || job.children > 0) && [job.parent && ["Parent", html`<a class="link mono" href=${href("workflows", [job.parent])}>${shortId(job.parent)}</a>`],
      job.children > 0 && ["Children", html`<a class="link" href=${href("workflows", [job.id])}>${number(job.children - job.open_children)} of ${number(job.children)} over</a>`]],
    [["Enqueued", html`<${Instant} at=${job.created_at}/>`], job.run_at && !job.finished_at && ["Runs", html`<${Instant} at=${job.run_at}/>`],
      job.started_at && ["Started", html`<${Instant} at=${job.started_at}/>`], job.finished_at && ["Ended", html`<${Instant} at=${job.finished_at}/>`],
      job.release && ["Release", html`<code>${job.release}</code>`], trace && ["Trace", html`<code title=${trace}>${trace.slice(0, 8)}…</code>`], ["Zone", zoneName()]],
  ];
  return html`<aside aria-label="Facts"><div class="card pad">${groups.filter(Boolean).map((group, index) => html`${index > 0 && html`<hr/>`}
    <dl class="facts" key=${index}>${group.filter(Boolean).map(([name, value]) => html`<dt key=${`t${name}`}>${name}</dt><dd key=${name}>${value}</dd>`)}</dl>`)}</div></aside>`;
}


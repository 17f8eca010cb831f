/** One job: why it is where it is, its life to scale, its error, its arguments. */

import { hold, may, preview, retryOne } from "../deeds.js";
import { ago, clock, day, exact, instant, measured, number, percent, plural, secondsSince, shortId, span, time, zoneName } from "../format.js";
import { useKeys } from "../keys.js";
import { live, useEvents, useTick } from "../live.js";
import { BulkConfirm, save } from "../parts/bulkbar.js";
import { Bar } from "../parts/charts.js";
import { Button, Menu } from "../parts/controls.js";
import { copy } from "../parts/copy.js";
import { useAsk } from "../parts/data.js";
import { html, useEffect, useRef, useState } from "../parts/html.js";
import { Icon } from "../parts/icons.js";
import { EditRetry } from "../parts/jobdialogs.js";
import { attempts, ran } from "../parts/joblist.js";
import { attemptsOf, Life } from "../parts/life.js";
import { Empty, Loading } from "../parts/notes.js";
import { Asked, Facts, Head } from "../parts/page.js";
import { useCommands } from "../parts/palette.js";
import { State, isOver, stateOf } from "../parts/state.js";
import { asCli, asCurl, asPython, ErrorCard, ValueCard } from "../parts/texts.js";
import { trying } from "../parts/toast.js";
import { go, href } from "../route.js";

export const jobPage = { Page: Job, title: (route) => `Job ${shortId(route.path[0])}` };

export const NoJob = () => html`<${Empty} heading="No job has this id" text="It may have been deleted, or your token may not see its queue." acts=${html`<${Button} href="#/jobs">All jobs<//>`}/>`;

function Job({ route, api }) {
  const id = route.path[0], asked = useAsk(["jobs", id]), job = asked.answer;
  const why = useAsk(job ? `jobs/${id}/why` : null, {}, { every: job && !isOver(job) ? 5 : 0 });
  const [gone, lose] = useState(null);
  const again = () => { asked.ask(); why.ask(); };
  useEffect(() => { live.follow([id]); return () => live.follow([]); }, [id]);
  useEvents("job", (changed) => { if ((changed.asked_id ?? changed.id) === id && changed.version !== job?.version) { lose(null); again(); } });
  useEvents("job_gone", (event) => { if (event.id === id) lose(id); });
  if (gone === id || (!job && asked.problem?.status === 404)) return html`<${NoJob}/>`;
  if (!job) return html`<${Asked} of=${asked} what="The job could not be loaded" rows=${10}/>`;
  const all = attemptsOf(job), failures = all.filter((one) => one.error), isDone = job.state === "completed";
  const lately = html`<${Lately} job=${job}/>`;
  return html`<${JobHead} job=${job} api=${api} route=${route} again=${again}/>
    <div class="cols"><div>
      ${job.state === "running" && html`<${Lease} job=${job}/>`}
      <${Why} job=${job} why=${why.answer}/>
      <${Life} job=${job} attempts=${all}/>
      ${failures.length > 0 && html`<${ErrorCard} attempts=${failures}/>`}
      <section class="two even"><${ValueCard} heading="Arguments" what="the arguments" value=${job.payload} base64=${job.payload_base64}/>
        ${isDone ? html`<${ValueCard} heading="Result" what="the result" value=${job.result} base64=${job.result_base64}/>` : lately}</section>
      ${isDone && html`<section>${lately}</section>`}
    </div><${JobFacts} job=${job}/></div>`;
}

/** Name, state, and what can be done. */
function JobHead({ job, api, route, again }) {
  const [asked, ask] = useState(route.query.edit);
  const [found, find] = useState(null);
  const { id } = job, isEnded = isOver(job), remover = { action: "delete", ids: [id] };
  const retry = isEnded && may("retry") && (() => retryOne(job, {}, again));
  const cancel = !isEnded && !job.cancel_requested && may("cancel") && (() => hold({ action: "cancel", ids: [id] }, again));
  const remove = isEnded && may("delete") && (() => trying("Nothing was deleted", async () => find(await preview(remover))));
  const edit = retry && (() => ask(true));
  const copyId = ["Copy the id", () => copy(id, "the id"), "y", "copy"];
  const copies = [["Python", asPython, "the call"], ["CLI", asCli, "the command"], ["curl", (one) => asCurl(one, api.url("jobs").href), "the request"]].map(([name, text, what]) => [name, () => copy(text(job), what)]);
  const close = () => { ask(false); route.set({ edit: null }); };
  useKeys({ r: retry, c: cancel, e: edit, y: copyId[1], Esc: () => go("#/jobs") });
  useCommands([retry && ["Retry this job", retry, "r"], edit && ["Edit and retry this job", edit, "e"], cancel && ["Cancel this job", cancel, "c"],
    ...copies.map(([name, action]) => [`Copy as ${name}`, action, "", "copy"]), copyId, remove && ["Delete this job", remove]]);
  return html`<${Head} trail=${[["Jobs", "#/jobs"]]} here=${html`<span class="mono">${shortId(id)}</span>`} heading=${job.type} pill=${html`<${State} glyph=${stateOf(job)} pill/>`}
    acts=${html`${retry && html`<${Button} look=${job.state === "completed" ? "" : "main"} onClick=${retry}>Retry<//><${Button} onClick=${edit}>Edit and retry…<//>`}${cancel && html`<${Button} onClick=${cancel}>Cancel<//>`}
      <${Menu} label="Copy as" text="Copy as" items=${copies}/>
      <${Menu} label="More actions" icon="more" items=${[copyId.slice(0, 2), ["Jobs of this task", () => go(href("jobs", [], { q: `type:${job.type}` }))],
        ["Save as NDJSON", () => save(remover)], remove && ["Delete…", remove, "bad"]]}/>`}>
    ${asked && retry && html`<${EditRetry} job=${job} onClose=${close} onDone=${again}/>`}
    ${found && html`<${BulkConfirm} deed=${remover} found=${found} onClose=${() => find(null)} onDone=${(end) => end === "done" && go("#/jobs")}/>`}<//>`;
}

/** The lease runs down and is extended; the longest that was seen is the whole bar. */
function Lease({ job: { lease_expires_at: end, worker_id: worker, progress, ...job } }) {
  useTick(1);
  const most = useRef(1), left = Math.max(-secondsSince(end), 0);
  most.current = Math.max(most.current, left);
  return html`<div class="card pad gapb"><div class="row"><${State} glyph="running" pill/><b class="cut">${worker}</b>
      <span class="end soft nowrap">${left > 0 ? html`lease ends in <b>${Math.round(left)} s</b>` : html`<b>lease has run out</b>`}</span></div>
    <div class="gap1"><${Bar} tone=${left > 0 ? "run" : "full"} height=${5} share=${left / most.current}/></div>
    <div class="row gap1 dim wrap"><span>runs for ${measured(ran(job))}</span><span>·</span><span>fence <code>${exact(job.fence)}</code></span>
      ${progress && html`<span>·</span><span>${percent(progress.fraction)} ${progress.text}</span>`}</div></div>`;
}

export function Why({ job, why }) {
  const known = useAsk(job.state === "failed" ? "jobs" : null, { q: `id:${job.id}` }).answer?.items[0]?.cause;
  const cause = useAsk(known ? "failures" : null, { window: "24h" }).answer?.items.find((item) => item.cause === known);
  if (!why) return null;
  const isBad = job.state === "failed" || why.reason === "lease_over";
  return html`<div class=${`why${isBad ? " bad" : ""}`}><${Icon} glyph=${isBad ? "bad" : "help"} width=${1.5}/><div>
    <p><b>${`It ${isOver(job) ? why.text.replace(/ \S+ ago/, "") : why.text}`.replace(/\.?$/, ".")}</b></p>
    ${why.facts.filter((fact) => !fact.startsWith("last error")).map((fact) => html`<p>${fact}</p>`)}
    ${cause && html`<p>${plural(cause.attempts, "attempt")} failed this way since ${cause.began_with && html`release <code>${cause.began_with}</code> at `}${time(cause.first_at, "min")}. ${" "}
      <a class="link" href=${href("failures", [cause.cause])}>Open the cause</a></p>`}
    ${!isOver(job) && html`<p>${why.hint}</p>`}</div></div>`;
}

/** The last 50 runs of the same task: their lengths, and which failed. */
function Lately({ job }) {
  const { answer: data } = useAsk("jobs", { q: `type:${job.type} state:completed,failed`, sort: "-ended", limit: 50 });
  const runs = (data?.items ?? []).filter((one) => one.started_at && one.finished_at).reverse(), lengths = runs.map(ran);
  const at = (share, some = lengths) => span([...some].sort((a, b) => a - b)[Math.ceil(some.length * share) - 1]);
  const [before, since] = [0, 1].map((is) => lengths.filter((_, index) => is == runs[index].started_at >= job.release_since));
  const longest = Math.max(...lengths, 0.001), good = runs.filter((one) => one.state === "completed").length;
  const words = !runs.length ? "No run is known." : `${good} of the last ${runs.length} runs succeeded. ${before.length > 19 && since.length > 19
    ? `p95 was ${at(0.95, before)} before release ${job.release}, and is ${at(0.95, since)} since.` : `Half took at most ${at(0.5)}, the longest ${span(longest)}.`}`;
  return html`<div class="card"><div class="sub"><h2>This task lately</h2>${data && html`<span class="dim">last ${plural(runs.length, "run")}</span>`}</div>${!data ? html`<${Loading} rows=${2}/>` : html`<div class="pad">
    ${runs.length > 0 && html`<svg width="100%" height="24" viewBox=${`0 0 ${Math.max(runs.length, 30) * 9} 24`} preserveAspectRatio="none" role="img" aria-label=${words}>
      ${runs.map((one, index) => { const tall = Math.max((lengths[index] / longest) * 22, 4); return html`<rect x=${index * 9} y=${24 - tall} width="7" height=${tall} rx="1.5" class=${one.state === "failed" ? "f-bad" : "f-ink"}/>`; })}</svg>`}
    <p class="soft gap2">${words}</p></div>`}</div>`;
}

const instantFact = (word, at) => at && [word, html`${ago(at)}<br/><span class="dim">${day(at) === day(clock.now()) ? "" : `${day(at)} `}${time(at, "ms")}</span>`];

function JobFacts({ job }) {
  useTick(1);
  const tags = (job.headers.tags ?? "").split(",").map((tag) => tag.trim()).filter(Boolean), trace = (job.headers.traceparent ?? "").split("-")[1];
  const code = (word, text) => text && [word, html`<code>${text}</code>`], link = (text, ...place) => html`<a class="link" href=${href(...place)}>${text}</a>`;
  const groups = [
    [["Id", html`<code title=${job.id} class="cut blk">${job.id}</code>`], ["Queue", link(job.queue, "queues", [job.queue])],
      ["Priority", `${job.priority}, in lane ${job.requires}`], code("Key", job.key), code("Idempotency", job.idempotency_key), tags.length > 0 && ["Tags", tags.map((tag) => html`<span class="chip">${tag}</span> `)]],
    [["Attempts", attempts(job)], ["Stalls", `${job.stalls} of ${job.max_stalls ?? "∞"}`], ["Timeout", span(job.timeout_s)],
      ["Backoff", job.min_backoff_s !== null && `${span(job.min_backoff_s)} to ${span(job.max_backoff_s)}`], code("Fence", exact(job.fence))],
    (job.parent || job.children > 0) && [job.parent && ["Parent", link(html`<span class="mono">${shortId(job.parent)}</span>`, "workflows", [job.parent])],
      job.children > 0 && ["Children", link(`${number(job.children - job.open_children)} of ${number(job.children)} over`, "workflows", [job.id])]],
    [instantFact("Enqueued", job.created_at), !job.finished_at && instantFact("Runs", job.run_at), instantFact("Started", job.started_at), instantFact("Ended", job.finished_at), job.kept_until && ["Kept until", html`<span title=${instant(job.kept_until)}>${day(job.kept_until)}</span>`],
      code("Release", job.release), trace && ["Trace", html`<${job.trace_url ? "a" : "span"} class=${job.trace_url && "link"} href=${job.trace_url} title=${trace}><code>${trace.slice(0, 8)}…</code><//>`], ["Zone", zoneName()]],
  ];
  return html`<aside aria-label="Facts"><div class="card pad">${groups.filter(Boolean).map((rows, index) => html`${index > 0 && html`<hr/>`}<${Facts} look="" rows=${rows}/>`)}</div></aside>`;
}

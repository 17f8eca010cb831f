/** One cause: since when, what its jobs have in common, the newest traceback, and what to do about it. */

import { api } from "../api.js";
import { change, hold, may, preview, retryOne } from "../deeds.js";
import { ago, clock, day, instant, number, percent, plural, shortId, time } from "../format.js";
import { useKeys } from "../keys.js";
import { useTick } from "../live.js";
import { Bar } from "../parts/charts.js";
import { Button } from "../parts/controls.js";
import { useAsk } from "../parts/data.js";
import { Confirm } from "../parts/dialog.js";
import { html, useState } from "../parts/html.js";
import { Loading, Trouble } from "../parts/notes.js";
import { useCommands } from "../parts/palette.js";
import { Trace } from "../parts/texts.js";
import { sayProblem } from "../parts/toast.js";
import { go, href } from "../route.js";

export const since = (at) => (day(at) === day(clock.now()) ? time(at, "min") : day(at));

const KINDS = { error: "no traceback", timeout: "it ran longer than its timeout", stalled: "lease ran out without a heartbeat", no_handler: "no worker knows this task", invalid_payload: "its arguments do not fit the task" };
export const kindText = (kind) => KINDS[kind] ?? kind ?? "";

/** `#/failures/<cause>`: the permalink. */
export function CausePage({ id, session, window }) {
  const { data, problem, ask } = useAsk(`failures/${encodeURIComponent(id)}`, { window }, { every: 15, on: "failures" });
  useKeys({ Esc: () => go(href("failures")) });
  return html`
    <div class="head"><div class="grow"><p class="crumb"><a class="link" href=${href("failures")}>Failures</a> / <span class="dim mono">${id.slice(0, 8)}</span></p>
      <h1>${data ? data.title : "Cause"}</h1>
      <p class="lede">${data && html`in ${data.type}, <span class="mono">${data.frame ?? kindText(data.failure_kind)}</span>`}</p></div></div>
    ${problem && html`<div class="gapb"><${Trouble} problem=${problem} what=${problem.status === 404 ? "This cause is not known any more" : undefined} onAgain=${ask}/></div>`}
    ${data ? html`<div class="card lone"><${Inside} found=${data} session=${session} changed=${ask}/></div>` : !problem && html`<${Loading}/>`}`;
}

/** The same below its row in the list. */
export function Cause({ id, item, session, window, changed }) {
  const { data, problem, ask } = useAsk(`failures/${encodeURIComponent(id)}`, { window }, { every: 15, on: "failures" });
  if (problem && !data) return html`<div class="open one"><${Trouble} problem=${problem} onAgain=${ask}/></div>`;
  return html`<${Inside} found=${{ ...data, ...item }} isComplete=${data !== null} session=${session} changed=${() => { ask(); changed(); }}/>`;
}

function Inside({ found, isComplete = true, session, changed }) {
  const [plan, ready] = useState(null); // the preview of "retry all"
  useTick(5);
  const q = `state:failed cause:${found.cause}`;
  const dead = found.dead_now?.count ?? found.dead, many = `${number(dead)}${found.dead_now?.exact === false ? "+" : ""}`;
  const retryAll = async () => {
    try { ready(await preview({ action: "retry", q })); } catch (problem) { sayProblem(problem, "Nothing was retried"); }
  };
  const first = found.jobs?.find((job) => job.state === "failed");
  const deeds = [
    may(session, "retry") && dead > 0 && ["Retry one to see", () => retryOne(first ?? { id: found.sample, type: found.type }, {}, changed), "main"],
    may(session, "retry") && dead > 0 && [`Retry all ${dead > 1 ? many : ""}…`, retryAll],
    ...(may(session, "configure") ? statusDeeds(found, changed) : []),
  ].filter(Boolean);
  useCommands(deeds.map(([label, act]) => [label, act]));
  useKeys(may(session, "retry") && dead > 0 ? { r: deeds[0][1] } : {});
  return html`<div class="open" role="region" aria-label=${`Cause: ${found.title}`}>
    <div><p>${began(found)}</p><p class="soft gap1">${left(found, dead, many)}</p>
      ${deeds.length > 0 && html`<div class="acts gap2">${deeds.map(([label, act, kind]) => html`<${Button} key=${label} kind=${kind} onClick=${act}>${label}<//>`)}</div>`}
      ${isComplete && html`<${Latest} jobs=${found.jobs}/>`}</div>
    <div>${isComplete ? html`<${Common} found=${found}/>` : html`<${Loading} rows=${3}/>`}</div>
    ${isComplete && html`<${Newest} job=${found.jobs.find((job) => job.last_error)}/>`}
    ${plan && html`<${Confirm} title=${`Retry ${plan.exact ? "" : "at least "}${plural(plan.count, "job")}?`} verb="Retry" count=${plan.count} isExact=${plan.exact} samples=${plan.samples} skipped=${plan.skipped}
      onDo=${() => { ready(null); hold({ action: "retry", q, expect: plan.count }, changed); }} onClose=${() => ready(null)}>
      <p class="soft gap1">They failed with ${found.title} in ${found.type}. You can take it back for 8 seconds after this.</p><//>`}</div>`;
}

function began(found) {
  if (found.is_new && found.release) return html`<b>Began with release <code>${found.release}</code></b>, ${ago(found.first_at)}.`;
  if (found.is_new) return html`<b>New</b>: it began ${ago(found.first_at)}.`;
  return html`<b>Since ${since(found.first_at)}</b>, last ${ago(found.last_at)}.`;
}

function left(found, dead, many) {
  const used = dead === 0 ? "None of its jobs is dead." : dead === 1 ? "One job has used up its attempts." : `${many} jobs have used up their attempts.`;
  const more = found.attempts - found.dead;
  return `${plural(found.attempts, "attempt")} failed${more > 0 && dead === 0 ? "; the jobs try again by themselves" : ""}. ${used}`;
}

const STATUS = { muted: ["mute", {}], snoozed: ["snooze", { until: "release" }], open: ["open", {}] };

/** Mute, snooze and open happen at once; Undo sets what it was before. */
function statusDeeds(found, changed) {
  const send = (status) => api.post(`failures/${found.cause}/${STATUS[status][0]}`, STATUS[status][1]);
  const become = (status, words) => () => change(`${found.title}: ${words}`, () => send(status), () => send(found.status), changed);
  if (found.status !== "open") return [["Open again", become("open", "open again")]];
  return [["Snooze until next release", become("snoozed", "snoozed until the next release")], ["Mute", become("muted", "muted"), "bare"]];
}

function Latest({ jobs }) {
  if (!jobs.length) return html`<p class="dim gap3">None of its jobs is kept any more.</p>`;
  return html`<p class="gap3"><b>Latest</b></p><ul class="lines">${jobs.slice(0, 5).map((job) => html`<li key=${job.id}>
    <a class="link mono" href=${href("jobs", [job.id])}>${shortId(job.id)}</a><span class="cut soft">${message(job.last_error)}</span>
    <span class="dim end" title=${instant(job.failed_at ?? job.updated_at)}>${ago(job.failed_at ?? job.updated_at)}</span></li>`)}</ul>`;
}

/** The last line of an error, without the name of its class. */
function message(text) {
  const line = (text ?? "").trimEnd().split("\n").at(-1).trim();
  return line.replace(/^[A-Za-z_][\w.]*: /, "") || "no message";
}

function Common({ found }) {
  const rows = found.common.slice(0, 8);
  const telling = rows.find((row) => row.share >= 0.9 && row.share_of_others != null && row.share - row.share_of_others >= 0.2);
  return html`<p><b>What they have in common</b> <span class="dim">${number(found.looked_at)} looked at</span></p>
    ${rows.length ? html`<div class="same gap1">${rows.map((row) => html`<${Share} key=${label(row)} row=${row}/>`)}</div>`
      : html`<p class="dim gap1">Nothing: they differ in every argument, worker and release.</p>`}
    ${telling && html`<p class="dim gap2">Other jobs of this task: ${label(telling)} in ${percent(telling.share_of_others)}.</p>`}`;
}

function Share({ row }) {
  const text = label(row);
  return html`${row.what.startsWith("args.") ? html`<code class="cut" title=${text}>${text}</code>` : html`<span class="cut" title=${text}>${text}</span>`}
    <${Bar} share=${row.share} tone=${row.share >= 0.9 ? "acc" : ""}/><span class="num">${percent(row.share)}</span>`;
}

const label = ({ what, value }) => (what.startsWith("args.") ? `${what.slice(5)}=${typeof value === "string" ? JSON.stringify(value) : value}` : `${what} ${value}`);

/** The traceback is in the job's history; lists carry only the line. */
function Newest({ job }) {
  const { data } = useAsk(job ? `jobs/${job.id}` : null);
  if (!job) return null;
  const text = data?.history.findLast((attempt) => attempt.error)?.error ?? job.last_error;
  return html`<div class="span"><div class="card"><div class="sub"><h2>Newest error</h2><a class="link mono" href=${href("jobs", [job.id])}>${shortId(job.id)}</a></div>
    <${Trace} text=${text} label="Newest traceback"/></div></div>`;
}

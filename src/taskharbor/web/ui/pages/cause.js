/** One cause: since when, what its jobs have in common, the newest traceback, and what to do about it. */

import { api } from "../api.js";
import { change, may, preview, retryOne } from "../deeds.js";
import { clock, day, number, percent, shortId, time } from "../format.js";
import { useKeys } from "../keys.js";
import { BulkConfirm } from "../parts/bulkbar.js";
import { Bar } from "../parts/charts.js";
import { Button } from "../parts/controls.js";
import { useAsk } from "../parts/data.js";
import { html, useState } from "../parts/html.js";
import { Loading } from "../parts/notes.js";
import { Ago, Asked, Head, marked } from "../parts/page.js";
import { useCommands } from "../parts/palette.js";
import { Trace } from "../parts/texts.js";
import { trying } from "../parts/toast.js";
import { go, href } from "../route.js";

export const since = (at) => (day(at) === day(clock.now()) ? time(at, "min") : day(at));

const useCause = (id, window) => useAsk(["failures", id], { window }, { every: 15, on: "failures" });

/** `#/failures/<cause>`: the permalink. */
export function CausePage({ id, window }) {
  const asked = useCause(id, window), { answer: data, problem, ask } = asked;
  useKeys({ Esc: () => go("#/failures") });
  return html`<${Head} trail=${[["Failures", "#/failures"]]} here=${html`<span class="mono">${id.slice(0, 8)}</span>`} heading=${data ? data.title : "Cause"}
      lede=${data && html`in ${data.type}, <span class="mono">${data.place}</span>`}/>
    <${Asked} of=${asked} what=${problem?.status === 404 ? "This cause is not known any more" : undefined}>${() => html`<div class="card lone"><${Inside} found=${data} isComplete changed=${ask}/></div>`}<//>`;
}

/** The same below its row in the list. */
export function Cause({ id, item, window, changed }) {
  const asked = useCause(id, window), { answer: data, problem, ask } = asked;
  return problem && !data ? html`<div class="open one"><${Asked} of=${asked}/></div>`
    : html`<${Inside} found=${{ ...data, ...item }} isComplete=${data} changed=${() => { ask(); changed(); }}/>`;
}

function Inside({ found, isComplete, changed }) {
  const [plan, ready] = useState(null); // the preview of "retry all"
  const deed = { action: "retry", q: `state:failed cause:${found.cause}` }, jobs = found.jobs ?? [];
  const [point] = found.began.split(",", 1), { count, exact } = found.dead_now ?? {}, dead = count || (exact ? 0 : found.dead), many = number(dead) + (exact || !count ? "" : "+");
  const retries = may("retry") ? [
    ["Retry one to see", () => retryOne(jobs.find((job) => job.state === "failed") ?? { id: found.sample, type: found.type }, {}, changed), "main"],
    [`Retry all${dead > 1 ? ` ${many}` : ""}…`, () => trying("Nothing was retried", async () => ready(await preview(deed)))],
  ] : [], says = may("configure") ? statusDeeds(found, changed) : [], deeds = [...retries, ...says];
  const buttons = (some, disabled) => some.map(([label, act, kind]) => html`<${Button} look=${kind} disabled=${disabled} onClick=${act}>${label}<//>`);
  useCommands((dead ? deeds : says).map(([label, act]) => [label, act]));
  useKeys({ r: dead && retries[0]?.[1] });
  return html`<div class="open" role="region" aria-label=${`Cause: ${found.title}`}>
    ${deeds.length > 0 && html`<div class="acts span">${buttons(retries, !dead)}<span class="end"></span>${buttons(says)}</div>`}
    <div><p><b>${marked(point)}</b>${marked(found.began.slice(point.length))}</p><p class="soft gap1">${found.outlook}</p>
      ${isComplete && html`<${Latest} jobs=${jobs}/>`}</div>
    <div>${isComplete ? html`<${Common} found=${found}/>` : html`<${Loading} rows=${3}/>`}</div>
    ${isComplete && html`<${Newest} job=${jobs.find((job) => job.last_error)}/>`}
    ${plan && html`<${BulkConfirm} deed=${deed} found=${plan} words=${`They failed with ${found.title} in ${found.type}.`} onClose=${() => ready(null)} onDone=${changed}/>`}</div>`;
}

const STATUS = { muted: ["mute", {}], snoozed: ["snooze", { until: "release" }], open: ["open", {}] };

/** Mute, snooze and open happen at once; Undo sets what it was before. */
function statusDeeds(found, changed) {
  const send = (status) => api.post(["failures", found.cause, STATUS[status][0]], STATUS[status][1]);
  const become = (status, words) => () => change(`${found.title}: ${words}`, () => send(status), () => send(found.status), changed);
  if (found.status !== "open") return [["Open again", become("open", "open again")]];
  return [["Snooze until next release", become("snoozed", "snoozed until the next release")], ["Mute", become("muted", "muted"), "bare"]];
}

const Latest = ({ jobs }) => (!jobs.length ? html`<p class="dim gap3">None of its jobs is kept.</p>`
  : html`<p class="gap3"><b>Latest</b></p><ul class="lines">${jobs.slice(0, 5).map((job) => html`<li key=${job.id}>
    <a class="link mono" href=${href("jobs", [job.id])}>${shortId(job.id)}</a><span class="cut soft">${marked(job.message || "no message", (part) => html`<span class="chip">${part}</span>`)}</span>
    <span class="dim end"><${Ago} at=${job.failed_at ?? job.updated_at}/></span></li>`)}</ul>`);

function Common({ found }) {
  const rows = found.common, telling = rows.find((row) => row.share >= 0.9 && row.share_of_others != null);
  return html`<p><b>What they have in common</b> <span class="dim">${number(found.looked_at)} looked at</span></p>
    ${rows.length ? html`<div class="same gap1">${rows.map(({ what, text, share }) => html`<span class=${`cut ${what.startsWith("args.") ? "mono" : ""}`} title=${text}>${text}</span><${Bar} share=${share} tone=${share >= 0.9 ? "acc" : ""}/><span class="num">${percent(share)}</span>`)}</div>`
      : html`<p class="dim gap1">Nothing.</p>`}
    ${telling && html`<p class="dim gap2">Other jobs of this task: ${telling.text} in ${percent(telling.share_of_others)}.</p>`}`;
}

/** The traceback is in the job's history; lists carry only the line. */
function Newest({ job }) {
  const { answer: data } = useAsk(job ? `jobs/${job.id}` : null);
  return job && html`<div class="span"><div class="card"><div class="sub"><h2>Newest error</h2><a class="link mono" href=${href("jobs", [job.id])}>${shortId(job.id)}</a></div>
    <${Trace} text=${data?.history.findLast((attempt) => attempt.error)?.error ?? job.last_error} label="Traceback"/></div></div>`;
}

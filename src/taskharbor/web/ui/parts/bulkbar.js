/** What to do with the selected jobs: retry, edit and retry, cancel, export, delete. */

import { api } from "../api.js";
import { hold, may, preview, retryOne } from "../deeds.js";
import { number, plural } from "../format.js";
import { Button, Tick } from "./controls.js";
import { Confirm } from "./dialog.js";
import { html, useState } from "./html.js";
import { EditRetry } from "./jobdialogs.js";
import { isOver } from "./state.js";
import { say, sayProblem } from "./toast.js";

const VERBS = { retry: "Retry", cancel: "Cancel", delete: "Delete" };
const MOST_SAVED = 10_000;

/** A file with a job on each line. */
export async function save(target) {
  try {
    const jobs = [];
    if (target.ids) for (const id of target.ids) jobs.push(await api.get(`jobs/${id}`));
    else {
      let cursor = null;
      do {
        const page = await api.get("jobs", { q: target.q, limit: 500, cursor });
        jobs.push(...page.items);
        cursor = page.next_cursor;
      } while (cursor && jobs.length < MOST_SAVED);
    }
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([jobs.map((job) => `${JSON.stringify(job)}\n`).join("")], { type: "application/x-ndjson" }));
    link.download = "jobs.ndjson";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    say(`Saved ${plural(jobs.length, "job")} as jobs.ndjson`);
  } catch (problem) { sayProblem(problem, "Nothing was saved"); }
}

/** @param {{ jobs: any[], q: string, isAll: boolean, count: any, session: any, onAll: Function, onClear: Function, onDone: Function }} props
 *    `isAll`: everything that matches, not only these jobs */
export function BulkBar({ jobs, q, isAll, count, session, onAll, onClear, onDone }) {
  const [asked, ask] = useState(null); // { action, found } or "edit"
  const target = isAll ? { q } : { ids: jobs.map((job) => job.id) };
  const finish = () => { ask(null); onClear(); onDone(); };
  const show = async (action, edit) => {
    try { ask({ action, edit, found: await preview({ action, ...target }) }); } catch (problem) { sayProblem(problem, "Nothing was done"); }
  };
  const act = async (action, edit) => {
    // One retry is at once; some jobs are held; everything that matches, and every delete, is shown before.
    if (isAll || action === "delete" || jobs.length > 100) show(action, edit);
    else if (action === "retry" && jobs.length === 1) { if (await retryOne(jobs[0], edit, onDone)) onClear(); }
    else if (await hold({ action, ...target, ...(edit && { edit }) }, onDone)) finish();
  };
  const can = { retry: isAll || jobs.some(isOver), cancel: isAll || jobs.some((job) => !isOver(job)), delete: isAll || jobs.some((job) => isOver(job)) };
  const allowed = (action) => may(session, action) && can[action];
  const matches = count && `Select all ${number(count.count)}${count.exact ? "" : "+"} that match`;
  return html`<div class="bulk"><${Tick} label="Clear selection" isOn=${true} onClick=${onClear}/>
    <b>${isAll ? `All ${count ? number(count.count) + (count.exact ? "" : "+") : ""} that match` : `${number(jobs.length)} selected`}</b>
    ${!isAll && q && count && count.count > jobs.length && html`<button class="link" type="button" onClick=${onAll}>${matches}</button>`}
    <span class="end"></span>
    ${allowed("retry") && html`<${Button} onClick=${() => act("retry")}>Retry<//><${Button} onClick=${() => ask("edit")}>Edit and retry…<//>`}
    <${Button} wide=${true} onClick=${() => save(target)}>Export<//>
    ${allowed("cancel") && html`<${Button} onClick=${() => act("cancel")}>Cancel<//>`}
    ${allowed("delete") && html`<${Button} kind="bad" onClick=${() => act("delete")}>Delete…<//>`}
    ${asked === "edit" && html`<${EditRetry} count=${isAll ? count?.count : jobs.length} onClose=${() => ask(null)} onRetry=${(edit) => { ask(null); act("retry", edit); }}/>`}
    ${asked?.found && html`<${BulkConfirm} ...${asked} q=${isAll ? q : ""} onClose=${() => ask(null)} onSave=${() => save(target)}
      onDo=${async () => { if (await hold({ action: asked.action, ...target, ...(asked.edit && { edit: asked.edit }), expect: asked.found.count }, onDone)) finish(); }}/>`}
  </div>`;
}

/** @param {{ action: string, found: any, q: string, onDo: Function, onClose: Function, onSave?: Function }} props `found` is the preview */
export const BulkConfirm = ({ action, found, q, onDo, onClose, onSave }) => html`
  <${Confirm} title=${`${VERBS[action]} ${plural(found.count, "job")}?`} verb=${VERBS[action]} count=${found.count} isExact=${found.exact} isBad=${action !== "retry"}
    samples=${found.samples ?? []} skipped=${found.skipped ?? []} onDo=${onDo} onClose=${onClose}
    more=${action === "delete" && onSave && html`<button class="btn" type="button" onClick=${onSave}>Save them first</button>`}>
    <p class="soft gap1">${q ? html`They match <code>${q}</code>.` : ""} ${found.count === 0 ? "Nothing can be done to them now." : "It begins 8 s later: until then Undo takes it back."}</p><//>`;

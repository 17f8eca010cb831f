/** What to do with the selected jobs: retry, edit and retry, cancel, export, delete. */

import { api } from "../api.js";
import { hold, may, preview, retryOne } from "../deeds.js";
import { capital, number, plural } from "../format.js";
import { Button, Tick } from "./controls.js";
import { Confirm } from "./dialog.js";
import { html, useState } from "./html.js";
import { EditRetry } from "./jobdialogs.js";
import { isOver } from "./state.js";
import { say, trying } from "./toast.js";

const MOST_SAVED = 10_000;

/** A file with a job on each line. */
export const save = (target) => trying("Nothing was saved", async () => {
  const jobs = [];
  let cursor = null;
  for (const id of target.ids ?? []) jobs.push(await api.get(`jobs/${id}`));
  if (target.q) {
    do {
      const page = await api.get("jobs", { q: target.q, limit: 500, cursor });
      jobs.push(...page.items);
      cursor = page.next_cursor;
    } while (cursor && jobs.length < MOST_SAVED);
  }
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(jobs.map((job) => `${JSON.stringify(job)}\n`), { type: "application/x-ndjson" }));
  link.download = "jobs.ndjson";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  say(`Saved ${plural(jobs.length, "job")} as jobs.ndjson`);
});

/** How many, with a sign where there may be more. */
export const counted = ({ count, exact }) => `${number(count)}${exact ? "" : "+"}`;

/** @param {{ jobs: any[], q: string, isAll: boolean, count: any, onAll: Function, onClear: Function, onDone: Function }} props
 *    `isAll`: everything that matches, not only these jobs */
export function BulkBar({ jobs, q, isAll, count, onAll, onClear, onDone }) {
  const [asked, ask] = useState(null); // { deed, found } or "edit"
  const target = isAll ? { q } : { ids: jobs.map((job) => job.id) }, close = () => ask(null);
  const act = async (action, edit) => {
    // One retry is at once; some jobs are held; everything that matches, and every delete, is shown before.
    const deed = { action, ...target, ...(edit && { edit }) };
    if (isAll || action === "delete" || jobs.length > 100) trying("Nothing was done", async () => ask({ deed, found: await preview({ action, ...target }) }));
    else if (await (action === "retry" && jobs.length === 1 ? retryOne(jobs[0], edit, onDone) : hold(deed, onDone))) onClear();
  };
  const button = (action, word, kind) => may(action) && (isAll || jobs.some((job) => isOver(job) === (action !== "cancel"))) && html`<${Button} look=${kind} onClick=${() => act(action)}>${word}<//>`;
  const retry = button("retry", "Retry");
  return html`<div class="bulk"><${Tick} label="Clear selection" isOn=${true} onClick=${onClear}/>
    <b>${isAll ? `All ${count ? counted(count) : ""} that match` : `${number(jobs.length)} selected`}</b>
    ${!isAll && q && count?.count > jobs.length && html`<button class="link" type="button" onClick=${onAll}>Select all ${counted(count)} that match</button>`}
    <span class="end"></span>
    ${retry}${retry && html`<${Button} onClick=${() => ask("edit")}>Edit and retry…<//>`}<${Button} wide onClick=${() => save(target)}>Export<//>
    ${button("cancel", "Cancel")}${button("delete", "Delete…", "bad")}
    ${asked === "edit" && html`<${EditRetry} count=${isAll ? count?.count : jobs.length} onClose=${close} onRetry=${(edit) => { close(); act("retry", edit); }}/>`}
    ${asked?.found && html`<${BulkConfirm} ...${asked} onClose=${close} onDone=${onDone} onHeld=${onClear}/>`}
  </div>`;
}

/** @param {{ deed: any, found: any, words?: any, onClose: Function, onDone: Function, onHeld?: Function }} props
 *    `found` is the preview of the deed; `words` say which jobs they are */
export function BulkConfirm({ deed, found, words, onClose, onDone, onHeld }) {
  const { action, q } = deed, verb = capital(action);
  const begin = async () => { if (await hold({ ...deed, expect: found.count, as_of: found.at }, onDone)) onHeld?.(); onClose(); };
  return html`<${Confirm} heading=${`${verb} ${plural(found.count, "job")}?`} verb=${verb} count=${found.count} isExact=${found.exact} isBad=${action !== "retry"} text=${found.text} samples=${found.samples}
    onDo=${begin} onClose=${onClose} more=${action === "delete" && html`<${Button} onClick=${() => save(deed)}>Save them first<//>`}>
    ${words ?? (q && html`They match <code>${q}</code>.`)} ${found.count === 0 ? "Nothing can be done to them now." : "It begins 8 s later: until then Undo takes it back."}<//>`;
}

/** Audit: who changed what, with Undo for settings that are still as they were set. */

import { api } from "../api.js";
import { may } from "../deeds.js";
import { NONE, ago, instant, number, shortId } from "../format.js";
import { live, useTick } from "../live.js";
import { Button } from "../parts/controls.js";
import { html, useCallback, useEffect, useState } from "../parts/html.js";
import { Empty, Loading, Trouble } from "../parts/notes.js";
import { say, sayProblem } from "../parts/toast.js";
import { href } from "../route.js";

const AUDIT_PAGE = 50;
const ID = /^[0-9a-f]{8}-[0-9a-f]{4}-/;

export function Audit({ session }) {
  const [pages, become] = useState([]);
  const [problem, fail] = useState(null);
  useTick(5);
  const ask = useCallback(async (before) => {
    try {
      const page = await api.get("audit", { limit: AUDIT_PAGE, before });
      become((known) => (before ? [...known, page] : [page]));
      fail(null);
    } catch (error) { fail(error); }
  }, []);
  useEffect(() => { ask(); }, []);
  const items = pages.flatMap((page) => page.items), next = pages.at(-1)?.next_cursor;
  const undo = async (entry) => {
    try { await api.post(`audit/${encodeURIComponent(entry.request_id)}/undo`); say(`Undone: ${sentence(entry)}`); live.refresh(); } catch (error) { sayProblem(error, "It was not undone"); }
    ask();
  };
  if (!pages.length) return html`<section>${problem ? html`<${Trouble} problem=${problem} onAgain=${() => ask()}/>` : html`<${Loading}/>`}</section>`;
  return html`<section><div class="cap"><h2>What people changed</h2><span class="dim">the newest first, for 90 days</span><span class="end"></span><${Button} kind="bare" onClick=${() => ask()}>Refresh<//></div>
    ${problem && html`<div class="gapb"><${Trouble} problem=${problem} onAgain=${() => ask()}/></div>`}
    ${pages[0].is_kept === false ? html`<${Empty} title="This store keeps no audit log" text="It has no logbook. The server still writes changes to its log, under taskharbor.audit."/>`
      : items.length === 0 ? html`<${Empty} title="Nobody has changed anything" text="Retries, cancels, settings and schedules that people change are listed here."/>` : html`<div class="card"><table class="cards audit"><thead><tr><th>When</th><th>Who</th><th>Did</th><th>Change</th><th>From</th><th><span class="sr">Undo</span></th></tr></thead>
      <tbody>${items.map((entry) => html`<${AuditRow} key=${entry.request_id + entry.at} entry=${entry} undo=${undo} mayUndo=${may(session, "configure")}/>`)}</tbody></table>
      ${next && html`<div class="more"><${Button} kind="bare end" onClick=${() => ask(next)}>Older<//></div>`}</div>`}</section>`;
}

const AUDIT_WORDS = { configure_queue: "set", pause_queue: "paused queue", resume_queue: "resumed queue", retry: "retried", cancel: "cancelled", delete_dead: "deleted", retry_dead: "retried dead letters", bulk_ended: "ended",
  stop_bulk: "stopped", start_bulk: "began at once", mute_cause: "muted", snooze_cause: "snoozed", open_cause: "opened again", create_token: "made a token", revoke_token: "revoked a token",
  pause_schedule: "paused schedule", resume_schedule: "resumed schedule", run_schedule: "ran schedule", put_schedule: "stored schedule", delete_schedule: "deleted schedule" };
const MANY = { retry: "retry", cancel: "cancel", delete: "delete" };
const verb = (entry) => (entry.did === "bulk" ? `asked to ${MANY[entry.details?.action] ?? "change"} ${number(entry.details?.jobs)} jobs` : AUDIT_WORDS[entry.did] ?? entry.did.replaceAll("_", " "));
const sentence = (entry) => `${verb(entry)} ${entry.what ?? ""}`.trim();

function AuditRow({ entry, undo, mayUndo }) {
  return html`<tr><td class="whc nowrap" title=${instant(entry.at)}>${ago(entry.at)}</td><td class="stc"><span class="strong">${entry.who}</span> <span class="dim">${entry.role}</span></td>
    <td class="tyc"><span class="row"><span class="nowrap">${verb(entry)}</span> <${What} text=${entry.what}/>${entry.status >= 400 && html`<span class="st failed">refused, ${entry.status}</span>`}</span></td>
    <td class="hide">${changes(entry)}</td><td class="dim hide" title=${`Request ${entry.request_id}`}>${entry.client ?? NONE}</td>
    <td class="num">${entry.undo === "done" ? html`<span class="dim">undone</span>` : entry.undo === "open" && mayUndo && html`<${Button} kind="small" aria-label=${`Undo: ${sentence(entry)}`} onClick=${() => undo(entry)}>Undo<//>`}</td></tr>`;
}

const What = ({ text }) => (!text ? null : ID.test(text) ? html`<a class="link mono" href=${href("jobs", [text])}>${shortId(text)}</a>` : html`<b class="cut">${text}</b>`);

/** max_running 40 → 20 */
function changes(entry) {
  const { before, after } = entry;
  const names = Object.keys(after ?? {});
  if (!names.length) return entry.details?.q ? html`<code>${entry.details.q}</code>` : html`<span class="dim">${NONE}</span>`;
  return names.map((name) => html`<span key=${name} class="blk">${name} <span class="dim">${valueText(before?.[name])} →</span> ${valueText(after[name])}</span>`);
}

const valueText = (value) => (value == null ? "none" : typeof value === "object" ? JSON.stringify(value) : String(value));

/** Audit: who changed what, with Undo for settings that are still as they were set. */

import { api } from "../api.js";
import { may } from "../deeds.js";
import { NONE, shortId } from "../format.js";
import { live, useTick } from "../live.js";
import { Button } from "../parts/controls.js";
import { useAsk } from "../parts/data.js";
import { html, useState } from "../parts/html.js";
import { Empty } from "../parts/notes.js";
import { Ago, Asked, Cap, dim, Table } from "../parts/page.js";
import { say, trying } from "../parts/toast.js";
import { href } from "../route.js";

const ID = /^[0-9a-f]{8}-[0-9a-f]{4}-/;

export function Audit() {
  const asked = useAsk("audit", { limit: 50 });
  const [older, add] = useState([]);
  useTick(5);
  const pages = [asked.answer, ...older], next = pages.at(-1)?.next_cursor, again = () => { add([]); asked.ask(); };
  const undo = (entry) => trying("It was not undone", async () => { await api.post(["audit", entry.request_id, "undo"]); say(`Undone: ${sentence(entry)}`); live.refresh(); }).then(again);
  const more = () => trying("No older ones were found", async () => add([...older, await api.get("audit", { limit: 50, before: next })]));
  return html`<section><${Asked} of=${asked}>${({ is_kept: isKept, items }) => html`<${Cap} heading="What people changed" note="the newest first, for 90 days" end=${html`<${Button} look="bare" onClick=${again}>Refresh<//>`}/>
    ${isKept === false ? html`<${Empty} heading="This store keeps no audit log" text="It has no logbook. Changes are in the server's log, under taskharbor.audit."/>`
      : items.length === 0 ? html`<${Empty} heading="Nobody has changed anything" text="What people change is listed here."/>` : html`<${Table} look="audit" id=${(entry) => entry.request_id + entry.at} rows=${pages.flatMap((page) => page.items)} columns=${[
        ["When", "whc nowrap", (entry) => html`<${Ago} at=${entry.at}/>`],
        ["Who", "stc", (entry) => html`<span class="strong">${entry.who}</span> ${dim(entry.role)}`],
        ["Did", "tyc", (entry) => html`<span class="row"><span class="nowrap">${entry.text}</span> ${what(entry.what)}${entry.status >= 400 && html`<span class="st failed">refused, ${entry.status}</span>`}</span>`],
        ["Change", "hide", changes],
        ["From", "dim hide", (entry) => html`<span title=${`Request ${entry.request_id}`}>${entry.client ?? NONE}</span>`],
        [html`<span class="sr">Undo</span>`, "num", (entry) => (entry.undo === "done" ? dim("undone") : entry.undo === "open" && may("configure") && html`<${Button} look="small" aria-label=${`Undo: ${sentence(entry)}`} onClick=${() => undo(entry)}>Undo<//>`)],
      ]}>${next && html`<div class="more"><${Button} look="bare end" onClick=${more}>Older<//></div>`}<//>`}`}<//></section>`;
}

const sentence = (entry) => `${entry.text} ${entry.what ?? ""}`.trim();
const what = (text) => (ID.test(text) ? html`<a class="link mono" href=${href("jobs", [text])}>${shortId(text)}</a>` : html`<b class="cut">${text}</b>`);

/** max_running 40 → 20 */
function changes({ before, after, details }) {
  const names = Object.keys(after ?? {});
  if (!names.length) return details?.q ? html`<code>${details.q}</code>` : dim(NONE);
  return names.map((name) => html`<span class="blk">${name} ${dim(`${valueText(before?.[name])} →`)} ${valueText(after[name])}</span>`);
}

const valueText = (value) => (value == null ? "none" : typeof value === "object" ? JSON.stringify(value) : String(value));

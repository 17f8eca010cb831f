/** Workflows: which are open, how far each is; and the page of one. */

import { api } from "../api.js";
import { shortId, time } from "../format.js";
import { useTick } from "../live.js";
import { Button } from "../parts/controls.js";
import { useAsk } from "../parts/data.js";
import { html, useEffect, useState } from "../parts/html.js";
import { Empty } from "../parts/notes.js";
import { Ago, Asked, Head, Table } from "../parts/page.js";
import { useRowKeys } from "../parts/rows.js";
import { State } from "../parts/state.js";
import { trying } from "../parts/toast.js";
import { href } from "../route.js";
import { Counted, OneWorkflow } from "./workflow.js";

export const workflowsPage = { Page: Workflows, title: (route) => (route.path.length ? `Workflow ${shortId(route.path[0])}` : "Workflows") };

/** By word: [in the address, states]. Open ones are found by their state, at once; among all jobs they are looked for, and not again and again. */
const FLOW_KINDS = { Open: ["", "blocked,running"], Failed: ["failed", "failed"], Completed: ["completed", "completed"], Cancelled: ["cancelled", "cancelled"], All: ["all", ""] };

function Workflows({ route }) {
  return route.path.length ? html`<${OneWorkflow} id=${route.path[0]}/>` : html`<${Flows} kind=${route.query.kind ?? ""}/>`;
}

function Flows({ kind }) {
  const state = Object.values(FLOW_KINDS).find(([name]) => name === kind)?.[1] ?? "";
  const asked = useAsk("workflows", { state }, kind ? { every: 15 } : { on: "board" });
  const [older, add] = useState([]);
  useEffect(() => add([]), [kind]);
  useTick(5);
  useRowKeys();
  const pages = [asked.answer, ...older].filter(Boolean), last = pages.at(-1), rows = pages.flatMap((page) => page.items);
  const more = () => trying("No older ones were found", async () => add([...older, await api.get("workflows", { state, cursor: last.next_cursor })]));
  const farther = last?.next_cursor && html`<${Button} look="bare end" onClick=${more}>${last.items.length ? "Older" : "Keep looking"}<//>`;
  const lookedBack = last && !last.is_all && last.looked_back_to && `Looked back to ${time(last.looked_back_to, "min")}.`;
  return html`<${Head} trail=${[["Jobs", "#/jobs"]]} here="Workflows" heading="Workflows"/>
    <div class="tabrow"><nav class="tabs" aria-label="State">${Object.entries(FLOW_KINDS).map(([word, [name]]) => html`<a href=${href("workflows", [], { kind: name })} aria-current=${name === kind ? "true" : undefined}>${word}</a>`)}</nav></div>
    <section class="flush"><${Asked} of=${asked} what="The workflows could not be listed" rows=${6}>${() => (!rows.length
      ? html`<${Empty} heading=${kind ? "None here" : "No workflow is open"} text=${lookedBack || "Chains, groups and graphs of jobs appear here by themselves."} acts=${farther} code=${kind || lookedBack ? [] : ["harbor.chain(fetch.call(url), parse, store).enqueue()"]}/>`
      : html`<${Table} rows=${rows} columns=${[
        ["Workflow", "tyc", (flow) => html`<span class="row"><a class="strong cut" data-row href=${href("workflows", [flow.id])}>${flow.name}</a><code class="dim wide">${shortId(flow.id)}</code></span>`],
        ["State", "stc", (flow) => html`<${State} glyph=${flow.state}/>`], ["Progress", "prc c-bar", (flow) => html`<${Counted} flow=${flow}/>`],
        ["Queue", "hide soft mid2", (flow) => flow.queue], ["Enqueued", "num soft whc", (flow) => html`<${Ago} at=${flow.created_at}/>`],
      ]}>${farther && html`<div class="more"><span>${lookedBack}</span>${farther}</div>`}<//>`)}<//></section>`;
}

/** Workflows: which are open, how far each is; and the page of one. */

import { api } from "../api.js";
import { ago, instant, shortId, time } from "../format.js";
import { useTick } from "../live.js";
import { Button } from "../parts/controls.js";
import { useAsk } from "../parts/data.js";
import { html, useEffect, useState } from "../parts/html.js";
import { Empty, Loading, Trouble } from "../parts/notes.js";
import { useRowKeys } from "../parts/rows.js";
import { State } from "../parts/state.js";
import { sayProblem } from "../parts/toast.js";
import { href } from "../route.js";
import { Counted, OneWorkflow } from "./workflow.js";

export const workflowsPage = { Page: Workflows, title: (route) => (route.path.length ? `Workflow ${shortId(route.path[0])}` : "Workflows") };

/** Open ones are found by their state, at once; among all jobs they are looked for, and not again and again. */
const FLOW_KINDS = [["", "Open", "blocked,running"], ["failed", "Failed", "failed"], ["completed", "Completed", "completed"], ["cancelled", "Cancelled", "cancelled"], ["all", "All", ""]];

function Workflows({ route, session }) {
  return route.path.length ? html`<${OneWorkflow} id=${route.path[0]} session=${session}/>` : html`<${List} kind=${route.query.kind ?? ""}/>`;
}

function List({ kind }) {
  const state = FLOW_KINDS.find(([name]) => name === kind)?.[2] ?? "";
  const { data, problem, ask } = useAsk("workflows", { state }, kind ? { every: 15 } : { on: "board" });
  const [older, add] = useState([]);
  useEffect(() => add([]), [kind]);
  useTick(5);
  useRowKeys();
  const last = older.at(-1) ?? data, rows = [data, ...older].flatMap((page) => page?.items ?? []);
  const more = () => api.get("workflows", { state, cursor: last.next_cursor }).then((page) => add([...older, page]), (found) => sayProblem(found, "No older ones were found"));
  const farther = last?.next_cursor && html`<${Button} kind="bare end" onClick=${more}>${last.items.length ? "Older" : "Keep looking"}<//>`;
  const looked = last && !last.is_all && last.looked_back_to ? `Looked back to ${time(last.looked_back_to, "min")}.` : "";
  return html`<div class="head"><div class="grow"><p class="dim crumb"><a class="link" href="#/jobs">Jobs</a> / Workflows</p><h1>Workflows</h1></div></div>
    <div class="tabrow"><nav class="tabs" aria-label="State">${FLOW_KINDS.map(([name, word]) => html`<a key=${name} href=${href("workflows", [], { kind: name })} aria-current=${name === kind ? "true" : undefined}>${word}</a>`)}</nav></div>
    <section class="flush">${problem ? html`<${Trouble} problem=${problem} what="The workflows could not be listed" onAgain=${ask}/>`
      : !data ? html`<${Loading} rows=${6}/>`
      : !rows.length ? html`<${Empty} title=${kind ? "None here" : "No workflow is open"} text=${looked || "Chains, groups and graphs of jobs appear here by themselves."} acts=${farther}
          code=${kind || looked ? [] : ["harbor.chain(fetch.call(url), parse, store).enqueue()"]}/>`
      : html`<div class="card"><table class="cards"><thead><tr><th>Workflow</th><th>State</th><th class="c-bar">Progress</th><th class="mid2">Queue</th><th class="num">Enqueued</th></tr></thead>
        <tbody>${rows.map((flow) => html`<tr key=${flow.id}><td class="tyc"><span class="row"><a class="strong cut" data-row href=${href("workflows", [flow.id])}>${flow.name}</a><code class="dim wide">${shortId(flow.id)}</code></span></td>
          <td class="stc"><${State} name=${flow.state}/></td><td class="prc"><${Counted} flow=${flow}/></td>
          <td class="hide soft mid2">${flow.queue}</td><td class="num soft whc" title=${instant(flow.created_at)}>${ago(flow.created_at)}</td></tr>`)}</tbody></table>
        ${farther && html`<div class="more"><span>${looked}</span>${farther}</div>`}</div>`}</section>`;
}

/** One workflow: how far it is, its graph, and its jobs as a tree with their times to scale. */

import { api } from "../api.js";
import { may, preview, retryOne } from "../deeds.js";
import { clock, measured, number, plural, short, shortId, span } from "../format.js";
import { useKeys } from "../keys.js";
import { useTick } from "../live.js";
import { BulkConfirm } from "../parts/bulkbar.js";
import { Button, Input } from "../parts/controls.js";
import { useAsk } from "../parts/data.js";
import { Form, jsonOf } from "../parts/dialog.js";
import { html, useMemo, useState } from "../parts/html.js";
import { useFields } from "../parts/jobdialogs.js";
import { Empty } from "../parts/notes.js";
import { Asked, Head, Section, Table } from "../parts/page.js";
import { useCommands } from "../parts/palette.js";
import { useRowKeys } from "../parts/rows.js";
import { isOver, Shape, State, stateOf } from "../parts/state.js";
import { say, trying } from "../parts/toast.js";
import { go, href } from "../route.js";
import { NoJob, Why } from "./job.js";

export function OneWorkflow({ id }) {
  const [isDone, done] = useState(false);
  const [plan, show] = useState(null); // { deed, found }: what a retry or a cancel would do
  const often = { on: isDone ? "" : "board" };
  const whole = useAsk(["workflows", id], {}, often), graph = useAsk(["workflows", id, "graph"], {}, often), why = useAsk(["jobs", id, "why"], {}, often);
  const flow = whole.answer, problem = whole.problem ?? graph.problem;
  const again = () => { whole.ask(); graph.ask(); why.ask(); };
  const look = (action, from) => trying("Nothing was changed", async () => {
    const deed = { action, workflow: id, ...(from && { from_job: from }) };
    show({ deed, found: await preview(deed) });
  });
  if (flow && isOver(flow) !== isDone) done(isOver(flow));
  if (!flow || !graph.answer) return problem?.status === 404 ? html`<${NoJob}/>` : html`<${Asked} of=${{ problem, ask: again }} what="The workflow could not be loaded" rows=${10}/>`;
  return html`<${FlowHead} flow=${flow} look=${look}/>
    <${Why} job=${flow} why=${why.answer}/>
    <${FlowGraph} flow=${flow} graph=${graph.answer}/>
    <${FlowTree} flow=${flow} graph=${graph.answer} look=${look} again=${again}/>
    ${plan && html`<${BulkConfirm} ...${plan} onClose=${() => show(null)} onDone=${again}/>`}`;
}

/** Name, state, progress, and what can be done after a look at what it would do. */
function FlowHead({ flow, look }) {
  const { failed, excused, cancelled, total } = flow.counts;
  const retry = failed + excused + cancelled > 0 && !flow.stopping && may("retry") && (() => look("retry"));
  const cancel = !isOver(flow) && may("cancel") && (() => look("cancel"));
  useKeys({ r: retry, c: cancel, Esc: () => go("#/workflows") });
  useCommands([retry && ["Retry this workflow", retry, "r"], cancel && ["Cancel this workflow", cancel, "c"]]);
  return html`<${Head} trail=${[["Jobs", "#/jobs"], ["Workflows", "#/workflows"], ...(flow.parent ? [["its parent", href("workflows", [flow.parent])]] : [])]} here=${html`<span class="mono">${shortId(flow.id)}</span>`}
    heading=${flow.name} pill=${html`<${State} glyph=${flow.state} pill/>`} lede=${total > 0 ? html`<${Counted} flow=${flow}/>` : undefined}
    acts=${html`${retry && html`<${Button} look=${isOver(flow) ? "main" : ""} onClick=${retry}>Retry…<//>`}${cancel && html`<${Button} onClick=${cancel}>Cancel…<//>`}
      <${Button} href=${href("jobs", [flow.id])}>Open the job<//>`}/>`;
}

const overOf = ({ total, open }) => `${number(total - open)} of ${number(total)}`;

/** How many of its jobs are over, and how many failed. */
export function Counted({ flow }) {
  const { total, open, failed, excused } = flow.counts, bad = failed + excused, part = (count) => `${(count / total) * 100}%`, good = total - open - bad;
  return html`<span class="row flowbar"><svg class=${`bar ${isOver(flow) ? "" : "run"}`} height="6" aria-hidden="true"><rect width=${part(good)} height="6"/><rect class="f-bad" x=${part(good)} width=${part(bad)} height="6"/></svg>
    <span class="nowrap soft">${overOf(flow.counts)}${bad > 0 && `, ${number(bad)} failed`}</span></span>`;
}

// ---------------------------------------------------------------- graph

/** The size of a node, and the room beside and below it. */
const WIDE = 164, TALL = 44, RIGHT = 44, DOWN = 14;

/** Without edges that others imply: what comes after every job is drawn behind the last ones only. */
function notImplied(edges) {
  const above = new Map(), before = new Map();
  for (const [from, to] of edges) before.set(to, [...(before.get(to) ?? []), from]);
  const all = (id) => { // an edge leads to a job that was stored later, so this ends
    if (!above.has(id)) above.set(id, new Set((before.get(id) ?? []).flatMap((one) => [one, ...all(one)])));
    return above.get(id);
  };
  return edges.filter(([from, to]) => !before.get(to).some((other) => other !== from && all(other).has(from)));
}

/** Its own jobs in the layers that the server worked out. A workflow without edges is a list, and has no graph. */
function FlowGraph({ flow, graph }) {
  const own = graph.nodes.filter((node) => node.parent === flow.id), layers = [];
  for (const node of own) (layers[node.layer] ??= []).push(node.id);
  const edges = useMemo(() => { // thousands of edges take a while: once for each answer, not for each drawing
    const ids = new Set(own.map((node) => node.id));
    return notImplied(graph.edges.filter(([from, to]) => ids.has(from) && ids.has(to)));
  }, [graph]);
  if (!edges.length) return null;
  const most = Math.max(...layers.map((layer) => layer?.length ?? 0));
  const at = new Map(layers.flatMap((layer, column) => layer.map((id, row) => [id, [column * (WIDE + RIGHT) + 2, (row + (most - layer.length) / 2) * (TALL + DOWN) + 2]])));
  return html`<${Section} heading="Graph" note="dashed: in any case, or after a failure">
    <div class="card pad flow" role="region" tabindex="0" aria-label="Graph"><svg class="plot" width=${layers.length * (WIDE + RIGHT) - RIGHT + 4} height=${most * (TALL + DOWN) - DOWN + 4} role="group" aria-label=${`${plural(own.length, "job")}, ${plural(edges.length, "edge")}`}>
      ${edges.map(([from, to, kind]) => html`<${Edge} key=${from + to} from=${at.get(from)} to=${at.get(to)} kind=${kind}/>`)}
      ${own.map((node) => html`<${FlowNode} key=${node.id} node=${node} at=${at.get(node.id)}/>`)}</svg></div><//>`;
}

function Edge({ from: [x, y], to: [tox, toy], kind }) {
  const begin = x + WIDE, half = TALL / 2, bend = Math.max((tox - begin) / 2, 20);
  return html`<path class=${`thin ${kind === "failure" ? "s-bad" : "s-edge"}${kind === "success" ? "" : " dashed"}`} d=${`M${begin} ${y + half}C${begin + bend} ${y + half} ${tox - bend} ${toy + half} ${tox} ${toy + half}`}/>`;
}

const BOXES = { running: "b-run", failed: "b-bad" };

function FlowNode({ node, at: [x, y] }) {
  const name = stateOfNode(node);
  return html`<a href=${pageOfNode(node)} class=${`st ${name}`}><title>${node.name}: ${name}${node.error ? `, ${node.error}` : ""}</title><rect x=${x} y=${y} width=${WIDE} height=${TALL} rx="8" class=${BOXES[node.state] ?? "b-none"}/>
    <svg x=${x + 12} y=${y + 16} width="12" height="12"><${Shape} glyph=${name}/></svg>
    <text x=${x + 32} y=${y + 19} class="name">${short(node.name, 19)}</text><text x=${x + 32} y=${y + 34}>${short(noteOf(node, name), 22)}</text></a>`;
}

const stateOfNode = (node) => stateOf({ ...node, last_error: node.error, stalls: 0 });
const pageOfNode = (node) => href(node.counts ? "workflows" : "jobs", [node.id]);

/** As short as fits a node: how far, how long, or what it waits for. */
function noteOf(node, name) {
  if (node.counts) return `${overOf(node.counts)}${node.counts.failed ? `, ${number(node.counts.failed)} failed` : ""}`;
  if (node.is_event && !node.waits_for) return "waits for its event";
  if (["skipped", "stopped"].includes(node.failure_kind)) return node.failure_kind;
  if (node.state === "blocked" && node.waits_for) return `waits for ${number(node.waits_for)}`;
  return hasRun(node) ? `${name}, ${span(lengthOf(node))}` : name;
}

const hasRun = (node) => node.started_at && (isOver(node) || node.state === "running");
const lengthOf = (node) => ((node.finished_at ? Date.parse(node.finished_at) : clock.now()) - Date.parse(node.started_at)) / 1000;

// ---------------------------------------------------------------- tree

/** [node, depth], each below its parent, and in the order in which they were stored. */
function branches(nodes, root, depth = 0) {
  return nodes.filter((node) => node.parent === root).flatMap((node) => [[node, depth], ...(node.counts ? branches(nodes, node.id, depth + 1) : [])]);
}

function FlowTree({ flow, graph, look, again }) {
  const [event, send] = useState(null);
  const [older, add] = useState([]);
  useTick(1);
  useRowKeys();
  const pages = [graph, ...older], next = pages.at(-1).next_cursor, rows = branches(pages.flatMap((page) => page.nodes), flow.id);
  const more = () => trying("No more were loaded", async () => add([...older, await api.get(["workflows", flow.id, "graph"], { cursor: next })]));
  const begin = Date.parse(flow.created_at), whole = Math.max((flow.finished_at ? Date.parse(flow.finished_at) : clock.now()) - begin, 1);
  const from = (node) => (Math.max(Date.parse(node.started_at) - begin, 0) / whole) * 100;
  /** What can be done with a node: [word, what a screen reader says, action]. */
  const deedsOfNode = (node) => [
    node.is_event && may("enqueue") && ["Send…", `Send ${node.name}`, () => send(node)],
    node.state === "failed" && !node.counts && may("retry") && ["Retry", `Retry ${node.name}`, () => retryOne({ id: node.id, type: node.name }, {}, again)],
    isOver(node) && !node.counts && !flow.stopping && may("retry") && ["From here…", `Retry from ${node.name} on`, () => look("retry", node.id), "bare"],
  ].filter(Boolean);
  useCommands(rows.flatMap(([node]) => deedsOfNode(node)).map(([, label, act]) => [label, act]));
  if (!rows.length) return html`<section><${Empty} heading="It has no children that you may see"/></section>`;
  return html`<${Section} heading="Jobs" note=${`${span(whole / 1000, 2)}, to scale`}><${Table} id=${([node]) => node.id} rows=${rows} columns=${[
    ["Job", "tyc", ([node, depth]) => html`<span class=${`row in${Math.min(depth, 3)}`}><a class="strong cut" data-row href=${pageOfNode(node)}>${node.name}</a>
      ${node.is_optional && html`<span class="chip wide">optional</span>`}<span class="dim cut wide">${isOver(node) && node.state !== "completed" && node.error}</span></span>`],
    ["State", "stc", ([node]) => html`<${State} glyph=${stateOfNode(node)}/>`],
    ["When it ran", "prc c-bar", ([node]) => (node.counts ? html`<${Counted} flow=${node}/>` : hasRun(node) ? html`<svg class=${`bar ${{ running: "run", failed: "bad" }[node.state] ?? ""}`} height="6" aria-hidden="true">
      <rect x=${`${Math.min(from(node), 99)}%`} width=${`${Math.max(Math.min((lengthOf(node) * 1e5) / whole, 100 - from(node)), 0.8)}%`} height="6" rx="3"/></svg>` : html`<span class="dim">${noteOf(node, "")}</span>`)],
    ["Ran", "num hide soft nowrap", ([node]) => hasRun(node) && measured(lengthOf(node))],
    [html`<span class="sr">Actions</span>`, "num whc", ([node]) => html`<span class="acts end-acts">${deedsOfNode(node).map(([word, label, act, kind = ""]) => html`<${Button} look=${`small ${kind}`} aria-label=${label} onClick=${act}>${word}<//>`)}</span>`],
  ]}>${next && html`<div class="more"><span>${number(rows.length)} of ${number(flow.counts.total)}</span><${Button} look="bare end" onClick=${more}>More<//></div>`}<//>
    ${event && html`<${SendEvent} node=${event} onClose=${() => send(null)} onDone=${again}/>`}<//>`;
}

function SendEvent({ node, onClose, onDone }) {
  const [values, field] = useFields({ value: "{}" });
  const bring = async () => {
    await api.post(["jobs", node.parent, "events", node.name], jsonOf(values.value, "value"));
    onClose();
    say(`${node.name} was sent`);
    onDone();
  };
  return html`<${Form} label=${`Send ${node.name}`} verb="Send" notDone="Nothing was sent: " onDo=${bring} onClose=${onClose}>${(errorOf) => html`<p class="soft gap1">The first event of a name wins. It cannot be taken back.</p>
    <${Input} ...${field("value")} as="textarea" label="Value, as JSON" error=${errorOf("value")} rows="5" spellcheck=${false}/>`}<//>`;
}

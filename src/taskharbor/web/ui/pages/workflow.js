/** One workflow: how far it is, its graph, and its jobs as a tree with their times to scale. */

import { api } from "../api.js";
import { may, retryOne } from "../deeds.js";
import { clock, measured, number, plural, shortId, span } from "../format.js";
import { useKeys } from "../keys.js";
import { live, useTick } from "../live.js";
import { Button, Field } from "../parts/controls.js";
import { useAsk } from "../parts/data.js";
import { Confirm, Dialog } from "../parts/dialog.js";
import { html, useMemo, useState } from "../parts/html.js";
import { Empty, Loading, Trouble } from "../parts/notes.js";
import { useCommands } from "../parts/palette.js";
import { useRowKeys } from "../parts/rows.js";
import { isOver, Shape, State, stateOf } from "../parts/state.js";
import { say, sayProblem } from "../parts/toast.js";
import { go, href } from "../route.js";
import { Why } from "./job.js";

export function OneWorkflow({ id, session }) {
  const path = `workflows/${encodeURIComponent(id)}`;
  const [isDone, done] = useState(false);
  const often = { on: isDone ? "" : "board" };
  const whole = useAsk(path, {}, often), graph = useAsk(`${path}/graph`, {}, often), why = useAsk(`jobs/${encodeURIComponent(id)}/why`, {}, often);
  const flow = whole.data, problem = whole.problem ?? graph.problem;
  const again = () => { whole.ask(); graph.ask(); why.ask(); };
  if (flow && isOver(flow) !== isDone) done(isOver(flow));
  if (!flow || !graph.data) {
    if (!problem) return html`<${Loading} rows=${10}/>`;
    return problem.status === 404 ? html`<${Empty} title="No job has this id" text="It may have been deleted when its time was over, or it is in a queue that your token may not see." acts=${html`<${Button} href="#/jobs">All jobs<//>`}/>`
      : html`<${Trouble} problem=${problem} what="The workflow could not be loaded" onAgain=${again}/>`;
  }
  return html`<${FlowHead} flow=${flow} path=${path} session=${session} again=${again}/>
    <${Why} job=${flow} why=${why.data}/>
    <${FlowGraph} flow=${flow} graph=${graph.data}/>
    <${FlowTree} flow=${flow} graph=${graph.data} session=${session} again=${again}/>`;
}

/** Name, state, progress, and what can be done after a look at what it would do. */
function FlowHead({ flow, path, session, again }) {
  const [plan, show] = useState(null);
  const ask = (verb) => () => api.post(`${path}/${verb}`, { dry_run: true }).then((found) => show({ verb, ...found }), (problem) => sayProblem(problem, "Nothing was changed"));
  const act = (verb, words) => { show(null); api.post(`${path}/${verb}`).then((found) => { say(words(found)); live.refresh(); again(); }, (problem) => sayProblem(problem, "Nothing was changed")); };
  const { failed, excused, cancelled } = flow.counts;
  const retry = failed + excused + cancelled > 0 && !flow.stopping && may(session, "retry") && ask("retry");
  const cancel = !isOver(flow) && may(session, "cancel") && ask("cancel");
  useKeys({ r: () => (retry ? retry() : false), c: () => (cancel ? cancel() : false), Esc: () => go(href("workflows")) });
  useCommands([retry && ["Retry this workflow", retry, "r"], cancel && ["Cancel this workflow", cancel, "c"]]);
  return html`<div class="head"><div class="grow"><p class="dim crumb"><a class="link" href="#/jobs">Jobs</a> / <a class="link" href="#/workflows">Workflows</a>
      ${flow.parent && html` / <a class="link" href=${href("workflows", [flow.parent])}>its parent</a>`} / <span class="mono">${shortId(flow.id)}</span></p>
      <div class="row title"><h1 class="cut">${flow.name}</h1><${State} name=${flow.state} pill=${true}/></div><div class="flowbar">${flow.counts.total > 0 && html`<${Counted} flow=${flow}/>`}</div></div>
    <div class="acts">${retry && html`<${Button} kind=${isOver(flow) ? "main" : ""} onClick=${retry}>Retry…<//>`}${cancel && html`<${Button} onClick=${cancel}>Cancel…<//>`}
      <${Button} href=${href("jobs", [flow.id])}>Open the job<//></div>
    ${plan?.verb === "retry" && html`<${Confirm} title=${`Retry ${plural(plan.retried, "job")}?`} verb="Retry" count=${plan.retried} isExact=${plan.is_all} onClose=${() => show(null)}
      samples=${plan.samples.map((one) => ({ id: one.id, type: one.name, args: one.state }))} onDo=${() => act("retry", (found) => `${plural(found.retried, "job")} of ${flow.name} run again`)}>
      <p class="soft gap1">What failed, was skipped or was stopped runs again. What completed stays.${plan.is_all ? "" : " There are more than one call takes: retry again afterwards."}</p><//>`}
    ${plan?.verb === "cancel" && html`<${Confirm} title=${`Cancel ${flow.name}?`} verb="Cancel" isBad=${true} isExact=${plan.is_all} count=${Math.max(plan.waiting + plan.running + plan.below, 1)} onClose=${() => show(null)}
      onDo=${() => act("cancel", () => `${flow.name} is being cancelled`)}><p class="soft gap1">${consequences(plan)}</p><//>`}</div>`;
}

function consequences({ waiting, running, below, spared }) {
  const parts = [waiting && `${plural(waiting, "waiting job")} ${waiting === 1 ? "does" : "do"} not run.`, running && `${plural(running, "running job")} ${running === 1 ? "is" : "are"} asked to stop.`,
    below && `${plural(below, "job")} further down ${below === 1 ? "is" : "are"} stopped, too.`, spared.length && `Still to run: ${spared.join(", ")}; a second cancel takes these, too.`];
  return parts.filter(Boolean).join(" ") || "Nothing of it is open but itself.";
}

/** How many of its jobs are over, and how many failed. */
export function Counted({ flow }) {
  const { total, open, failed, excused } = flow.counts, bad = failed + excused;
  const part = (count) => `${(count / total) * 100}%`, good = total - open - bad;
  return html`<span class="row"><svg class=${`bar ${isOver(flow) ? "" : "run"}`} height="6" aria-hidden="true"><rect width=${part(good)} height="6"/><rect class="f-bad" x=${part(good)} width=${part(bad)} height="6"/></svg><span class="nowrap soft">${number(total - open)} of ${number(total)}${bad ? `, ${plural(bad, "failed", "failed")}` : ""}</span></span>`;
}

// ---------------------------------------------------------------- graph

const NODE = { wide: 164, tall: 44, right: 44, down: 14 };

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
  const step = NODE.tall + NODE.down, most = Math.max(...layers.map((layer) => layer?.length ?? 0));
  const at = new Map(layers.flatMap((layer, column) => layer.map((id, row) => [id, [column * (NODE.wide + NODE.right) + 2, (row + (most - layer.length) / 2) * step + 2]])));
  const wide = layers.length * (NODE.wide + NODE.right) - NODE.right + 4, tall = most * step - NODE.down + 4;
  return html`<section><div class="cap"><h2>Graph</h2><span class="dim">from left to right; dashed: in any case, or after a failure</span></div>
    <div class="card pad flow" role="region" tabindex="0" aria-label="Graph"><svg class="plot" width=${wide} height=${tall} role="group" aria-label=${`${plural(own.length, "job")}, ${plural(edges.length, "edge")}`}>
      ${edges.map(([from, to, kind]) => html`<${Edge} key=${from + to} from=${at.get(from)} to=${at.get(to)} kind=${kind}/>`)}
      ${own.map((node) => html`<${FlowNode} key=${node.id} node=${node} at=${at.get(node.id)}/>`)}</svg></div></section>`;
}

function Edge({ from: [x, y], to: [tox, toy], kind }) {
  const begin = x + NODE.wide, half = NODE.tall / 2, bend = Math.max((tox - begin) / 2, 20);
  return html`<path class=${`thin ${kind === "failure" ? "s-bad" : "s-edge"}${kind === "success" ? "" : " dashed"}`} d=${`M${begin} ${y + half}C${begin + bend} ${y + half} ${tox - bend} ${toy + half} ${tox} ${toy + half}`}/>`;
}

const BOXES = { running: "b-run", failed: "b-bad" };
const short = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

function FlowNode({ node, at: [x, y] }) {
  const name = stateOfNode(node);
  return html`<a href=${pageOfNode(node)} class=${`st ${name}`}><title>${node.name}: ${name}${node.error ? `, ${node.error}` : ""}</title><rect x=${x} y=${y} width=${NODE.wide} height=${NODE.tall} rx="8" class=${BOXES[node.state] ?? "b-none"}/>
    <svg x=${x + 12} y=${y + 16} width="12" height="12"><${Shape} name=${name}/></svg>
    <text x=${x + 32} y=${y + 19} class="name">${short(node.name, 19)}</text><text x=${x + 32} y=${y + 34}>${short(noteOf(node, name), 22)}</text></a>`;
}

const stateOfNode = (node) => stateOf({ ...node, last_error: node.error, stalls: 0 });
const pageOfNode = (node) => href(node.counts ? "workflows" : "jobs", [node.id]);

/** As short as fits a node: how far, how long, or what it waits for. */
function noteOf(node, name) {
  if (node.counts) return `${number(node.counts.total - node.counts.open)} of ${number(node.counts.total)}${node.counts.failed ? `, ${number(node.counts.failed)} failed` : ""}`;
  if (node.is_event && !node.waits_for) return "waits for its event";
  if (node.failure_kind === "skipped" || node.failure_kind === "stopped") return node.failure_kind;
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

function FlowTree({ flow, graph, session, again }) {
  const [event, send] = useState(null);
  const [older, add] = useState([]);
  useTick(1);
  useRowKeys();
  const last = older.at(-1) ?? graph;
  const rows = branches([graph, ...older].flatMap((page) => page.nodes), flow.id);
  const more = () => api.get(`workflows/${flow.id}/graph`, { cursor: last.next_cursor }).then((page) => add([...older, page]), (problem) => sayProblem(problem, "No more were loaded"));
  const begin = Date.parse(flow.created_at), whole = Math.max((flow.finished_at ? Date.parse(flow.finished_at) : clock.now()) - begin, 1);
  const from = (at) => (Math.max(Date.parse(at) - begin, 0) / whole) * 100;
  if (!rows.length) return html`<section><${Empty} title="It has no children that you may see"/></section>`;
  return html`<section><div class="cap"><h2>Jobs</h2><span class="dim">${span(whole / 1000, 2)}, to scale</span></div><div class="card"><table class="cards">
    <thead><tr><th>Job</th><th>State</th><th class="c-bar">When it ran</th><th class="num">Ran</th><th class="num"><span class="sr">Actions</span></th></tr></thead>
    <tbody>${rows.map(([node, depth]) => html`<tr key=${node.id}><td class="tyc"><span class=${`row in${Math.min(depth, 3)}`}><a class="strong cut" data-row href=${pageOfNode(node)}>${node.name}</a>
        ${node.is_optional && html`<span class="chip wide">optional</span>`}<span class="dim cut wide">${isOver(node) && node.state !== "completed" ? node.error : ""}</span></span></td>
      <td class="stc"><${State} name=${stateOfNode(node)}/></td>
      <td class="prc">${node.counts ? html`<${Counted} flow=${node}/>` : hasRun(node) ? html`<svg class=${`bar ${{ running: "run", failed: "bad" }[node.state] ?? ""}`} height="6" aria-hidden="true">
        <rect x=${`${Math.min(from(node.started_at), 99)}%`} width=${`${Math.max(Math.min((lengthOf(node) * 1e5) / whole, 100 - from(node.started_at)), 0.8)}%`} height="6" rx="3"/></svg>` : html`<span class="dim">${noteOf(node, "")}</span>`}</td>
      <td class="num hide soft nowrap">${hasRun(node) ? measured(lengthOf(node)) : ""}</td><td class="num whc">
        ${node.is_event && may(session, "enqueue") && html`<${Button} kind="small" aria-label=${`Send ${node.name}`} onClick=${() => send(node)}>Send…<//>`}
        ${node.state === "failed" && !node.counts && may(session, "retry") && html`<${Button} kind="small" aria-label=${`Retry ${node.name}`} onClick=${() => retryOne({ id: node.id, type: node.name }, {}, again)}>Retry<//>`}</td></tr>`)}</tbody></table>
    ${last.next_cursor && html`<div class="more"><span>${number(rows.length)} of ${number(flow.counts.total)}</span><${Button} kind="bare end" onClick=${more}>More<//></div>`}</div>
    ${event && html`<${SendEvent} node=${event} onClose=${() => send(null)} onDone=${again}/>`}</section>`;
}

function SendEvent({ node, onClose, onDone }) {
  const [text, write] = useState("{}");
  const [wrong, fail] = useState(null);
  const submit = (event) => {
    event.preventDefault();
    let value;
    try { value = JSON.parse(text); } catch (error) { fail(`This is not JSON: ${error.message}`); return; }
    api.post(`jobs/${node.parent}/events/${encodeURIComponent(node.name)}`, value).then(() => { onClose(); say(`${node.name} was sent`); onDone(); }, (problem) => fail(`Nothing was sent: ${problem.message}`));
  };
  return html`<${Dialog} label=${`Send ${node.name}`} onClose=${onClose}><form class="pad" onSubmit=${submit}><h2>Send ${node.name}</h2><p class="soft gap1">The first event of a name wins. It cannot be taken back.</p>
    <${Field} id="event-value" label="Value, as JSON" error=${wrong}><textarea id="event-value" class="field" rows="5" spellcheck="false" value=${text} onInput=${(event) => write(event.target.value)}></textarea><//>
    <div class="acts gap2"><button class="btn main" type="submit">Send</button><button class="btn bare" type="button" onClick=${onClose}>Close</button></div></form><//>`;
}

/** Tokens: who may call, with which role. A new one is shown once; a revoked one ends its sessions within seconds. */

import { api } from "../api.js";
import { ago, clock, instant } from "../format.js";
import { useTick } from "../live.js";
import { Button, CopyButton, Field } from "../parts/controls.js";
import { useAsk } from "../parts/data.js";
import { Dialog } from "../parts/dialog.js";
import { html, useState } from "../parts/html.js";
import { Empty, Loading, Trouble } from "../parts/notes.js";
import { say, sayProblem } from "../parts/toast.js";
import { seconds } from "./queue_settings.js";

const ROLES = { viewer: "looks; secrets in arguments are hidden", producer: "enqueues", worker: "runs jobs", operator: "enqueues, retries, cancels, configures", admin: "everything, tokens too" };
const HOLD_MS = 8000;

export function Tokens({ session }) {
  const { data, problem, ask } = useAsk("tokens", {}, { every: 15 });
  const [isMaking, make] = useState(false);
  const [made, show] = useState(null);
  useTick(5);
  if (!data) return html`<section>${problem ? html`<${Trouble} problem=${problem} what="The tokens could not be read" onAgain=${ask}/>` : html`<${Loading}/>`}</section>`;
  return html`<section><div class="cap"><h2>Tokens</h2><span class="dim cut">${data.file ?? ""}</span><span class="end"></span>${data.file !== null && html`<${Button} onClick=${() => make(true)}>New token…<//>`}</div>
    ${problem && html`<div class="gapb"><${Trouble} problem=${problem} onAgain=${ask}/></div>`}
    ${data.file === null ? html`<${Empty} title="This server has no token file" text="Only callers on its own machine are served, as admin. To let others in:" code=${COMMANDS}/>`
      : data.items.length === 0 ? html`<${Empty} title="No token yet" text="Make one for each person and program."/>` : html`<div class="card"><table class="cards"><thead><tr><th>For</th><th>Role</th><th>Queues</th><th>Created</th><th>Ends</th><th>Id</th><th><span class="sr">Revoke</span></th></tr></thead>
      <tbody>${data.items.map((token) => html`<tr key=${token.id}><td class="tyc strong cut">${token.note || html`<span class="dim">no note</span>`}${token.id === session.name && html` <span class="chip q">you</span>`}</td><td class="stc">${token.role}</td>
        <td class="hide">${token.queues ? token.queues.join(", ") : html`<span class="dim">all</span>`}</td><td class="hide" title=${instant(token.created_at)}>${ago(token.created_at)}</td>
        <td class="hide" title=${instant(token.expires_at)}>${token.expires_at ? ago(token.expires_at) : html`<span class="dim">never</span>`}</td><td class="mono dim hide">${token.id}</td>
        <td class="num whc"><${Button} kind="bad small" aria-label=${`Revoke ${token.note || token.id}`} onClick=${() => revoke(token, ask)}>Revoke<//></td></tr>`)}</tbody></table></div>`}
    ${isMaking && html`<${NewToken} onClose=${() => make(false)} onMade=${(token) => { make(false); show(token); ask(); }}/>`}
    ${made && html`<${Made} token=${made} onClose=${() => show(null)}/>`}</section>`;
}

const COMMANDS = ["taskharbor tokens create --role admin --tokens taskharbor-tokens.json", "taskharbor server app:harbor --tokens taskharbor-tokens.json"];

/** Held here for 8 s, because a revoked token cannot be made again. Leaving the page does it at once. */
function revoke(token, done) {
  let isOver = false;
  const act = async () => {
    if (isOver) return;
    end();
    try { await api.delete(`tokens/${token.id}`); toast.change(`Revoked ${token.note || token.id}`); } catch (problem) { toast.close(); sayProblem(problem, "It was not revoked"); }
    done();
  };
  const end = () => { isOver = true; clearTimeout(timer); removeEventListener("pagehide", act); };
  const timer = setTimeout(act, HOLD_MS);
  addEventListener("pagehide", act);
  const toast = say(`Revoking ${token.note || token.id}`, { endsAt: clock.now() + HOLD_MS, undo: () => { end(); say("Undone: the token stays"); }, now: act });
}

function NewToken({ onClose, onMade }) {
  const [values, type] = useState({ note: "", role: "viewer", queues: "", expires: "90 d" });
  const [problem, fail] = useState(null);
  const field = (name) => ({ id: `token-${name}`, class: "field", value: values[name], onInput: (event) => type({ ...values, [name]: event.target.value }) });
  const create = async (event) => {
    event.preventDefault();
    const span = values.expires.trim() === "" ? null : seconds(values.expires);
    if (span === undefined) { fail({ message: "Ends after: write 90 d, 12 h or nothing." }); return; }
    const queues = values.queues.split(",").map((name) => name.trim()).filter(Boolean);
    try { onMade(await api.post("tokens", { role: values.role, note: values.note.trim(), queues: queues.length ? queues : null, expires_in_s: span })); } catch (error) { fail(error); }
  };
  return html`<${Dialog} label="New token" onClose=${onClose}><form class="pad" onSubmit=${create}><h2>New token</h2>
    <${Field} label="For" id="token-note" hint="Who or what will use it"><input ...${field("note")} autocomplete="off"/><//>
    <${Field} label="Role" id="token-role" hint=${ROLES[values.role]}><select ...${field("role")}>${Object.keys(ROLES).map((role) => html`<option key=${role} value=${role} selected=${role === values.role}>${role}</option>`)}</select><//>
    <${Field} label="Queues" id="token-queues" hint="With commas; empty for all"><input ...${field("queues")} autocomplete="off"/><//>
    <${Field} label="Ends after" id="token-expires" hint="Empty for never"><input ...${field("expires")} autocomplete="off"/><//>
    ${problem && html`<p class="err gap2" role="alert">${problem.message}</p>`}
    <div class="acts gap2"><button class="btn main" type="submit">Create</button><button class="btn bare" type="button" onClick=${onClose}>Close</button></div></form><//>`;
}

const Made = ({ token, onClose }) => html`<${Dialog} label="The new token" onClose=${onClose}><div class="pad"><h2>Copy it now</h2>
  <p class="soft gap1">Only a hash of it is stored, so it cannot be shown again.</p>
  <p class="row gap2"><code class="secret" tabindex="0">${token.token}</code><${CopyButton} text=${() => token.token} what="the token"/></p>
  <div class="acts gap2"><button class="btn main" type="button" onClick=${onClose}>I have it</button></div></div><//>`;

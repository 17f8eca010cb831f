/** Tokens: who may call, with which role. A new one is shown once; a revoked one ends its sessions within seconds. */

import { api } from "../api.js";
import { clock } from "../format.js";
import { useTick } from "../live.js";
import { Button, Input } from "../parts/controls.js";
import { CopyButton } from "../parts/copy.js";
import { useAsk } from "../parts/data.js";
import { Dialog, Form, wrong } from "../parts/dialog.js";
import { html, useState } from "../parts/html.js";
import { useFields } from "../parts/jobdialogs.js";
import { Empty } from "../parts/notes.js";
import { Ago, Asked, Cap, dim, Table } from "../parts/page.js";
import { say, trying } from "../parts/toast.js";
import { seconds } from "./queue_settings.js";

const HOLD_MS = 8000;

export function Tokens({ session }) {
  const asked = useAsk("tokens", {}, { every: 15 });
  const [open, show] = useState(null); // "new", or the token that was made
  useTick(5);
  return html`<section><${Asked} of=${asked} what="The tokens could not be read">${({ file, items, roles }) => html`
    <${Cap} heading="Tokens" note=${file} end=${file !== null && html`<${Button} onClick=${() => show("new")}>New token…<//>`}/>
    ${file === null ? html`<${Empty} heading="This server has no token file" text="Only callers on its own machine are served, as admin. To let others in:" code=${COMMANDS}/>`
      : items.length === 0 ? html`<${Empty} heading="No token yet" text="Make one for each person and program."/>` : html`<${Table} rows=${items} columns=${[
        ["For", "tyc strong cut", (token) => html`${token.note || dim("no note")}${token.id === session.name && html` <span class="chip q">you</span>`}`],
        ["Role", "stc", (token) => token.role], ["Queues", "hide", (token) => token.queues?.join(", ") ?? dim("all")],
        ["Created", "hide", (token) => html`<${Ago} at=${token.created_at}/>`], ["Ends", "hide", (token) => html`<${Ago} at=${token.expires_at} none=${dim("never")}/>`],
        ["Id", "mono dim hide", (token) => token.id],
        [html`<span class="sr">Revoke</span>`, "num whc", (token) => html`<${Button} look="bad small" aria-label=${`Revoke ${nameOfToken(token)}`} onClick=${() => revoke(token, asked.ask)}>Revoke<//>`],
      ]}/>`}
    ${open === "new" && html`<${NewToken} roles=${roles} onClose=${() => show(null)} onMade=${(token) => { show(token); asked.ask(); }}/>`}
    ${open?.token && html`<${Made} token=${open.token} onClose=${() => show(null)}/>`}`}<//></section>`;
}

const COMMANDS = ["taskharbor tokens create --role admin --tokens taskharbor-tokens.json", "taskharbor server app:harbor --tokens taskharbor-tokens.json"];
const nameOfToken = (token) => token.note || token.id;

/** Held here for 8 s, because a revoked token cannot be made again. Leaving the page does it at once. */
function revoke(token, done) {
  const name = nameOfToken(token);
  let isOver = false;
  const end = () => { isOver = true; clearTimeout(timer); removeEventListener("pagehide", act); };
  const act = async () => {
    if (isOver) return;
    end();
    if (await trying("It was not revoked", () => api.delete(`tokens/${token.id}`))) toast.change(`Revoked ${name}`); else toast.close();
    done();
  };
  const timer = setTimeout(act, HOLD_MS);
  addEventListener("pagehide", act);
  const toast = say(`Revoking ${name}`, { endsAt: clock.now() + HOLD_MS, undo: () => { end(); say("Undone: the token stays"); }, now: act });
}

function NewToken({ roles, onClose, onMade }) {
  const [values, field] = useFields({ note: "", role: "viewer", queues: "", expires: "90 d" });
  const create = async () => {
    const span = values.expires.trim() === "" ? null : seconds(values.expires);
    if (span === undefined) throw wrong({ expires: "Write 90 d, 12 h or nothing." });
    const queues = values.queues.split(",").map((name) => name.trim()).filter(Boolean);
    onMade(await api.post("tokens", { role: values.role, note: values.note.trim(), queues: queues.length ? queues : null, expires_in_s: span }));
  };
  return html`<${Form} label="New token" verb="Create" onDo=${create} onClose=${onClose}>${(errorOf) => html`
    <${Input} ...${field("note")} label="For" hint="Who or what will use it"/>
    <${Input} ...${field("role")} as="select" label="Role" hint=${roles[values.role]}>${Object.keys(roles).map((role) => html`<option value=${role} selected=${role === values.role}>${role}</option>`)}<//>
    <${Input} ...${field("queues")} label="Queues" hint="With commas; empty for all"/>
    <${Input} ...${field("expires")} label="Ends after" hint="Empty for never" error=${errorOf("expires")}/>`}<//>`;
}

const Made = ({ token, onClose }) => html`<${Dialog} label="The new token" onClose=${onClose}><div class="pad"><h2>Copy it now</h2>
  <p class="soft gap1">Only a hash of it is stored, so it cannot be shown again.</p>
  <p class="row gap2"><code class="secret" tabindex="0">${token}</code><${CopyButton} text=${() => token} what="the token"/></p>
  <div class="acts gap2"><${Button} look="main" onClick=${onClose}>I have it<//></div></div><//>`;

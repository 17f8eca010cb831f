/** Dialogs about jobs: edit and retry, a new job, help for the search, a name for a view. */

import { api } from "../api.js";
import { retryOne, takeBack } from "../deeds.js";
import { shortId } from "../format.js";
import { Button, Input, typed } from "./controls.js";
import { Dialog, Form, jsonOf, wrong } from "./dialog.js";
import { html, useState } from "./html.js";
import { say } from "./toast.js";

const NUMBERS = { priority: "Priority", timeout_s: "Timeout, in seconds", max_attempts: "Attempts at most" };
const shown = (payload) => JSON.stringify(payload ?? null, null, 2);

/** Texts of fields by name, and what a field of that name needs. */
export function useFields(first) {
  const [values, set] = useState(first);
  return [values, (name) => ({ id: `field-${name}`, value: values[name] ?? "", onInput: typed((text) => set({ ...values, [name]: text })) })];
}

/** The fields that are not empty; one that is no number is an error beside it. */
function numbersIn(values, names) {
  const found = {}, errors = {};
  for (const name of names) {
    const value = Number(values[name]), isOne = Number.isFinite(value);
    if (values[name]) (isOne ? found : errors)[name] = isOne ? value : "Give a number, or leave it empty.";
  }
  if (Object.keys(errors).length) throw wrong(errors);
  return found;
}

/** Of one job: arguments and options. Of many (`onRetry`): options only, because their arguments differ.
 *
 * @param {{ job?: any, count?: number, onRetry?: (edit: object) => void, onClose: Function, onDone?: Function }} props */
export function EditRetry({ job, count = 1, onRetry, onClose, onDone }) {
  const before = job ? shown(job.payload) : "", isHidden = before.includes('"***"');
  const [values, field] = useFields({ payload: before });
  const retry = async () => {
    const edit = numbersIn(values, Object.keys(NUMBERS));
    if (values.payload !== before) edit.payload = jsonOf(values.payload, "payload");
    if (onRetry) { onRetry(edit); return; }
    await api.get(`jobs/${job.id}`); // it may be gone or running by now: the retry would say so as well, but less clearly
    if (await retryOne(job, edit, onDone)) onClose();
  };
  return html`<${Form} label="Edit and retry" heading=${`Edit and retry ${job ? `${job.type} ${shortId(job.id)}` : `${count} jobs`}`} size="large" verb="Retry" notDone="Nothing was retried: " onDo=${retry} onClose=${onClose}>${(errorOf) => html`
    <p class="soft gap1">What is left empty stays as it is.</p>
    ${job && "payload" in job && html`<${Input} ...${field("payload")} as="textarea" label="Arguments" error=${errorOf("payload")} hint=${isHidden && "Some values are hidden from you, so the arguments stay as they are."}
      rows=${Math.min(Math.max(before.split("\n").length, 4), 16)} spellcheck=${false} readonly=${isHidden}/>`}
    ${Object.entries(NUMBERS).map(([name, label]) => html`<${Input} ...${field(name)} label=${label} error=${errorOf(name)} inputmode="decimal" placeholder=${job?.[name] ?? ""}/>`)}`}<//>`;
}

/** Put a job in by hand. Undo cancels it if it has not begun. */
export function NewJob({ known, onClose, onDone }) {
  const [values, field] = useFields({ payload: "{}" });
  const put = async () => {
    const { type, queue } = values;
    const made = await api.post("jobs", { type: type.trim(), payload: jsonOf(values.payload, "payload"), ...(queue && { queue: queue.trim() }), ...numbersIn(values, ["delay_s"]) });
    onClose();
    say(`${type} ${shortId(made.id)} is in the queue`, { undo: () => takeBack(made.id, onDone) });
    onDone();
  };
  return html`<${Form} label="New job" size="large" verb="Enqueue" notDone="Nothing was enqueued: " onDo=${put} onClose=${onClose}>${(errorOf) => html`
    <${Input} ...${field("type")} label="Task" error=${errorOf("type")} list="types" required/>
    <${Input} ...${field("queue")} label="Queue, if not the task's own" error=${errorOf("queue")} list="queues"/>
    ${["types", "queues"].map((list) => html`<datalist id=${list}>${known[list].map((one) => html`<option value=${one}/>`)}</datalist>`)}
    <${Input} ...${field("payload")} as="textarea" label="Arguments, as JSON" error=${errorOf("payload")} rows="5" spellcheck=${false}/>
    <${Input} ...${field("delay_s")} label="Not before so many seconds" error=${errorOf("delay_s")} inputmode="decimal"/>`}<//>`;
}

export const SearchHelp = ({ known, onClose }) => html`<${Dialog} label="Search help" look="large" onClose=${onClose}><div class="pad"><h2>Search</h2>
  <p class="soft gap1">All words must hold. Commas are “or”, <code>-</code> is “not”, <code>*</code> matches, <code>></code> and <code>${"<"}</code> compare numbers and spans.
    A word alone is looked for in tasks, errors, keys, arguments and ids.</p>
  <pre class="gap1 pre">state:failed queue:mail,push type:send_* error:"timed out" args.user.id:42 ended:${"<"}1h -type:healthcheck</pre>
  <ul class="lines gap1">${Object.entries(known.fields).map(([name, hint]) => html`<li><code class="fix">${name}</code><span class="soft">${hint}</span></li>`)}</ul>
  <p class="soft gap1">Only ids, queues and states are looked up: to find jobs by a value, give them an id of your own.</p>
  <div class="acts gap2"><${Button} onClick=${onClose}>Close<//></div></div><//>`;

export function SaveView({ onSave, onClose }) {
  const [{ name }, field] = useFields({ name: "" });
  return html`<${Form} label="Save view" heading="Save this search" verb="Save" isReady=${name.trim()} onDo=${() => onSave(name.trim())} onClose=${onClose}>${() => html`
    <${Input} ...${field("name")} label="Name" hint="Kept in this browser. To share it, send the address of the page." maxlength="30"/>`}<//>`;
}

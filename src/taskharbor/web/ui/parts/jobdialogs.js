/** Dialogs about jobs: edit and retry, a new job, help for the search, a name for a view. */

import { shortId } from "../format.js";
import { api } from "../api.js";
import { retryOne } from "../deeds.js";
import { FIELDS } from "../query.js";
import { Field } from "./controls.js";
import { Dialog } from "./dialog.js";
import { html, useState } from "./html.js";
import { say, sayProblem } from "./toast.js";

const NUMBERS = [["priority", "Priority"], ["timeout_s", "Timeout, in seconds"], ["max_attempts", "Attempts at most"]];

/** "" is left alone; anything else must be a number. */
function numbersOf(values) {
  const edit = {}, errors = {};
  for (const [name] of NUMBERS) {
    if (values[name] === "" || values[name] === undefined) continue;
    const value = Number(values[name]);
    if (Number.isFinite(value)) edit[name] = value; else errors[name] = "Give a number, or leave it empty.";
  }
  return [edit, errors];
}

function payloadOf(text, before) {
  if (text === before) return [undefined, null];
  try { return [JSON.parse(text), null]; } catch (error) { return [undefined, `This is not JSON: ${error.message}`]; }
}

const shown = (payload) => JSON.stringify(payload ?? null, null, 2);
const problemAt = (problem, name) => problem?.errors.find((error) => error.path.startsWith(`$.${name}`))?.message;

/** Of one job: arguments and options. Of many (`onRetry`): options only, because their arguments differ.
 *
 * @param {{ job?: any, count?: number, onRetry?: (edit: object) => void, onClose: Function, onDone?: Function }} props */
export function EditRetry({ job, count = 1, onRetry, onClose, onDone }) {
  const before = job ? shown(job.payload) : "";
  const [payload, setPayload] = useState(before);
  const [values, set] = useState({});
  const [errors, fail] = useState({});
  const [problem, refuse] = useState(null);
  const isHidden = before.includes('"***"');
  const submit = async (event) => {
    event.preventDefault();
    const [edit, wrong] = numbersOf(values);
    const [changed, error] = payloadOf(payload, before);
    fail({ ...wrong, payload: error });
    if (error || Object.keys(wrong).length) return;
    if (changed !== undefined) edit.payload = changed;
    if (onRetry) { onRetry(edit); return; }
    try {
      await api.get(`jobs/${job.id}`); // it may be gone or running by now: the retry would say so as well, but less clearly
      if (await retryOne(job, edit, onDone)) onClose();
    } catch (found) { refuse(found); }
  };
  return html`<${Dialog} label="Edit and retry" className="large" onClose=${onClose}><form class="pad" onSubmit=${submit}>
    <h2>Edit and retry ${job ? `${job.type} ${shortId(job.id)}` : `${count} jobs`}</h2>
    <p class="soft gap1">What is left empty stays as it is.</p>
    ${job && "payload" in job && html`<${Field} id="edit-payload" label="Arguments" error=${errors.payload ?? problemAt(problem, "payload")}
      hint=${isHidden ? "Some values are hidden from you, so the arguments stay as they are." : ""}>
      <textarea id="edit-payload" class="field" rows=${Math.min(Math.max(before.split("\n").length, 4), 16)} spellcheck="false" readonly=${isHidden} value=${payload} onInput=${(event) => setPayload(event.target.value)}></textarea><//>`}
    ${NUMBERS.map(([name, label]) => html`<${Field} key=${name} id=${`edit-${name}`} label=${label} error=${errors[name] ?? problemAt(problem, name)}>
      <input id=${`edit-${name}`} class="field" inputmode="decimal" autocomplete="off" placeholder=${job?.[name] ?? ""} value=${values[name] ?? ""}
        onInput=${(event) => set({ ...values, [name]: event.target.value })}/><//>`)}
    ${problem && html`<p class="err gap1" role="alert">Nothing was retried: ${problem.message}</p>`}
    <div class="acts gap2"><button class="btn main" type="submit">Retry</button><button class="btn bare" type="button" onClick=${onClose}>Close</button></div>
  </form><//>`;
}

/** Put a job in by hand. Undo cancels it if it has not begun. */
export function NewJob({ types, queues, onClose, onDone }) {
  const [values, set] = useState({ type: "", queue: "", payload: "{}", delay_s: "" });
  const [problem, refuse] = useState(null);
  const [wrong, fail] = useState(null);
  const change = (name) => (event) => set({ ...values, [name]: event.target.value });
  const submit = async (event) => {
    event.preventDefault();
    const [payload, error] = payloadOf(values.payload, "");
    fail(error);
    if (error) return;
    try {
      const made = await api.post("jobs", { type: values.type.trim(), payload, ...(values.queue.trim() && { queue: values.queue.trim() }),
        ...(values.delay_s && { delay_s: Number(values.delay_s) }) });
      onClose();
      say(`${values.type} ${shortId(made.id)} is in the queue`, { undo: () => api.post(`jobs/${made.id}/cancel`).then(() => { say("It is cancelled"); onDone(); },
        (found) => sayProblem(found, "It was not taken back")) });
      onDone();
    } catch (found) { refuse(found); }
  };
  const input = (name, label, list, more = {}) => html`<${Field} id=${`new-${name}`} label=${label} error=${problemAt(problem, name)}>
    <input id=${`new-${name}`} class="field" autocomplete="off" list=${list ? `list-${name}` : undefined} value=${values[name]} onInput=${change(name)} ...${more}/>
    ${list && html`<datalist id=${`list-${name}`}>${list.map((one) => html`<option key=${one} value=${one}/>`)}</datalist>`}<//>`;
  return html`<${Dialog} label="New job" className="large" onClose=${onClose}><form class="pad" onSubmit=${submit}><h2>New job</h2>
    ${input("type", "Task", types, { required: true })}${input("queue", "Queue, if not the task's own", queues)}
    <${Field} id="new-payload" label="Arguments, as JSON" error=${wrong ?? problemAt(problem, "payload")}><textarea id="new-payload" class="field" rows="5" spellcheck="false" value=${values.payload} onInput=${change("payload")}></textarea><//>
    ${input("delay_s", "Not before so many seconds", null, { inputmode: "decimal" })}
    ${problem && html`<p class="err gap1" role="alert">Nothing was enqueued: ${problem.message}</p>`}
    <div class="acts gap2"><button class="btn main" type="submit">Enqueue</button><button class="btn bare" type="button" onClick=${onClose}>Close</button></div></form><//>`;
}

export const SearchHelp = ({ onClose }) => html`<${Dialog} label="Search help" className="large" onClose=${onClose}><div class="pad"><h2>Search</h2>
  <p class="soft gap1">All words must hold. Commas are “or”, <code>-</code> is “not”, <code>*</code> matches, <code>></code> and <code>${"<"}</code> compare numbers and spans.
    A bare word is an id (8 hex digits or more), else the beginning of a task's name.</p>
  <pre class="gap1 pre">state:failed queue:mail,push type:send_* error:"timed out" args.user.id:42 ended:${"<"}1h -type:healthcheck</pre>
  <ul class="lines gap1">${FIELDS.map(([name, hint]) => html`<li key=${name}><code class="fix">${name}</code><span class="soft">${hint}</span></li>`)}</ul>
  <p class="soft gap1">Ids, queues and states are looked up. Everything else is walked from the newest job back, a bounded number at a time: to find jobs by a value at once, give them a <code>key</code> or an id of your own.</p>
  <div class="acts gap2"><button class="btn" type="button" onClick=${onClose}>Close</button></div></div><//>`;

export function SaveView({ onSave, onClose }) {
  const [name, write] = useState("");
  const submit = (event) => { event.preventDefault(); if (name.trim()) onSave(name.trim()); };
  return html`<${Dialog} label="Save view" onClose=${onClose}><form class="pad" onSubmit=${submit}><h2>Save this search</h2>
    <${Field} id="view-name" label="Name" hint="Kept in this browser. To share it, send the address of the page.">
      <input id="view-name" class="field" autocomplete="off" maxlength="30" value=${name} onInput=${(event) => write(event.target.value)}/><//>
    <div class="acts gap2"><button class="btn main" type="submit" disabled=${!name.trim()}>Save</button><button class="btn bare" type="button" onClick=${onClose}>Close</button></div></form><//>`;
}

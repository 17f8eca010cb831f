/** Dialogs: the browser's own, so that focus stays inside and Escape closes. */

import { number, shortId } from "../format.js";
import { Button, typed } from "./controls.js";
import { html, useLayoutEffect, useRef, useState } from "./html.js";

/** @param {{ label: string, onClose: Function, look?: string }} props */
export function Dialog({ label, onClose, look = "", children }) {
  const box = useRef(null);
  useLayoutEffect(() => { // not after the next frame: keys pressed until then would be shortcuts of the page
    const before = document.activeElement;
    box.current.showModal();
    return () => { if (before?.isConnected) before.focus(); };
  }, []);
  return html`<dialog class=${`panel ${look}`} ref=${box} aria-label=${label} onCancel=${(event) => { event.preventDefault(); onClose(); }}
    onClick=${(event) => { if (event.target === box.current) onClose(); }}>${children}</dialog>`;
}

/** A dialog with a form. What `onDo` throws is shown in it; the function inside draws the fields and is given what is wrong with each, by name.
 *
 * @param {{ label: string, heading?: any, size?: string, verb: any, look?: string, isReady?: boolean, notDone?: string, more?: any, onDo: Function, onClose: Function }} props */
export function Form({ label, heading = label, size, verb, look = "main", isReady = true, notDone = "", more, onDo, onClose, children }) {
  const [problem, fail] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    try { if (isReady) await onDo(); } catch (found) { fail(found); }
  };
  return html`<${Dialog} label=${label} look=${size} onClose=${onClose}><form class="pad" onSubmit=${submit}><h2>${heading}</h2>
    ${children((name) => problem?.errors?.find((error) => error.path.startsWith(`$.${name}`))?.message)}
    ${problem?.message && html`<p class="err gap2" role="alert">${notDone}${problem.message}</p>`}
    <div class="acts gap2"><button class=${`btn ${look}`} type="submit" disabled=${!isReady}>${verb}</button>${more}<${Button} look="bare" onClick=${onClose}>Close<//></div></form><//>`;
}

/** Thrown in `onDo`: what is wrong with which field, as the server would say it. */
export const wrong = (errors) => ({ errors: Object.entries(errors).map(([name, message]) => ({ path: `$.${name}`, message })) });

export function jsonOf(text, name) {
  try { return JSON.parse(text); } catch (error) { throw wrong({ [name]: `This is not JSON: ${error.message}` }); }
}

const TYPED_ABOVE = 100;

/** Before many jobs: what will happen, ten samples, what stays; above 100 the number is typed.
 *
 * @param {{ heading: string, verb: string, count: number, isExact?: boolean, text?: string, samples?: any[], isBad?: boolean,
 *           onDo: Function, onClose: Function, more?: any }} props */
export function Confirm({ heading, verb, count, isExact = true, text, samples = [], isBad, children, ...rest }) {
  const [answer, type] = useState("");
  const mustType = count > TYPED_ABOVE;
  return html`<${Form} label=${heading} verb=${`${verb} ${number(count)}${isExact ? "" : "+"}`} look=${isBad ? "bad" : "main"}
    isReady=${count > 0 && (!mustType || answer.replace(/\D/g, "") === String(count))} ...${rest}>${() => html`${children && html`<p class="soft gap1">${children}</p>`}
    ${text && html`<p class="soft gap1">${text}</p>`}
    ${samples.length > 0 && html`<ul class="lines gap1">${samples.map((job) => html`
      <li><code class="dim">${shortId(job.id)}</code><span class="nowrap">${job.type}</span><span class="cut soft">${job.last_error ?? job.args ?? ""}</span></li>`)}</ul>`}
    ${mustType && html`<p class="gap1"><label>Type <b>${count}</b> to go on<br/>
      <input class="field" inputmode="numeric" autocomplete="off" value=${answer} onInput=${typed(type)}/></label></p>`}`}<//>`;
}

/** Dialogs: the browser's own, so that focus stays inside and Escape closes. */

import { number, shortId } from "../format.js";
import { html, useLayoutEffect, useRef, useState } from "./html.js";

/** @param {{ label: string, onClose: Function, className?: string }} props */
export function Dialog({ label, onClose, className = "", children }) {
  const box = useRef(null);
  useLayoutEffect(() => { // not after the next frame: keys pressed until then would be shortcuts of the page
    const before = document.activeElement;
    box.current.showModal();
    return () => { if (before?.isConnected) before.focus(); };
  }, []);
  const cancelled = (event) => { event.preventDefault(); onClose(); };
  const clicked = (event) => { if (event.target === box.current) onClose(); };
  return html`<dialog class=${`panel ${className}`} ref=${box} aria-label=${label} onCancel=${cancelled} onClick=${clicked}>${children}</dialog>`;
}

export const TYPED_ABOVE = 100;

/** Before many jobs: what will happen, ten samples, what is skipped; above 100 the number is typed.
 *
 * @param {{ title: string, verb: string, count: number, isExact: boolean, lines?: any, samples?: any[], skipped?: any[],
 *           isBad?: boolean, onDo: Function, onClose: Function, more?: any }} props */
export function Confirm({ title, verb, count, isExact = true, children, samples = [], skipped = [], isBad = false, onDo, onClose, more }) {
  const [typed, type] = useState("");
  const mustType = count > TYPED_ABOVE;
  const isReady = count > 0 && (!mustType || typed.replace(/\D/g, "") === String(count));
  const done = (event) => { event.preventDefault(); if (isReady) onDo(); };
  return html`<${Dialog} label=${title} onClose=${onClose}><form class="pad" onSubmit=${done}>
    <h2>${title}</h2>${children}
    ${skipped.length > 0 && html`<p class="soft gap1">${skippedText(skipped)}</p>`}
    ${samples.length > 0 && html`<ul class="lines gap1">${samples.map((job) => html`
      <li key=${job.id}><code class="dim">${shortId(job.id)}</code><span class="nowrap">${job.type}</span>
        <span class="cut soft">${job.last_error ?? job.args ?? ""}</span></li>`)}</ul>`}
    ${mustType && html`<p class="gap1"><label>Type <b>${count}</b> to go on<br/>
      <input class="field" inputmode="numeric" autocomplete="off" value=${typed} onInput=${(event) => type(event.target.value)}/></label></p>`}
    <div class="acts gap2"><button class=${`btn ${isBad ? "bad" : "main"}`} type="submit" disabled=${!isReady}>${verb} ${number(count)}${isExact ? "" : "+"}</button>
      ${more}<button class="btn bare" type="button" onClick=${onClose}>Close</button></div>
  </form><//>`;
}

export function skippedText(skipped) {
  const total = skipped.reduce((sum, one) => sum + one.count, 0);
  const reasons = skipped.map((one) => (skipped.length > 1 ? `${number(one.count)}: ${one.why}` : one.why)).join("; ");
  return `${number(total)} more ${total === 1 ? "matches and stays" : "match and stay"} as ${total === 1 ? "it is" : "they are"}: ${reasons}.`;
}

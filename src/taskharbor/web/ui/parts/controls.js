/** Buttons, menus and small things to press. */

import { html, useLayoutEffect, useRef, useState } from "./html.js";
import { Icon } from "./icons.js";

/** @param {{ look?: "main" | "bad" | "bare", onClick?: Function, href?: string, label?: string, wide?: boolean }} props */
export function Button({ look = "", wide = false, href, children, ...rest }) {
  const names = `btn ${look}${wide ? " wide" : ""}`;
  return href === undefined
    ? html`<button class=${names} type="button" ...${rest}>${children}</button>`
    : html`<a class=${names} href=${href} ...${rest}>${children}</a>`;
}

export const IconButton = ({ icon, label, size = 16, look = "bare", wide = false, ...rest }) => html`
  <button class=${`btn icon ${look}${wide ? " wide" : ""}`} type="button" aria-label=${label} title=${label} ...${rest}>
    <${Icon} glyph=${icon} size=${size}/></button>`;

/** One of a few, as links, so that each has an address: `items` are [value, word, href]. */
export const Segments = ({ label, items, value, wide = false }) => html`
  <nav class=${`seg${wide ? " wide" : ""}`} aria-label=${label}>
    ${items.map(([name, word, href]) => html`<a key=${name} href=${href} aria-current=${name === value ? "true" : undefined}>${word}</a>`)}
  </nav>`;

/** A button that opens a list: `items` are [label, action]. */
export function Menu({ label, text, icon, look = "", items }) {
  const [isOpen, open] = useState(false);
  const box = useRef(null);
  useLayoutEffect(() => {
    if (!isOpen) return undefined;
    box.current.querySelector("[role=menuitem]")?.focus();
    const away = (event) => { if (!box.current.contains(event.target)) open(false); };
    document.addEventListener("pointerdown", away);
    return () => document.removeEventListener("pointerdown", away);
  }, [isOpen]);
  const close = () => { open(false); box.current.querySelector("button").focus(); };
  const keyed = (event) => {
    const all = [...box.current.querySelectorAll("[role=menuitem]")];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") close();
    else if (step) all.at((all.indexOf(document.activeElement) + step) % all.length).focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return html`<div class="menu" ref=${box} onKeyDown=${isOpen ? keyed : undefined}>
    <button class=${`btn ${look}${text ? "" : " icon"}`} type="button" aria-haspopup="menu" aria-expanded=${isOpen}
      aria-label=${text ? undefined : label} onClick=${() => open(!isOpen)}>
      ${text}<${Icon} glyph=${icon ?? "down"} size=${text ? 14 : 16}/></button>
    ${isOpen && html`<div class="panel drop" role="menu" aria-label=${label}>
      ${items.filter(Boolean).map(([word, action, tone]) => html`
        <button key=${word} class=${tone ?? ""} type="button" role="menuitem" tabindex="-1"
          onClick=${() => { close(); action(); }}>${word}</button>`)}
    </div>`}
  </div>`;
}

/** A check box. */
export const Tick = ({ label, isOn, ...rest }) => html`
  <label class="hit"><input class="tick" type="checkbox" checked=${isOn} aria-label=${label} ...${rest}/></label>`;

/** A switch with its word beside it. */
export const Switch = ({ label, isOn, onChange }) => html`
  <label class="row switch"><input type="checkbox" role="switch" checked=${isOn} onChange=${(event) => onChange(event.target.checked)}/>
    <i aria-hidden="true"></i><span>${label}</span></label>`;

/** A field with its label and a hint, or what is wrong with its value. `as` is another element than an input. */
export const Input = ({ id, label, hint, error, look = "", as: Element = "input", ...rest }) => html`
  <div class="fld"><label for=${id}>${label}</label><${Element} id=${id} class=${`field ${look}`} autocomplete="off" ...${rest}/>
    ${error ? html`<p class="err" role="alert">${error}</p>` : hint && html`<p class="dim small">${hint}</p>`}</div>`;

/** What was typed, for `onInput`. */
export const typed = (take) => (event) => take(event.target.value);

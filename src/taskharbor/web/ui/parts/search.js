/** The search field: finished words are chips, the last one is being written; completion, and an error at its place. */

import { completions, isWhole, join, words } from "../query.js";
import { href } from "../route.js";
import { IconButton } from "./controls.js";
import { html, useRef, useState } from "./html.js";
import { Icon } from "./icons.js";

/** @param {{ q: string, onSearch: (q: string) => void, known: object, problem: any, views: any[], onHelp: Function, onDropView: Function }} props */
export function SearchField({ q, onSearch, known, problem, views, onHelp, onDropView }) {
  const [draft, setDraft] = useState("");
  const [at, move] = useState(-1);
  const [isOpen, open] = useState(false);
  const field = useRef(null);
  const chips = words(q);
  const offered = isOpen ? completions(draft, known) : [];
  const texts = chips.map((chip) => chip.text);
  // With the draft, not after it: a key pressed at once would lose its choice.
  const write = (text) => { setDraft(text); move(-1); };
  const search = (next, left = "") => { write(left); open(left !== ""); onSearch(join(next)); };
  const commit = () => { if (draft.trim()) search([...texts, ...words(draft).map((word) => word.text)]); };
  const accept = (text) => {
    if (isWhole(text)) search([...texts, text]); else { write(text); open(true); }
    field.current.focus();
  };
  const keyed = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && (offered.length || !isOpen)) { open(true); if (offered.length) move((at + step + offered.length) % offered.length); }
    else if ((event.key === "Enter" || event.key === "Tab") && at >= 0 && offered[at]) accept(offered[at][0]);
    else if (event.key === "Enter") commit();
    else if (event.key === "Backspace" && !draft && texts.length) { write(texts.at(-1)); onSearch(join(texts.slice(0, -1))); }
    else if (event.key === " " && isWhole(draft)) commit();
    else if (event.key === "Escape") { if (offered.length) open(false); else field.current.blur(); event.stopPropagation(); return; }
    else return;
    event.preventDefault();
  };
  const pasted = (event) => {
    const text = event.clipboardData.getData("text").trim();
    if (!/\s/.test(text)) return;
    event.preventDefault();
    search([...texts, ...words(draft + text).map((word) => word.text)]);
  };
  const edit = (index) => { write(texts[index]); onSearch(join(texts.filter((_, other) => other !== index))); field.current.focus(); };
  const wrong = problem && wordAt(problem, chips);
  return html`<div class="query" role="search" aria-label="Search jobs" onFocusOut=${(event) => { if (!event.currentTarget.contains(event.relatedTarget)) open(false); }}>
    <span class="dim"><${Icon} name="search"/></span>
    ${chips.map((chip, index) => html`<${Chip} key=${chip.at + chip.text} text=${chip.text} isWrong=${wrong === index} onEdit=${() => edit(index)}
      onDrop=${() => search(texts.filter((_, other) => other !== index))}/>`)}
    <input id="q" class="bareinput" ref=${field} value=${draft} autocomplete="off" autocapitalize="off" spellcheck="false" role="combobox" aria-label="Search jobs"
      aria-expanded=${offered.length > 0} aria-controls="suggestions" aria-autocomplete="list" aria-activedescendant=${at >= 0 ? `suggestion-${at}` : undefined}
      aria-invalid=${problem ? "true" : undefined} aria-describedby=${problem ? "q-problem" : undefined} placeholder=${chips.length ? "" : "state:failed type:send_* error:\"timed out\""}
      onInput=${(event) => { write(event.target.value); open(true); }} onFocus=${() => open(true)} onKeyDown=${keyed} onPaste=${pasted}/>
    <span class="end">${views.length > 0 && html`<span class="dim wide">Views</span>`}
      ${views.map((view) => html`<span key=${view.name} class="chip line wide"><a href=${href("jobs", [], { q: view.q, sort: view.sort })}>${view.name}</a>
        <button type="button" aria-label=${`Forget the view ${view.name}`} onClick=${() => onDropView(view.name)}><${Icon} name="close" size=${10}/></button></span>`)}
      <${IconButton} icon="help" size=${15} label="Search help" onClick=${onHelp}/></span>
    ${offered.length > 0 && html`<ul class="panel cmd suggest" id="suggestions" role="listbox" aria-label="Suggestions">${offered.map(([text, hint], index) => html`
      <li key=${text} id=${`suggestion-${index}`} role="option" aria-selected=${index === at} class=${index === at ? "at" : ""}
        onMouseDown=${(event) => { event.preventDefault(); accept(text); }}><span class="cut">${text}</span><span class="end dim">${hint}</span></li>`)}</ul>`}
  </div>${problem && html`<p id="q-problem" class="err under" role="alert">${said(problem)}</p>`}`;
}

const Chip = ({ text, isWrong, onEdit, onDrop }) => html`<span class=${`chip ${isWrong ? "wrong" : text.startsWith("-") ? "not" : "q"}`}>
  <span class="cut" onClick=${onEdit}>${text.startsWith("-") ? `−${text.slice(1)}` : text}</span>
  <button type="button" aria-label=${`Remove ${text}`} onClick=${onDrop}><${Icon} name="close" size=${10}/></button></span>`;

/** What is wrong, and what should be there. */
function said({ message, errors: [first] }) {
  if (!first) return message;
  return first.expected?.length ? `${first.message}; expected ${first.expected.join(" or ")}` : first.message;
}

/** The chip that the server's error points at. */
function wordAt(problem, chips) {
  const at = problem.errors[0]?.at;
  if (typeof at !== "number") return null;
  const found = chips.findLastIndex((chip) => chip.at <= at);
  return found < 0 ? 0 : found;
}

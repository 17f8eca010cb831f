/** The search field: finished words are chips, the last one is being written; completion, and an error at its place. */

import { completions, isWhole, join, textsOf, words } from "../query.js";
import { href } from "../route.js";
import { IconButton, typed } from "./controls.js";
import { html, useLayoutEffect, useRef, useState } from "./html.js";
import { Icon } from "./icons.js";
import { useChoice } from "./palette.js";

/** @param {{ q: string, onSearch: (q: string) => void, known: object, problem: any, views: any[], onHelp: Function, onDropView: Function }} props */
export function SearchField({ q, onSearch, known, problem, views, onHelp, onDropView }) {
  const [draft, setDraft] = useState("");
  const [isOpen, open] = useState(false);
  const field = useRef(null), asked = useRef(q);
  // What was asked last, though the address tells a moment later: two words typed at once are both kept.
  useLayoutEffect(() => { asked.current = q; }, [q]);
  const chips = words(q), texts = textsOf(q), offered = isOpen ? completions(draft, known) : [];
  const choice = useChoice("suggestion", offered.length, -1, (index) => accept(offered[index][0]));
  // With the draft, not after it: a key pressed at once would lose its choice.
  const write = (text) => { setDraft(text); choice.move(-1); };
  const search = (next) => { write(""); open(false); onSearch(asked.current = join(next)); };
  const add = (text) => search([...textsOf(asked.current), ...textsOf(text)]);
  const without = (index) => texts.filter((_, other) => other !== index);
  const commit = () => { if (draft.trim()) add(draft); };
  const accept = (text) => {
    if (isWhole(text)) add(text); else { write(text); open(true); }
    field.current.focus();
  };
  const edit = (index) => { write(texts.at(index)); onSearch(asked.current = join(without(index))); field.current.focus(); };
  const keyed = (event) => {
    const { key } = event;
    if (key === "Escape") { if (offered.length) open(false); else field.current.blur(); event.stopPropagation(); return; }
    if (key.startsWith("Arrow") && !isOpen) open(true);
    if (choice.keyed(event)) return;
    if (key === "Tab" && choice.at >= 0) accept(offered[choice.at][0]);
    else if (key === "Enter" || (key === " " && isWhole(draft))) commit();
    else if (key === "Backspace" && !draft && texts.length) edit(texts.length - 1);
    else return;
    event.preventDefault();
  };
  const pasted = (event) => {
    const text = event.clipboardData.getData("text").trim();
    if (!/\s/.test(text)) return;
    event.preventDefault();
    add(draft + text);
  };
  const wrong = problem && wordAt(problem, chips);
  return html`<div class="query" role="search" aria-label="Search jobs" onFocusOut=${(event) => { if (!event.currentTarget.contains(event.relatedTarget)) open(false); }}>
    <span class="dim"><${Icon} glyph="search"/></span>
    ${texts.map((text, index) => html`<${Chip} key=${chips[index].at + text} text=${text} isWrong=${wrong === index} onEdit=${() => edit(index)} onDrop=${() => search(without(index))}/>`)}
    <input id="q" class="bareinput" ref=${field} value=${draft} autocapitalize="off" spellcheck=${false} aria-label="Search jobs" ...${choice.field}
      aria-expanded=${offered.length > 0} aria-autocomplete="list" aria-invalid=${problem ? "true" : undefined} aria-describedby=${problem ? "q-problem" : undefined}
      placeholder=${chips.length ? "" : "state:failed type:send_* error:\"timed out\""} onInput=${typed((text) => { write(text); open(true); })} onFocus=${() => open(true)} onKeyDown=${keyed} onPaste=${pasted}/>
    <span class="end">${views.length > 0 && html`<span class="dim wide">Views</span>`}
      ${views.map((view) => html`<span class="chip line wide"><a href=${href("jobs", [], { q: view.q, sort: view.sort })}>${view.name}</a><${Drop} label=${`Forget the view ${view.name}`} onClick=${() => onDropView(view.name)}/></span>`)}
      <${IconButton} icon="help" size=${15} label="Search help" onClick=${onHelp}/></span>
    ${offered.length > 0 && html`<ul class="panel cmd suggest" ...${choice.list} aria-label="Suggestions">${offered.map(([text, hint], index) => html`
      <li key=${text} ...${choice.option(index)} onMouseDown=${(event) => { event.preventDefault(); accept(text); }}><span class="cut">${text}</span><span class="end dim">${hint}</span></li>`)}</ul>`}
  </div>${problem && html`<p id="q-problem" class="err under" role="alert">${said(problem)}</p>`}`;
}

const Drop = ({ label, onClick }) => html`<button type="button" aria-label=${label} onClick=${onClick}><${Icon} glyph="close" size=${10}/></button>`;

const Chip = ({ text, isWrong, onEdit, onDrop }) => html`<span class=${`chip ${isWrong ? "wrong" : text.startsWith("-") ? "not" : "q"}`}>
  <span class="cut" onClick=${onEdit}>${text.startsWith("-") ? `−${text.slice(1)}` : text}</span>
  <${Drop} label=${`Remove ${text}`} onClick=${onDrop}/></span>`;

/** What is wrong, and what should be there. */
const said = ({ message, errors: [first] }) => (!first ? message : first.expected?.length ? `${first.message}; expected ${first.expected.join(" or ")}` : first.message);

/** The chip that the server's error points at. */
function wordAt(problem, chips) {
  const at = problem.errors[0]?.at;
  return typeof at === "number" ? Math.max(chips.findLastIndex((chip) => chip.at <= at), 0) : null;
}

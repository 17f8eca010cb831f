/** What pages are made of: a head, sections, tables, lists and facts; and what was asked for, while it is on its way. */

import { ago, instant, NONE } from "../format.js";
import { html } from "./html.js";
import { Loading, Trouble } from "./notes.js";

/** The top of a page. `trail` are the pages above it, [word, address]; `pill` is beside a title that is cut where it is long. */
export const Head = ({ trail, here, heading, pill, lede, acts, children }) => html`<div class="head"><div class="grow">
  ${trail && html`<p class="dim crumb">${trail.map(([word, address]) => html`<a class="link" href=${address}>${word}</a> / `)}${here}</p>`}
  <div class="row title"><h1 class=${pill === undefined ? "" : "cut"}>${heading}</h1>${pill}</div>${lede !== undefined && html`<p class="lede">${lede}</p>`}</div>
  ${acts && html`<div class="acts">${acts}</div>`}${children}</div>`;

/** The line above a card: what it is, a note, and what is at its end. */
export const Cap = ({ heading, note, end }) => html`<div class="cap"><h2>${heading}</h2><span class="dim cut">${note}</span><span class="end"></span>${end}</div>`;

export const Section = ({ look, children, ...cap }) => html`<section class=${look}><${Cap} ...${cap}/>${children}</section>`;

/** What `useAsk` found, drawn by the function inside; a problem is above it, or in its place. */
export const Asked = ({ of: { answer, problem, ask }, what, rows, children }) => html`
  ${problem && html`<div class="gapb"><${Trouble} problem=${problem} what=${what} onAgain=${ask}/></div>`}
  ${answer ? children(answer) : !problem && html`<${Loading} rows=${rows}/>`}`;

/** A column is [word, class of its cells, what it shows of a row]; its head takes what concerns its place. An entry may be false. */
export const Heads = ({ columns }) => columns.filter(Boolean).map(([word, cell]) => html`<th class=${cell.match(/num|narrow|mid2|mid|c-\w+/g)?.join(" ")}>${word}</th>`);
export const Cells = ({ columns, row }) => columns.filter(Boolean).map(([, cell, show]) => html`<td class=${cell}>${show(row)}</td>`);

/** A table whose rows are cards on a phone. */
export const Table = ({ columns, rows, id = (row) => row.id, look = "", children }) => html`<div class="card"><table class=${`cards ${look}`}>
  <thead><tr><${Heads} columns=${columns}/></tr></thead><tbody>${rows.map((row) => html`<tr key=${id(row)}><${Cells} columns=${columns} row=${row}/></tr>`)}</tbody></table>${children}</div>`;

/** Lines in a card; `none` is shown where there is no line. */
export const List = ({ look = "", rows, none, children }) => html`<ul class=${`card list ${look}`}>${rows.map(children)}${!rows.length && none && html`<li class="dim">${none}</li>`}</ul>`;

/** [word, value] below each other; an entry may be false. */
export const Facts = ({ rows, look = "card pad" }) => html`<dl class=${`${look} facts`}>${rows.filter(Boolean).map(([word, value]) => html`
  <dt>${word}</dt><dd>${value || value === 0 ? value : NONE}</dd>`)}</dl>`;

/** "21 s ago" with the instant as its tooltip. */
export const Ago = ({ at, none = NONE }) => (at ? html`<span title=${instant(at)}>${ago(at)}</span>` : none);

/** A sentence of the server: what is between backticks is set apart, as code or by `show`. */
export const marked = (text, show = (name) => html`<code>${name}</code>`) => text.split("`").map((part, index) => (index % 2 ? show(part) : part));

export const dim = (text) => html`<span class="dim">${text}</span>`;

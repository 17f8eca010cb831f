/** Empty, loading, broken: always written, never blank. */

import { useEffect, useState, html } from "./html.js";
import { Icon } from "./icons.js";

/** @param {{ heading: string, text?: any, code?: string[], acts?: any }} props */
export const Empty = ({ heading, text, code = [], acts }) => html`<div class="card empty"><b>${heading}</b>
  ${text && html`<span class="soft">${text}</span>`}
  ${code.map((line, index) => html`<pre key=${line} tabindex="0" role="region" aria-label=${code.length > 1 ? `To paste, ${index + 1}` : "To paste"}>${line}</pre>`)}
  ${acts && html`<span class="acts">${acts}</span>`}</div>`;

const WIDTHS = [[20, 26, 10], [24, 18, 14], [17, 30, 9], [22, 22, 12]];

/** Rows of a table that is on its way; nothing for the first 200 ms. */
export function Loading({ rows = 4 }) {
  const [isLate, late] = useState(false);
  useEffect(() => { const timer = setTimeout(() => late(true), 200); return () => clearTimeout(timer); }, []);
  if (!isLate) return html`<div class="late" aria-busy="true"></div>`;
  return html`<div class="card skel" role="status" aria-busy="true" aria-label="Loading">
    ${Array.from({ length: rows }, (_, index) => WIDTHS[index % 4]).map(([a, b, c], index) => html`
      <div key=${index} class="row skrow"><svg width="100%" height="9" aria-hidden="true"><rect width=${`${a}%`} height="9" rx="4"/>
        <rect x="34%" width=${`${b}%`} height="9" rx="4"/><rect x="78%" width=${`${c}%`} height="9" rx="4"/></svg></div>`)}</div>`;
}

/** What happened, what was not done, the request id. */
export const Trouble = ({ problem, what = "This could not be loaded", onAgain }) => html`<div class="card empty" role="alert">
  <b>${what}</b><span class="soft">${problem.message}</span>
  ${problem.requestId && html`<span class="dim">Request <code>${problem.requestId}</code></span>`}
  ${onAgain && html`<span class="acts"><button class="btn" type="button" onClick=${onAgain}>Try again</button></span>`}</div>`;

/** @param {{ plain?: boolean, icon?: string, children: any, end?: any }} props */
export const Banner = ({ plain = false, icon = plain ? "help" : "warn", children, end }) => html`
  <div class=${`banner${plain ? " plain" : ""}`}><${Icon} glyph=${icon} width=${1.5}/><span>${children}</span>
    ${end && html`<span class="end dim nowrap">${end}</span>`}</div>`;

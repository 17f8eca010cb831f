/** The overview: a verdict in words, then the numbers that explain it. */

import { html } from "../parts/html.js";

export const title = () => "Overview";
export const hasWindow = true;

export default function Overview() {
  return html`<div class="head"><div class="grow"><h1>Overview</h1></div></div>`;
}

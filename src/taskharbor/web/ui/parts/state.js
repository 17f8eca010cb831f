/** States: always a shape and a word, then a colour. */

import { html } from "./html.js";
import { Drawing } from "./icons.js";

const solid = { fill: "currentColor", stroke: "none" };
const SHAPES = {
  ready: html`<circle cx="6" cy="6" r="4.4" stroke-width="1.5"/>`,
  scheduled: html`<g stroke-width="1.3"><circle cx="6" cy="6" r="4.6"/><path d="M6 3.4V6l1.8 1.1"/></g>`,
  retrying: html`<path d="M10.2 6.6A4.3 4.3 0 1 1 8.9 2.9" stroke-width="1.5"/><path d="M9.4.6v2.9H6.5z" ...${solid}/>`,
  blocked: html`<rect x="2" y="5.2" width="8" height="5.3" rx="1.3" ...${solid}/><path d="M3.9 5.4V4a2.1 2.1 0 0 1 4.2 0v1.4" stroke-linecap="butt" stroke-width="1.4"/>`,
  running: html`<path d="M3 1.9v8.2a.6.6 0 0 0 .9.5l6.6-4.1a.6.6 0 0 0 0-1L3.9 1.4a.6.6 0 0 0-.9.5z" ...${solid}/>`,
  completed: html`<circle cx="6" cy="6" r="5.3" ...${solid}/><path d="m3.6 6.2 1.7 1.7 3.1-3.6" class="s-surface" stroke-width="1.5"/>`,
  failed: html`<path d="M6 .5 11.5 6 6 11.5.5 6z" ...${solid}/><path d="m4.4 4.4 3.2 3.2m0-3.2L4.4 7.6" class="s-surface" stroke-width="1.4"/>`,
  cancelled: html`<g stroke-width="1.4"><circle cx="6" cy="6" r="4.6"/><path d="m2.9 9.1 6.2-6.2" stroke-linecap="butt"/></g>`,
  paused: [2.6, 7].map((x) => html`<rect x=${x} y="1.8" width="2.4" height="8.4" rx=".8" ...${solid}/>`),
  lost: html`<circle cx="6" cy="6" r="4.5" stroke-width="1.5" stroke-linecap="butt" stroke-dasharray="2.2 2"/>`,
};

export const STATES = ["ready", "scheduled", "retrying", "blocked", "running", "failed", "completed", "cancelled"];

export const Shape = ({ glyph }) => html`<${Drawing} size=${12}>${SHAPES[glyph] ?? SHAPES.ready}<//>`;

/** @param {{ glyph: string, word?: string, tone?: string, pill?: boolean }} props `tone` colours another word */
export const State = ({ glyph, word = glyph, tone = glyph, pill }) => html`
  <span class=${`st ${tone}${pill ? " pill" : ""}`}><${Shape} glyph=${glyph}/>${word}</span>`;

/** The state as people say it: a scheduled job that has failed before is retrying. */
export const stateOf = (job) =>
  job.state === "scheduled" && (job.attempts > 0 || job.stalls > 0) && job.last_error !== null ? "retrying" : job.state;

export const isOver = (job) => ["failed", "completed", "cancelled"].includes(job.state);

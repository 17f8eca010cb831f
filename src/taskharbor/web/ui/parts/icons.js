/** Icons: 16 × 16, drawn in the current colour. */

import { html } from "./html.js";

const WARN = html`<path d="M8 2.2 14 13H2zM8 6.5v3M8 11.4h.01"/>`;
const PATHS = {
  overview: html`<path d="M2 12.5h12M3.5 12.5V8M8 12.5V3.5M12.5 12.5V6"/>`,
  jobs: html`<path d="M5.5 4h8M5.5 8h8M5.5 12h8"/><path d="M2.6 4h.01M2.6 8h.01M2.6 12h.01" stroke-width="2"/>`,
  failures: WARN,
  queues: html`<rect x="2.5" y="3" width="11" height="3" rx="1"/><rect x="2.5" y="8" width="8" height="2" rx="1"/><rect x="2.5" y="12" width="5" height="1.5" rx=".7"/>`,
  workers: html`<rect x="2.5" y="3" width="11" height="4.2" rx="1.3"/><rect x="2.5" y="9" width="11" height="4.2" rx="1.3"/><path d="M5 5.1h.01M5 11.1h.01" stroke-width="2"/>`,
  schedules: html`<circle cx="8" cy="8" r="5.6"/><path d="M8 4.8V8l2.2 1.6"/>`,
  system: html`<circle cx="8" cy="8" r="2.1"/><path d="M8 2v2M8 12v2M2 8h2M12 8h2M3.8 3.8l1.4 1.4M10.8 10.8l1.4 1.4M12.2 3.8l-1.4 1.4M5.2 10.8l-1.4 1.4"/>`,
  search: html`<circle cx="7" cy="7" r="4.3"/><path d="m10.3 10.3 3.2 3.2"/>`,
  moon: html`<path d="M13.2 9.6A5.6 5.6 0 0 1 6.4 2.8a5.6 5.6 0 1 0 6.8 6.8z"/>`,
  help: html`<circle cx="8" cy="8" r="5.8"/><path d="M6.3 6.3a1.8 1.8 0 1 1 2.4 1.8c-.5.2-.7.5-.7 1M8 11.2h.01"/>`,
  down: html`<path d="m5 6.5 3 3 3-3"/>`,
  right: html`<path d="m6.5 5 3 3-3 3"/>`,
  star: html`<path d="m8 2.6 1.6 3.5 3.8.4-2.8 2.6.8 3.8L8 11l-3.4 1.9.8-3.8L2.6 6.5l3.8-.4z"/>`,
  plus: html`<path d="M8 3.5v9M3.5 8h9"/>`,
  close: html`<path d="m4.5 4.5 7 7m0-7-7 7"/>`,
  more: html`<path d="M4 8h.01M8 8h.01M12 8h.01" stroke-width="2"/>`,
  copy: html`<rect x="5.5" y="5.5" width="8" height="8" rx="1.5"/><path d="M10.5 5.5v-2a1 1 0 0 0-1-1h-6a1 1 0 0 0-1 1v6a1 1 0 0 0 1 1h2"/>`,
  bad: html`<path d="M5.4 2.4h5.2l3 3v5.2l-3 3H5.4l-3-3V5.4zM8 5v3.6M8 10.9h.01"/>`,
  warn: WARN,
};

/** Lines in the current colour, in a square of `size` that is drawn as large as `shown`. */
export const Drawing = ({ size, shown = size, children, ...rest }) => html`<svg width=${shown} height=${shown} viewBox=${`0 0 ${size} ${size}`} fill="none" stroke="currentColor" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true" ...${rest}>${children}</svg>`;

/** @param {{ glyph: string, size?: number, width?: number }} props */
export const Icon = ({ glyph, size, width = 1.4 }) => html`<${Drawing} size=${16} shown=${size} stroke-width=${width}>${PATHS[glyph]}<//>`;

export const Logo = () => html`<${Drawing} size=${22} stroke-width="1.8"><rect width="22" height="22" rx="6" stroke="none" class="t-logo"/>
  <g class="t-logo-on"><path d="M6.5 5v12M9.8 11h4.2M9.8 15h2.2"/><path d="M9.8 7h6.2" class="s-acc"/></g><//>`;

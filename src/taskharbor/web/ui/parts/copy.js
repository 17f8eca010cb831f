/** To the clipboard, with a word about it. */

import { IconButton } from "./controls.js";
import { html } from "./html.js";
import { say } from "./toast.js";

export async function copy(text, what) {
  try { await navigator.clipboard.writeText(text); say(`Copied ${what}`); } catch { say(`The browser does not let this page copy ${what}`); }
}

export const CopyButton = ({ text, what }) => html`
  <${IconButton} icon="copy" size=${15} label=${`Copy ${what}`} onClick=${() => copy(text(), what)}/>`;

/** A traceback: frames of the application stand out, those of libraries are quiet, the error itself comes last and red. */

import { html } from "./html.js";

const FRAME = /^\s*File "([^"]+)", line \d+, in /;
const FOREIGN = /site-packages|dist-packages|lib\/python3|<frozen|taskharbor\/worker\//;

/** [text, class] of every line. */
function marked(text) {
  const lines = text.trimEnd().split("\n");
  let isMine = false;
  return lines.map((line, index) => {
    const frame = FRAME.exec(line);
    if (frame) isMine = !FOREIGN.test(frame[1]);
    else if (!/^\s/.test(line)) return [line, index === lines.length - 1 || /^[A-Za-z_][\w.]*(: |$)/.test(line) && !line.startsWith("Traceback") ? "em" : ""];
    return [line, isMine ? "mine" : ""];
  });
}

export const Traceback = ({ text, label = "Error" }) => html`<pre class="trace" tabindex="0" role="region" aria-label=${label}>${marked(text ?? "").map(([line, kind], index) =>
  html`${index > 0 && "\n"}${kind === "em" ? html`<em>${line}</em>` : kind === "mine" ? html`<span class="mine">${line}</span>` : line}`)}</pre>`;

/** Ctrl K: every action of the page, every page, every queue. And the list of keys. */

import { may, pauseQueue, resumeQueue } from "../deeds.js";
import { KEY_LIST } from "../keys.js";
import { live, useBoard } from "../live.js";
import { nextDensity, nextTheme } from "../prefs.js";
import { go, href } from "../route.js";
import { Dialog } from "./dialog.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { Icon } from "./icons.js";
import { PLACES } from "./shell.js";
import { Shape } from "./state.js";

const commands = []; // of the pages that are there

/** While the component is there: `useCommands([["Retry this job", retry, "r"]])`; an entry may be false. */
export function useCommands(list) {
  const newest = useRef(list);
  newest.current = list;
  useEffect(() => {
    commands.push(newest);
    return () => { commands.splice(commands.indexOf(newest), 1); };
  }, []);
}

/** [label, action, key, icon]. */
function everything(session, onKeys) {
  const queues = live.board?.queues ?? [];
  const mayConfigure = may(session, "configure");
  return [
    ...commands.flatMap((list) => list.current.filter(Boolean)),
    ...PLACES.map(([place, word, key]) => [`Go to ${word.toLowerCase()}`, () => go(href(place)), `g ${key}`, place]),
    ...(mayConfigure ? queues.map((queue) => [`${queue.paused ? "Resume" : "Pause"} queue ${queue.name}`,
      () => (queue.paused ? resumeQueue : pauseQueue)(queue.name), "", "paused"]) : []),
    ...queues.map((queue) => [`Open queue ${queue.name}`, () => go(href("queues", [queue.name])), "", "queues"]),
    ...queues.map((queue) => [`Jobs of queue ${queue.name}`, () => go(href("jobs", [], { q: `queue:${queue.name}` })), "", "jobs"]),
    ["Failed jobs", () => go(href("jobs", [], { q: "state:failed" })), "", "jobs"],
    [live.isPaused ? "Resume live updates" : "Pause live updates", () => (live.isPaused ? live.resume() : live.pause()), "p", "overview"],
    ["Next theme", nextTheme, "t", "moon"], ["Compact or roomy rows", nextDensity, "", "jobs"], ["Keyboard shortcuts", onKeys, "?", "help"],
  ];
}

/** All words of the question must be in the label; labels that begin with it come first. */
function matching(all, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const found = all.filter(([label]) => words.every((word) => label.toLowerCase().includes(word)));
  return found.sort((a, b) => b[0].toLowerCase().startsWith(words[0] ?? "") - a[0].toLowerCase().startsWith(words[0] ?? "")).slice(0, 12);
}

export function Palette({ session, onClose, onKeys }) {
  const [text, type] = useState("");
  const [at, move] = useState(0);
  const field = useRef(null);
  useLayoutEffect(() => field.current.focus(), []);
  useBoard(); // queues may be paused, or appear, while it is open
  const searching = text.trim() ? [[`Search jobs for “${text.trim()}”`, () => go(href("jobs", [], { q: text.trim() })), "", "search"]] : [];
  const found = [...matching(everything(session, onKeys), text), ...searching];
  const chosen = Math.min(at, found.length - 1);
  const run = (entry) => { onClose(); setTimeout(entry[1], 0); }; // the dialog gives the focus back first
  const keyed = (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by) move((chosen + by + found.length) % found.length);
    else if (event.key === "Enter" && found[chosen]) run(found[chosen]);
    else return;
    event.preventDefault();
  };
  return html`<${Dialog} label="Commands" className="palette" onClose=${onClose}>
    <div class="row cmdin"><${Icon} name="search"/><input id="command" class="grow bareinput" ref=${field} role="combobox" aria-expanded="true" aria-controls="commands"
      aria-activedescendant=${found[chosen] ? `command-${chosen}` : undefined} aria-label="Command" placeholder="What do you want to do?" autocomplete="off"
      value=${text} onInput=${(event) => { type(event.target.value); move(0); }} onKeyDown=${keyed}/></div>
    <ul class="cmd" id="commands" role="listbox" aria-label="Commands">${found.map((entry, index) => html`
      <li key=${entry[0]} id=${`command-${index}`} role="option" aria-selected=${index === chosen} class=${index === chosen ? "at" : ""}
        onClick=${() => run(entry)} onPointerMove=${() => move(index)}>
        ${entry[3] === "paused" ? html`<${Shape} name="paused"/>` : html`<${Icon} name=${entry[3] || "right"} size=${14}/>`}
        <span class="cut">${entry[0]}</span>${entry[2] && html`<kbd>${entry[2]}</kbd>`}</li>`)}</ul><//>`;
}

export const KeysDialog = ({ onClose }) => html`<${Dialog} label="Keyboard shortcuts" className="keysbox" onClose=${onClose}>
  <div class="sub"><h2>Keys</h2><span class="end"></span>
    <button class="btn" type="button" onClick=${onClose}>Close</button></div>
  <ul class="keys">${KEY_LIST.map(([keys, what]) => html`<li key=${keys}><span>${keys.split(" ").map((key) => html`<kbd key=${key}>${key}</kbd>`)}</span>
    <span class="soft">${what}</span></li>`)}</ul><//>`;

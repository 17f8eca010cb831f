/** Ctrl K: every action of the page, every page, every queue. And the list of keys. */

import { may, turnQueue } from "../deeds.js";
import { KEY_LIST, PLACES } from "../keys.js";
import { live, useBoard } from "../live.js";
import { nextDensity, nextTheme } from "../prefs.js";
import { go, href } from "../route.js";
import { Button, typed } from "./controls.js";
import { Dialog } from "./dialog.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { Icon } from "./icons.js";
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
function everything(onKeys) {
  const queues = live.board?.queues ?? [];
  const ofQueues = (command) => queues.map((queue) => command(queue, queue.name));
  return [
    ...commands.flatMap((list) => list.current.filter(Boolean)),
    ...PLACES.map(([place, word, key]) => [`Go to ${word.toLowerCase()}`, () => go(href(place)), `g ${key}`, place]),
    ...(may("configure") ? ofQueues((queue, name) => [`${queue.paused ? "Resume" : "Pause"} queue ${name}`, () => turnQueue(queue), "", !queue.paused && "paused"]) : []),
    ...ofQueues((queue, name) => [`Open queue ${name}`, () => go(href("queues", [name])), "", "queues"]),
    ...ofQueues((queue, name) => [`Jobs of queue ${name}`, () => go(href("jobs", [], { q: `queue:${name}` })), "", "jobs"]),
    ["Failed jobs", () => go("#/jobs?q=state:failed"), "", "jobs"],
    [`${live.isPaused ? "Resume" : "Pause"} live updates`, () => live.turn(), "p", "overview"],
    ["Next theme", nextTheme, "t", "moon"], ["Compact or roomy rows", nextDensity, "", "jobs"], ["Keyboard shortcuts", onKeys, "?", "help"],
  ];
}

/** All words of the question must be in the label; labels that begin with it come first. */
function matching(all, text) {
  const parts = text.toLowerCase().split(/\s+/).filter(Boolean), lower = ([label]) => label.toLowerCase(), isFirst = (entry) => lower(entry).startsWith(parts[0] ?? "");
  return all.filter((entry) => parts.every((part) => lower(entry).includes(part))).sort((a, b) => isFirst(b) - isFirst(a)).slice(0, 12);
}

/** One of a list, chosen by arrows while the focus stays in a field: what the field needs, and what each option needs. */
export function useChoice(name, count, first, choose) {
  const [at, move] = useState(first), chosen = Math.min(at, count - 1);
  return {
    at: chosen, move,
    /** Whether the key was for the list. */
    keyed(event) {
      const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (by && count) move((chosen + by + count) % count);
      else if (event.key === "Enter" && chosen >= 0) choose(chosen);
      else return false;
      event.preventDefault();
      return true;
    },
    field: { role: "combobox", "aria-controls": `${name}s`, "aria-activedescendant": chosen >= 0 ? `${name}-${chosen}` : undefined, autocomplete: "off" },
    list: { id: `${name}s`, role: "listbox" },
    option: (index) => ({ id: `${name}-${index}`, role: "option", "aria-selected": index === chosen, class: index === chosen ? "at" : "" }),
  };
}

export function Palette({ onClose, onKeys }) {
  const [text, type] = useState("");
  const field = useRef(null), q = text.trim();
  useLayoutEffect(() => field.current.focus(), []);
  useBoard(); // queues may be paused, or appear, while it is open
  const found = [...matching(everything(onKeys), text), ...(q ? [[`Search jobs for “${q}”`, () => go(href("jobs", [], { q })), "", "search"]] : [])];
  const run = (index) => { onClose(); setTimeout(found[index][1], 0); }; // the dialog returns the focus first
  const choice = useChoice("command", found.length, 0, run);
  return html`<${Dialog} label="Commands" look="palette" onClose=${onClose}>
    <div class="row cmdin"><${Icon} glyph="search"/><input id="command" class="grow bareinput" ref=${field} aria-expanded="true" aria-label="Command" placeholder="What do you want to do?"
      ...${choice.field} value=${text} onInput=${typed((next) => { type(next); choice.move(0); })} onKeyDown=${choice.keyed}/></div>
    <ul class="cmd" ...${choice.list} aria-label="Commands">${found.map(([label, , key, icon], index) => html`
      <li key=${label} ...${choice.option(index)} onClick=${() => run(index)} onPointerMove=${() => choice.move(index)}>
        ${icon === "paused" ? html`<${Shape} glyph="paused"/>` : html`<${Icon} glyph=${icon || "right"} size=${14}/>`}<span class="cut">${label}</span>${key && html`<kbd>${key}</kbd>`}</li>`)}</ul><//>`;
}

export const KeysDialog = ({ onClose }) => html`<${Dialog} label="Keyboard shortcuts" look="large" onClose=${onClose}>
  <div class="sub"><h2>Keys</h2><span class="end"></span><${Button} onClick=${onClose}>Close<//></div>
  <ul class="keys">${KEY_LIST.map(([keys, what]) => html`<li><span>${keys.split(" ").map((key) => html`<kbd>${key}</kbd>`)}</span><span class="soft">${what}</span></li>`)}</ul><//>`;

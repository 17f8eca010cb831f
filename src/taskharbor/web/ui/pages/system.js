/** System: the store, the settings of the whole harbor, tokens, and what people changed. */

import { may } from "../deeds.js";
import { NONE, ago, bytes, capital, instant, number, span } from "../format.js";
import { useBoard, useTick } from "../live.js";
import { useAsk } from "../parts/data.js";
import { html } from "../parts/html.js";
import { Loading, Trouble } from "../parts/notes.js";
import { href } from "../route.js";
import { Audit } from "./audit.js";
import { QueueSettings } from "./queue_settings.js";
import { Tokens } from "./tokens.js";

export const systemPage = { Page: System, title: (route) => TABS.find(([name]) => name === route.path[0])?.[1] ?? "System" };

const TABS = [["store", "Store"], ["settings", "Settings"], ["tokens", "Tokens"], ["audit", "Audit"]];

function System({ route, session }) {
  const tabs = TABS.filter(([name]) => may(session, { tokens: "tokens", audit: "configure" }[name] ?? "") || name === "store" || name === "settings");
  const at = tabs.some(([name]) => name === route.path[0]) ? route.path[0] : "store";
  return html`
    <div class="head"><div class="grow"><h1>System</h1><p class="lede">${systemLede(session.server ?? {})}</p></div></div>
    <nav class="tabrow" aria-label="System"><div class="tabs">${tabs.map(([name, word]) => html`<a key=${name} href=${href("system", name === "store" ? [] : [name])} aria-current=${name === at ? "page" : undefined}>${word}</a>`)}</div></nav>
    ${at === "store" ? html`<${Store} session=${session}/>` : at === "settings" ? html`<${Settings} route=${route} session=${session}/>`
      : at === "tokens" ? html`<${Tokens} session=${session}/>` : html`<${Audit} session=${session}/>`}`;
}

const systemLede = ({ driver, version, name }) => `${name || "This harbor"} runs TaskHarbor ${version ?? ""} on ${driver ?? "an unknown store"}.`;

function Store({ session }) {
  const { data, problem, ask } = useAsk("store", {}, { every: 10 });
  const board = useBoard();
  useTick(1);
  if (!data) return html`<section>${problem ? html`<${Trouble} problem=${problem} what="The store does not answer" onAgain=${ask}/>` : html`<${Loading}/>`}</section>`;
  const rows = [["Driver", data.driver], ["Store", data.store], ["Where", html`<span class="mono">${data.location}</span>`], ["Durability", data.durability], ["Schema", data.schema],
    ["Its clock", instant(data.at)], data.answers_in_s != null && ["Answers in", span(data.answers_in_s)],
    ...Object.entries(data.details ?? {}).map(detail), data.capabilities && ["It can", able(data.capabilities)]].filter(Boolean);
  const server = [["Version", session.server?.version ?? NONE], ["You are", `${session.note || session.name}, ${session.role ?? "no role"}`], ["Queues you may use", session.queues ? session.queues.join(", ") : "all"],
    session.expires_at && ["Session ends", html`<span title=${instant(session.expires_at)}>${ago(session.expires_at)}</span>`],
    board && ["Last look", `${span(board.age_s)} old, took ${span(board.look_s)}`], board && ["Jobs kept", number(Object.values(board.counts).reduce((sum, count) => sum + count, 0))]].filter(Boolean);
  return html`<section>${problem && html`<div class="gapb"><${Trouble} problem=${problem} what="The store does not answer now; this is what it answered before" onAgain=${ask}/></div>`}
    <div class="two even"><${Facts} title="Store" rows=${rows}/><${Facts} title="Server" rows=${server}/></div></section>`;
}

/** A driver's own detail: `file_bytes: 528384` is "File: 516 KiB". */
const detail = ([name, value]) => [capital(name.replace(/_bytes$/, "").replaceAll("_", " ")), name.endsWith("_bytes") ? bytes(Number(value)) : value];

/** What a store can do, in its own words: transactional enqueue, logbook, … */
const able = (capabilities) => Object.entries(capabilities).filter(([, value]) => value === true).map(([name]) => name.replaceAll("_", " ")).sort().join(", ");

const Facts = ({ title: heading, rows }) => html`<div><div class="cap"><h2>${heading}</h2></div><dl class="card pad facts">${rows.map(([name, value]) => html`<dt key=${`t${name}`}>${name}</dt><dd key=${`d${name}`}>${value === "" || value == null ? NONE : value}</dd>`)}</dl></div>`;

function Settings({ route, session }) {
  const { data, problem, ask } = useAsk("queues/*", {}, { every: 15 });
  return html`<section><div class="cap"><h2>All queues together</h2><span class="dim">in addition to what each queue sets itself</span></div>
    ${problem && html`<${Trouble} problem=${problem} onAgain=${ask}/>`}
    ${data ? html`<${QueueSettings} queue="*" rules=${data} mayChange=${may(session, "configure")} edit=${route.query.edit} onEdit=${(field) => route.set({ edit: field })} changed=${ask}/>` : !problem && html`<${Loading}/>`}</section>`;
}

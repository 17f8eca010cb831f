/** System: the store, the settings of the whole harbor, tokens, and what people changed. */

import { may } from "../deeds.js";
import { bytes, capital, instant, number, span } from "../format.js";
import { useBoard, useTick } from "../live.js";
import { useAsk } from "../parts/data.js";
import { html } from "../parts/html.js";
import { Ago, Asked, Cap, Facts, Head, Section } from "../parts/page.js";
import { href } from "../route.js";
import { Audit } from "./audit.js";
import { QueueSettings } from "./queue_settings.js";
import { Tokens } from "./tokens.js";

export const systemPage = { Page: System, title: (route) => (TABS[route.path[0]] ?? ["System"])[0] };

/** By address: what the tab says, what it draws, what one must be allowed to see it. */
const TABS = { store: ["Store", Store], settings: ["Settings", Settings], tokens: ["Tokens", Tokens, "tokens"], audit: ["Audit", Audit, "configure"] };

function System({ route, session }) {
  const tabs = Object.entries(TABS).filter(([, [, , right]]) => !right || may(right));
  const [at, [, Tab]] = tabs.find(([name]) => name === route.path[0]) ?? tabs[0];
  const { name, version, driver } = session.server ?? {};
  return html`<${Head} heading="System" lede=${`${name || "This harbor"} runs TaskHarbor ${version ?? ""} on ${driver ?? "an unknown store"}.`}/>
    <nav class="tabrow" aria-label="System"><div class="tabs">${tabs.map(([tab, [word]]) => html`<a href=${href("system", tab === "store" ? [] : [tab])} aria-current=${tab === at ? "page" : undefined}>${word}</a>`)}</div></nav>
    <${Tab} route=${route} session=${session}/>`;
}

function Store({ session }) {
  const asked = useAsk("store", {}, { every: 10 });
  const board = useBoard();
  useTick(1);
  return html`<section><${Asked} of=${asked} what=${`The store does not answer${asked.answer ? " now; this is what it answered before" : ""}`}>${(data) => html`<div class="two even">
    <div><${Cap} heading="Store"/><${Facts} rows=${[["Driver", data.driver], ["Store", data.store], ["Where", html`<span class="mono">${data.location}</span>`], ["Durability", data.durability], ["Schema", data.schema],
      ["Its clock", instant(data.at)], data.answers_in_s != null && ["Answers in", span(data.answers_in_s)], ...Object.entries(data.details ?? {}).map(detail), data.capabilities && ["It can", able(data.capabilities)]]}/></div>
    <div><${Cap} heading="Server"/><${Facts} rows=${[["Version", session.server?.version], ["You are", `${session.note || session.name}, ${session.role ?? "no role"}`], ["Queues you may use", session.queues?.join(", ") ?? "all"],
      session.expires_at && ["Session ends", html`<${Ago} at=${session.expires_at}/>`],
      board && ["Last look", `${span(board.age_s)} old, took ${span(board.look_s)}`], board && ["Jobs kept", number(Object.values(board.counts).reduce((sum, count) => sum + count, 0))]]}/></div></div>`}<//></section>`;
}

/** A driver's own detail: `file_bytes: 528384` is "File: 516 KiB". */
const detail = ([name, value]) => [capital(name.replace(/_bytes$/, "").replaceAll("_", " ")), name.endsWith("_bytes") ? bytes(Number(value)) : value];

/** What a store can do, in its own words: transactional enqueue, logbook, … */
const able = (capabilities) => Object.keys(capabilities).filter((name) => capabilities[name] === true).map((name) => name.replaceAll("_", " ")).sort().join(", ");

function Settings({ route, session }) {
  const asked = useAsk("queues/*", {}, { every: 15 });
  return html`<${Section} heading="All queues together" note="in addition to what each queue sets itself">
    <${Asked} of=${asked}>${(rules) => html`<${QueueSettings} queue="*" rules=${rules} mayChange=${may("configure")} route=${route} changed=${asked.ask}/>`}<//><//>`;
}

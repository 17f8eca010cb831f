/** The frame of every page: rail, top, phone bar, banner of a lost stream. */

import { ago, clock, number, setZone, span, time } from "../format.js";
import { PLACES } from "../keys.js";
import { live, useBoard, useLive, useTick } from "../live.js";
import { nextDensity, nextTheme, THEME_WORDS, usePref } from "../prefs.js";
import { href } from "../route.js";
import { IconButton, Menu, Segments } from "./controls.js";
import { html } from "./html.js";
import { Icon, Logo } from "./icons.js";
import { Banner } from "./notes.js";

export const WINDOWS = [["15m", "15 m", 900], ["1h", "1 h", 3600], ["6h", "6 h", 21600], ["24h", "24 h", 86400], ["7d", "7 d", Infinity]];

/** The window of a page whose address names none: `hasWindow` is true, or that window. */
export const usualWindow = (hasWindow) => (hasWindow === true ? "1h" : hasWindow);

/** How many things on a page wait for somebody. */
const tallies = (board) => board && { failures: board.needs.filter((need) => need.kind === "cause").length || null, queues: board.queues.length, workers: board.workers };

const current = (isCurrent) => (isCurrent ? "page" : undefined);

export function Rail({ route, session, onLogout }) {
  const tally = tallies(useBoard());
  const { name, driver } = session.server ?? {};
  const who = session.note || { loopback: "local", host: session.name }[session.way] || session.name || "";
  return html`<nav class="rail" aria-label="Main">
    <a class="brand" href="#/"><${Logo}/>TaskHarbor</a>
    <a class="env" href="#/system"><b>${name || "harbor"}</b><span class="cut">${driver}</span></a>
    <ul>${PLACES.map(([place, word]) => html`<li><a class="item" href=${href(place)} aria-current=${current(route.name === place)}>
      <${Icon} glyph=${place}/>${word}${tally?.[place] != null && html`<span class=${`tally${place === "failures" ? " bad" : ""}`}>${number(tally[place])}</span>`}</a></li>`)}</ul>
    <div class="foot"><span class="avatar" aria-hidden="true">${who.slice(0, 2).toUpperCase()}</span>
      <span class="cut grow"><span class="soft">${who}</span> · ${session.role ?? "no role"}</span>
      <${Preferences} session=${session} onLogout=${onLogout}/></div></nav>`;
}

function Preferences({ session, onLogout }) {
  const [density] = usePref("density");
  const [keys, setKeys] = usePref("keys");
  const [zone, chooseZone] = usePref("zone");
  const items = [
    [density === "compact" ? "Roomy rows" : "Compact rows", nextDensity],
    [zone === "utc" ? "Times of this browser" : "Times in UTC", () => { const next = zone === "utc" ? "" : "utc"; setZone(next); chooseZone(next); }],
    [keys ? "Turn single keys off" : "Turn single keys on", () => setKeys(!keys)],
    session.way === "token" && ["Sign out", onLogout],
  ];
  return html`<${Menu} label="Preferences" icon="more" look="bare" items=${items}/>`;
}

export function Tabbar({ route }) {
  const tally = tallies(useBoard());
  const places = [...PLACES.filter(([place]) => ["overview", "jobs", "failures", "workers"].includes(place)), ["more", "More"]];
  return html`<nav class="tabbar" aria-label="Main, phone">${places.map(([place, word]) => html`
    <a href=${href(place)} aria-current=${current(place === "more" ? !places.some(([other]) => other === route.name && other !== place) : place === route.name)}>
      <${Icon} glyph=${place} size=${20} width=${1.3}/>${word}${place === "failures" && tally?.failures && html`<em>${tally.failures}</em>`}</a>`)}</nav>`;
}

export function Top({ route, hasWindow, note, onSearch, onKeys }) {
  const [theme] = usePref("theme");
  const items = WINDOWS.map(([value, word]) => [value, word, href(route.name, route.path, { ...route.query, window: value })]);
  return html`<header class="top">
    <a class="find" href="#/jobs" onClick=${(event) => { event.preventDefault(); onSearch(); }}><${Icon} glyph="search"/>
      <span class="cut">Search jobs, tasks, errors</span><kbd class="wide">/</kbd></a>
    <span class="grow wide"></span><${LiveMark} note=${note}/>
    ${hasWindow && html`<${Segments} label="Time window" wide=${true} items=${items} value=${route.query.window ?? usualWindow(hasWindow)}/>`}
    <${IconButton} icon="moon" wide=${true} label=${`Theme: ${THEME_WORDS[theme]}`} onClick=${nextTheme}/>
    <${IconButton} icon="help" wide=${true} label="Keyboard shortcuts" onClick=${onKeys}/></header>`;
}

function LiveMark({ note }) {
  useLive("status");
  const age = useBoard()?.age_s, isLive = live.status === "live", words = isLive && age > 3 ? `${span(age)} old` : note;
  return html`<span class=${`live${isLive && !live.trouble ? "" : " stale"}`}><i></i>${{ live: "Live", connecting: "Connecting", lost: "Not live", paused: "Paused" }[live.status]}
    ${words && html`<span class="dim wide">${words}</span>`}</span>`;
}

/** The stream or the store is away: since when, how old the numbers are, when it is tried again. */
export function AwayBanner() {
  useLive("status");
  useTick(1);
  useBoard();
  const { board, status, trouble, lostAt, retryAt } = live, isLost = status === "lost";
  if (!trouble && status !== "paused" && !board?.is_away) return null;
  const from = board ? ` These numbers are from ${time(board.at)}.` : "";
  if (status === "paused") return html`<div class="gapb"><${Banner} plain end=${html`<kbd>p</kbd>`}>Live updates are paused.${from}<//></div>`;
  const since = lostAt ? ago(lostAt) : "";
  return html`<div class="gapb"><${Banner} end=${isLost && retryAt && `again in ${Math.max(Math.ceil((retryAt - clock.now()) / 1000), 0)} s`}>
    ${isLost ? `The live stream was lost ${since}.` : `The store does not answer; the last answer came ${since}.`}${from}<//></div>`;
}

/** One quiet line for a role that may only look. */
export const ReadOnly = ({ session }) => (session.read_only || !session.may?.length) && html`<div class="gapb"><${Banner} plain>
  You may look, not change: ${session.read_only ? "this server's pages are read-only" : `your token has the role ${session.role}`}. Secrets in arguments are hidden.<//></div>`;

/** The dashboard: routes, session, frame.
 *
 * A page is `pages/<name>.js`:
 *
 *     export const failuresPage = { Page: Failures, title: (route) => "Failures", hasWindow: true };   // named in pages/index.js
 *
 *     Page       function Failures({ route, api, session }) { return html`<${Head} heading="Failures"/>…`; }
 *     title      of the browser tab
 *     hasWindow  optional: the time window (route.query.window, "1h") is in the top; "24h" begins with that
 *
 *     route     { name, path: ["…"], query: { q: "…" }, set({ q: "…" }) }; addresses by href(name, path, query) of route.js
 *     api       api.get(["queues", "mail"], { limit: 50 }), post, patch, delete; throws Problem
 *     session   the body of GET /api/session; may("retry") of deeds.js says what is drawn
 *
 * It renders the inside of <main>. What it shows comes by useAsk(path, query, { every, on }) of parts/data.js, and live: useBoard(),
 * useEvents(kind, fn), useTick(s) of live.js. It is made of Head, Section, Asked, Table, List and Facts (parts/page.js); Button, Segments, Menu,
 * Tick, Switch, Input (controls.js); State, Icon, Spark, Bar, Columns, FlowPlot; Empty, Loading, Trouble, Banner (notes.js); Dialog, Form, Confirm
 * (dialog.js). Deeds are in deeds.js: change, hold, preview, retryOne, turnQueue; say and trying (toast.js) speak of others. Keys: useKeys
 * (keys.js). Commands of the page for Ctrl K: useCommands([[label, action]]) of parts/palette.js.
 *
 * Everything that comes from a job, a worker or an error is text; what would make markup or code of it is forbidden, and a test looks.
 * pages/login.js is drawn without the frame and gets { api, onLogin } instead.
 *
 * The server joins these modules into app.js and pages/index.js (web/page_bundles.py). So a name at the top of a module is unique in all of
 * them and no name of the browser's, and imports do not rename. The order of the imports is the one that compresses best.
 */

import { setZone } from "./format.js";
import { prefs, nextTheme } from "./prefs.js";
import { api, onLogout } from "./api.js";
import { setPerson } from "./deeds.js";
import { giveKeys, holdKeys, PLACES, startKeys, useKeys } from "./keys.js";
import { live } from "./live.js";
import { html, render, useAgain, useEffect, useRef, useState } from "./parts/html.js";
import { Loading, Trouble } from "./parts/notes.js";
import { KeysDialog, Palette } from "./parts/palette.js";
import { Toasts } from "./parts/toast.js";
import { AwayBanner, Rail, ReadOnly, Tabbar, Top, WINDOWS, usualWindow } from "./parts/shell.js";
import { overviewPage } from "./pages/overview.js";
import { go, href, useRoute } from "./route.js";

const loaded = { overview: { module: overviewPage } };

/** `#/jobs/<id>` is the page of one job. */
const pageOf = (route) => (route.name === "jobs" && route.path.length ? "job" : route.name);
/** A page stays while only its query changes; each path is a page of its own, read from its beginning. */
const placeOf = (route) => [pageOf(route), ...route.path].join("/");

/** The module of a page: { module } or { problem }; undefined while it is on its way. */
function usePage(name) {
  const again = useAgain();
  useEffect(() => {
    if (name === null || loaded[name]?.module) return;
    delete loaded[name];
    import("./pages/index.js").then(({ pages }) => { loaded[name] = Object.hasOwn(pages, name) ? { module: pages[name] } : { problem: { message: `There is no page ${name}.` } }; },
      (problem) => { loaded[name] = { problem }; }).then(again);
  }, [name]);
  return loaded[name];
}

const starting = html`<main id="main" class="starting">TaskHarbor</main>`; // the same as in index.html, which is painted first

function App() {
  const [session, become] = useState(undefined); // undefined: asked; null: nobody; else the body
  const [problem, fail] = useState(null);
  const leave = () => { live.stop(); become(null); };
  const ask = () => api.get("session").then((found) => { setPerson(found); become(found); fail(null); live.start(); }, (error) => (error.status === 401 ? leave() : fail(error)));
  useEffect(() => { onLogout(leave); ask(); }, []);
  const login = usePage(session === null ? "login" : null);
  if (session) return html`<${Frame} session=${session} onLogout=${() => api.delete("session").finally(leave)}/>`;
  if (session === null) return login?.module ? html`<${login.module.Page} api=${api} onLogin=${ask}/>` : starting;
  return problem ? html`<main id="main"><${Trouble} problem=${problem} what="The dashboard could not start" onAgain=${ask}/></main>` : starting;
}

const main = () => document.querySelector("#main");

function Frame({ session, onLogout: leave }) {
  const route = useRoute();
  const name = pageOf(route), page = usePage(name), { Page, title, hasWindow, note } = page?.module ?? {};
  const [open, show] = useState(null); // "palette" | "keys"
  const place = useRef(placeOf(route)), isSearching = useRef(false); // the search was asked for, and its field is on its way
  setZone(route.query.zone ?? prefs.get("zone"));
  const toSearch = () => {
    const field = isSearching.current && document.querySelector("#q");
    if (field) { isSearching.current = false; giveKeys(field); }
  };
  const search = () => {
    isSearching.current = true;
    holdKeys();
    if (name !== "jobs") go("#/jobs");
    toSearch(); // at once where it is: the next key is part of the search
  };
  const step = (by) => () => {
    const names = WINDOWS.map(([value]) => value), next = hasWindow && names[names.indexOf(route.query.window ?? usualWindow(hasWindow)) + by];
    if (next) route.set({ window: next });
  };
  const close = () => show(null), keys = () => show("keys");
  useKeys({
    "/": search, "?": keys, "Ctrl K": () => show(open === "palette" ? null : "palette"), t: nextTheme, p: live.turn, "[": step(-1), "]": step(1),
    ...Object.fromEntries(PLACES.map(([target, , key]) => [`g ${key}`, () => go(href(target))])),
  });
  useEffect(() => {
    const now = placeOf(route);
    if (Page) document.title = `${title?.(route) ?? name} · ${session.server?.name || "harbor"} · TaskHarbor`;
    if (place.current === now) return;
    place.current = now;
    scrollTo(0, 0);
    main()?.focus({ preventScroll: true }); // the new page is read from its beginning
  });
  useEffect(toSearch);
  const shown = ["job", "workflows"].includes(name) ? { ...route, name: "jobs" } : route; // pages that belong to Jobs in the rail
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main().focus(); }}>Skip to content</a>
    <${Rail} route=${shown} session=${session} onLogout=${leave}/>
    <div class="page"><${Top} route=${route} hasWindow=${hasWindow} note=${note} onSearch=${search} onKeys=${keys}/>
      <main id="main" tabindex="-1"><${AwayBanner}/><${ReadOnly} session=${session}/>
        ${Page ? html`<${Page} key=${placeOf(route)} route=${route} api=${api} session=${session}/>` : page ? html`<${Trouble} problem=${page.problem} what="This page is not here"/>` : html`<${Loading}/>`}</main></div>
    <${Tabbar} route=${shown}/><${Toasts}/>
    ${open === "palette" && html`<${Palette} onClose=${close} onKeys=${keys}/>`}
    ${open === "keys" && html`<${KeysDialog} onClose=${close}/>`}`;
}

startKeys();
render(html`<${App}/>`, document.body);

/** The dashboard: routes, session, frame.
 *
 * A page is `pages/<name>.js`:
 *
 *     export const failuresPage = { Page: Failures, title: (route) => "Failures", hasWindow: true };   // named in pages/index.js
 *
 *     Page       function Failures({ route, api, live, session }) { return html`<div class="head">…`; }
 *     title      of the browser tab
 *     hasWindow  optional: the time window (route.query.window, "1h") is in the top; "24h" begins with that
 *
 *     route     { name, path: ["…"], query: { q: "…" }, set({ q: "…" }) }; addresses by href(name, path, query) of route.js
 *     api       api.get("queues/mail", { limit: 50 }), post, put, patch, delete; throws Problem
 *     live      live.board, live.on(kind, fn), live.follow(ids); hooks useBoard(), useEvents(kind, fn), useTick(s) of live.js
 *     session   the body of GET /api/session; may(session, "retry") of deeds.js says what is drawn
 *
 * It renders the inside of <main>, beginning with `<div class="head"><div class="grow"><h1>`. Data come by useAsk(path, query,
 * { every, on }) of parts/data.js. Parts: html, Icon, State, Button, IconButton, Segments, Menu, Tick, Switch, Field, CopyButton,
 * say/sayProblem (toasts), change/hold/preview/retryOne/pauseQueue (deeds.js), Dialog, Confirm, Spark, Bar, Columns, Plot, Empty, Loading, Trouble,
 * Banner, useKeys (keys.js). Commands of the page for Ctrl K: useCommands([[label, action]]) of parts/palette.js.
 *
 * Everything that comes from a job, a worker or an error is text; what would make markup or code of it is forbidden, and a test looks.
 * pages/login.js is drawn without the frame and gets { api, onLogin } instead.
 *
 * The server joins these modules into app.js and pages/index.js (web/page_bundles.py). So a name at the top of a module is
 * unique in all of them and no name of the browser's, and imports do not rename.
 */

import { api, onLogout } from "./api.js";
import { setZone } from "./format.js";
import { holdKeys, startKeys, useKeys } from "./keys.js";
import { live } from "./live.js";
import { overviewPage } from "./pages/overview.js";
import { html, render, useEffect, useRef, useState } from "./parts/html.js";
import { Loading, Trouble } from "./parts/notes.js";
import { KeysDialog, Palette } from "./parts/palette.js";
import { AwayBanner, PLACES, Rail, ReadOnly, Tabbar, Top, WINDOWS, usualWindow } from "./parts/shell.js";
import { Toasts } from "./parts/toast.js";
import { nextTheme, prefs } from "./prefs.js";
import { go, href, useRoute } from "./route.js";

const loaded = { overview: { module: overviewPage } };

/** Pages that belong to Jobs in the rail. */
const ofJobs = (name) => ["job", "workflows"].includes(name);
/** `#/jobs/<id>` is the page of one job. */
const pageOf = (route) => (route.name === "jobs" && route.path.length ? "job" : route.name);
/** A page stays while only its query changes; each path is a page of its own, read from its beginning. */
const placeOf = (route) => [pageOf(route), ...route.path].join("/");

/** The module of a page: { module } or { problem }; null while it is on its way. */
function usePage(name) {
  const [, again] = useState(0);
  useEffect(() => {
    if (name === null || loaded[name]?.module) return;
    delete loaded[name];
    import("./pages/index.js").then(({ pages }) => { loaded[name] = Object.hasOwn(pages, name) ? { module: pages[name] } : { problem: { message: `There is no page ${name}.` } }; },
      (error) => { loaded[name] = { problem: { message: error.message } }; })
      .then(() => again((count) => count + 1));
  }, [name]);
  return loaded[name] ?? null;
}

function App() {
  const [session, become] = useState(undefined); // undefined: asked; null: nobody; else the body
  const [problem, fail] = useState(null);
  const ask = () => api.get("session").then((found) => { become(found); fail(null); live.start(); },
    (error) => { if (error.status === 401) { live.stop(); become(null); } else fail(error); });
  useEffect(() => { onLogout(() => { live.stop(); become(null); }); ask(); }, []);
  const login = usePage(session === null ? "login" : null);
  if (session === null) return html`${login?.module ? html`<${login.module.Page} api=${api} onLogin=${ask}/>` : html`<main id="main" class="starting">TaskHarbor</main>`}`;
  if (session === undefined) {
    if (!problem) return html`<main id="main" class="starting">TaskHarbor</main>`; // the same as in index.html, which is painted first
    return html`<main id="main"><${Trouble} problem=${problem} what="The dashboard could not start" onAgain=${ask}/></main>`;
  }
  return html`<${Frame} session=${session} onLogout=${() => api.delete("session").finally(() => { live.stop(); become(null); })}/>`;
}

function Frame({ session, onLogout: leave }) {
  const route = useRoute();
  const name = pageOf(route);
  const page = usePage(name);
  const [open, show] = useState(null); // "palette" | "keys"
  const place = useRef(placeOf(route));
  setZone(route.query.zone ?? prefs.get("zone"));
  const isSearching = useRef(false); // the search was asked for on another page
  const search = () => {
    if (name === "jobs") document.querySelector("#q")?.focus(); // at once: the next key is part of the search
    else { isSearching.current = true; holdKeys(2000); go("#/jobs"); }
  };
  useKeys({
    "/": search, "?": () => show("keys"), "Ctrl K": () => show(open === "palette" ? null : "palette"), t: nextTheme,
    p: () => (live.isPaused ? live.resume() : live.pause()),
    "[": () => page?.module?.hasWindow && step(route, page.module.hasWindow, -1), "]": () => page?.module?.hasWindow && step(route, page.module.hasWindow, 1),
    ...Object.fromEntries(PLACES.map(([target, , key]) => [`g ${key}`, () => go(href(target))])),
  });
  useEffect(() => {
    const now = placeOf(route);
    if (page?.module) document.title = `${page.module.title?.(route) ?? name} · ${session.server?.name || "harbor"} · TaskHarbor`;
    if (place.current === now) return;
    place.current = now;
    scrollTo(0, 0);
    document.querySelector("#main")?.focus({ preventScroll: true }); // the new page is read from its beginning
  });
  useEffect(() => {
    const field = isSearching.current && document.querySelector("#q");
    if (field) { isSearching.current = false; holdKeys(0); field.focus(); }
  });
  return html`<a class="skip" href="#main" onClick=${toMain}>Skip to content</a>
    <${Rail} route=${ofJobs(name) ? { ...route, name: "jobs" } : route} session=${session} onLogout=${leave}/>
    <div class="page"><${Top} route=${route} hasWindow=${page?.module?.hasWindow} note=${page?.module?.note} onSearch=${search} onKeys=${() => show("keys")}/>
      <main id="main" tabindex="-1"><${AwayBanner}/><${ReadOnly} session=${session}/>
        ${page === null ? html`<${Loading}/>` : page.problem ? html`<${Trouble} problem=${page.problem} what="This page is not here"/>`
          : html`<${page.module.Page} key=${placeOf(route)} route=${route} api=${api} live=${live} session=${session}/>`}</main></div>
    <${Tabbar} route=${{ ...route, name: ofJobs(name) ? "jobs" : name }}/><${Toasts}/>
    ${open === "palette" && html`<${Palette} session=${session} onClose=${() => show(null)} onKeys=${() => show("keys")}/>`}
    ${open === "keys" && html`<${KeysDialog} onClose=${() => show(null)}/>`}`;
}

function step(route, hasWindow, by) {
  const names = WINDOWS.map(([value]) => value);
  const next = names[names.indexOf(route.query.window ?? usualWindow(hasWindow)) + by];
  if (next) route.set({ window: next });
}

function toMain(event) {
  event.preventDefault();
  document.querySelector("#main").focus();
}

startKeys();
render(html`<${App}/>`, document.body);

/** What changes, about once a second: one stream per tab, and the last board that it gave.
 *
 *     live.board            the last /api/board, or null
 *     live.status           "live" | "connecting" | "lost" | "paused"
 *     live.on(kind, fn)     fn(data) for "board", "workers", "failures", "bulk", "job", "job_gone", "status"; gives a function that ends it
 *     live.follow(ids)      which jobs (at most 100) the stream sends as "job"
 *     live.turn()           pause, or go on
 *
 * A hidden tab closes its stream and begins with a snapshot when it is seen again. A stream that was lost is opened again after
 * 2, 4, 8, … 30 s; the pages keep what they have and say how old it is.
 */

import { api } from "./api.js";
import { clock } from "./format.js";
import { useAgain, useLayoutEffect, useRef, useSet } from "./parts/html.js";

const ALWAYS = ["board", "bulk"];
const ON_DEMAND = ["workers", "failures"];
const EVENTS = ["snapshot", "resumed", "board", "workers", "failures", "bulk", "job", "job_gone", "notice", "overflow"];
const LONGEST_PAUSE = 30;
const OPENS_WITHIN = 10; // seconds until the first event: a connection that hangs reports no error by itself

const liveListeners = {}; // by kind
let source = null, stream = null, topics = "", followed = [], sent = "", failed = 0, isStarted = false;
let againTimer, openTimer;

export const live = {
  board: null,
  status: "connecting",
  trouble: null, // why the stream or the store is away, as text
  lostAt: null, // since when, by the server's clock
  retryAt: null,
  start() {
    if (isStarted) return;
    isStarted = true;
    document.addEventListener("visibilitychange", connect);
    addEventListener("online", () => { failed = 0; connect(); });
    addEventListener("pagehide", disconnect);
    connect();
  },
  stop() { isStarted = false; disconnect(); clearTimeout(againTimer); },
  on(kind, listener) {
    const listeners = liveListeners[kind] ??= new Set();
    listeners.add(listener);
    topicsMayHaveChanged();
    return () => { listeners.delete(listener); topicsMayHaveChanged(); };
  },
  follow(ids) {
    followed = ids.slice(0, 100);
    sendIds();
  },
  /** Pause, or go on. */
  turn() {
    if (live.isPaused) { live.status = "connecting"; connect(); } else { disconnect(); become("paused"); }
  },
  get isPaused() { return live.status === "paused"; },
  /** Ask for the board now, after the person changed something: the next look may be seconds away. */
  refresh: () => api.get("board").then(takeWhole, () => {}), // the stream says what is wrong
};

const report = (kind, data) => liveListeners[kind]?.forEach((listener) => listener(data));

function become(status, trouble = null) {
  if (status === live.status && trouble === live.trouble) return;
  const lostAt = status === "lost" || trouble ? live.lostAt ?? live.board?.at ?? new Date(clock.now()).toISOString() : null;
  Object.assign(live, { status, trouble, lostAt });
  report("status", status);
}

/** Send the stream, once it is there, the ids of these jobs; what it answers about them comes as no event. */
function sendIds() {
  const now = stream, ids = followed.join();
  if (!now || sent === ids) return;
  sent = ids;
  api.post(`events/${now}/follow`, { jobs: followed }).then(reportJobs, () => { if (now === stream) reconnect(); });
}

function reportJobs({ jobs }) { jobs?.forEach((job) => report("job", job)); }

const wantedTopics = () => [...ALWAYS, ...ON_DEMAND.filter((kind) => liveListeners[kind]?.size)].join();

function topicsMayHaveChanged() {
  if (!isStarted || !source) return;
  clearTimeout(againTimer);
  againTimer = setTimeout(() => { if (wantedTopics() !== topics) reconnect(); }, 50);
}

function disconnect() {
  clearTimeout(openTimer);
  source?.close();
  source = stream = null;
}

function reconnect() { disconnect(); connect(); }

function connect() {
  clearTimeout(againTimer);
  if (!isStarted || live.isPaused) return;
  if (document.hidden) { disconnect(); return; }
  if (source) return;
  topics = wantedTopics();
  sent = followed.join();
  const mine = source = new EventSource(api.url("events", { topics, jobs: sent }));
  for (const kind of EVENTS) mine.addEventListener(kind, (event) => { if (mine === source) take(kind, JSON.parse(event.data)); });
  mine.onerror = () => { if (mine === source) lose(); };
  openTimer = setTimeout(mine.onerror, OPENS_WITHIN * 1000);
}

function lose() {
  disconnect();
  failed += 1;
  const pause = Math.min(2 ** failed, LONGEST_PAUSE) * 1000;
  live.retryAt = clock.now() + pause;
  become("lost", "The live stream was lost");
  clearTimeout(againTimer);
  againTimer = setTimeout(connect, pause);
  if (failed === 1) api.get("session").catch(() => {}); // a 401 leads to the login
}

function take(kind, data) {
  failed = 0;
  clearTimeout(openTimer);
  if (kind === "notice") { become("live", data.text); return; }
  if (kind === "overflow") { reconnect(); return; }
  if (data?.stream) { stream = data.stream; sendIds(); }
  if (data?.at) clock.set(data.at);
  if (kind === "snapshot") takeSnapshot(data);
  else if (kind === "board") takeBoard(live.board ? merged(live.board, data) : data);
  else report(kind, data);
  become("live");
}

function takeSnapshot(data) {
  if (data.board) takeWhole(data.board); else live.refresh();
  reportJobs(data);
  for (const kind of ON_DEMAND) report(kind, data[kind] ?? null);
}

function takeWhole(board) { clock.set(board.at); takeBoard(board); }

function takeBoard(board) {
  live.board = board;
  report("board", board);
}

/** The board with what a delta names; every record is replaced, none is changed. */
function merged(board, { queues = [], gone = [], ...rest }) {
  const rows = new Map([...board.queues, ...queues].map((queue) => [queue.name, queue])); // a changed one keeps its place
  gone.forEach((name) => rows.delete(name));
  return { ...board, ...rest, queues: [...rows.values()] };
}

/** The component renders again with every event of that kind. It listens before the browser paints: no event comes between. */
export function useLive(kind) {
  const again = useAgain();
  useLayoutEffect(() => live.on(kind, again), [kind]);
  return live;
}

export const useBoard = () => useLive("board").board;

/** `handler` is called with every event of that kind, always the newest handler. */
export function useEvents(kind, handler) {
  const newest = useRef(handler);
  newest.current = handler;
  useLayoutEffect(() => live.on(kind, (data) => newest.current(data)), [kind]);
}

const tickers = {}; // one timer for all components of a pace

/** The component renders again every `seconds`, for texts like "21 s ago". */
export function useTick(seconds) {
  useSet(tickers[seconds] ??= (() => {
    const listeners = new Set();
    setInterval(() => { if (!document.hidden) listeners.forEach((listener) => listener()); }, seconds * 1000);
    return listeners;
  })());
}

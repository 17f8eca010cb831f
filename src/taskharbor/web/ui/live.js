/** What changes, about once a second: one stream per tab, and the last board that it gave.
 *
 *     live.board            the last /api/board, or null
 *     live.status           "live" | "connecting" | "lost" | "paused"
 *     live.on(kind, fn)     fn(data) for "board", "workers", "failures", "bulk", "job", "job_gone", "status"; gives a function that ends it
 *     live.follow(ids)      which jobs (at most 100) the stream sends as "job"
 *     live.pause(), live.resume()
 *
 * A hidden tab closes its stream and begins with a snapshot when it is seen again. A stream that was lost is opened again after
 * 2, 4, 8, … 30 s; the pages keep what they have and say how old it is.
 */

import { api } from "./api.js";
import { clock } from "./format.js";
import { useEffect, useLayoutEffect, useReducer, useRef } from "./parts/html.js";

const ALWAYS = ["board", "bulk"];
const ON_DEMAND = ["workers", "failures"];
const EVENTS = ["snapshot", "resumed", "board", "queue", "queue_gone", "workers", "failures", "bulk", "job", "job_gone", "notice", "overflow"];
const LONGEST_PAUSE = 30;
const OPENS_WITHIN = 10; // seconds until the first event: a connection that hangs reports no error by itself

class Live {
  board = null;
  status = "connecting";
  trouble = null;      // why the stream or the store is away, as text
  lostAt = null;       // since when, by the server's clock
  retryAt = null;
  #listeners = new Map();
  #source = null;
  #stream = null;
  #topics = "";
  #jobs = [];
  #failures = 0;
  #timer = null;
  #opening = null;
  #isStarted = false;

  start() {
    if (this.#isStarted) return;
    this.#isStarted = true;
    document.addEventListener("visibilitychange", () => this.#connect());
    addEventListener("online", () => { this.#failures = 0; this.#connect(); });
    addEventListener("pagehide", () => this.#close());
    this.#connect();
  }

  stop() { this.#isStarted = false; this.#close(); clearTimeout(this.#timer); }

  on(kind, listener) {
    if (!this.#listeners.has(kind)) this.#listeners.set(kind, new Set());
    this.#listeners.get(kind).add(listener);
    this.#topicsMayHaveChanged();
    return () => { this.#listeners.get(kind).delete(listener); this.#topicsMayHaveChanged(); };
  }

  follow(ids) {
    const jobs = ids.slice(0, 100);
    if (jobs.join() === this.#jobs.join()) return;
    this.#jobs = jobs;
    const stream = this.#stream;
    if (stream) api.post(`events/${stream}/follow`, { jobs }).catch(() => { if (stream === this.#stream) this.#reconnect(); });
  }

  pause() { this.#close(); this.#become("paused"); }
  resume() { this.status = "connecting"; this.#connect(); }
  get isPaused() { return this.status === "paused"; }

  /** Ask for the board now, after the person changed something: the next look may be seconds away. */
  async refresh() {
    try { this.#takeBoard(await api.get("board"), true); } catch { /* the stream says so */ }
  }

  #tell(kind, data) { this.#listeners.get(kind)?.forEach((listener) => listener(data)); }

  #become(status, trouble = null) {
    if (status === this.status && trouble === this.trouble) return;
    if (status === "lost" || trouble) this.lostAt ??= this.board?.at ?? new Date(clock.now()).toISOString();
    else this.lostAt = null;
    this.status = status;
    this.trouble = trouble;
    this.#tell("status", status);
  }

  #wantedTopics() {
    const asked = ON_DEMAND.filter((kind) => this.#listeners.get(kind)?.size);
    return [...ALWAYS, ...asked].join();
  }

  #topicsMayHaveChanged() {
    if (!this.#isStarted || !this.#source) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => { if (this.#wantedTopics() !== this.#topics) this.#reconnect(); }, 50);
  }

  #close() {
    clearTimeout(this.#opening);
    this.#source?.close();
    this.#source = null;
    this.#stream = null;
  }

  #reconnect() { this.#close(); this.#connect(); }

  #connect() {
    clearTimeout(this.#timer);
    if (!this.#isStarted || this.isPaused) return;
    if (document.hidden) { this.#close(); return; }
    if (this.#source) return;
    this.#topics = this.#wantedTopics();
    const source = new EventSource(api.url("events", { topics: this.#topics, jobs: this.#jobs.join() }));
    this.#source = source;
    for (const kind of EVENTS) {
      source.addEventListener(kind, (event) => { if (source === this.#source) this.#take(kind, JSON.parse(event.data)); });
    }
    const failed = () => { if (source === this.#source) this.#failed(); };
    source.onerror = failed;
    this.#opening = setTimeout(failed, OPENS_WITHIN * 1000);
  }

  #failed() {
    this.#close();
    this.#failures += 1;
    const pause = Math.min(2 ** this.#failures, LONGEST_PAUSE);
    this.retryAt = clock.now() + pause * 1000;
    this.#become("lost", "The live stream is lost");
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#connect(), pause * 1000);
    if (this.#failures === 1) api.get("session").catch(() => {}); // a 401 leads to the login
  }

  #take(kind, data) {
    this.#failures = 0;
    clearTimeout(this.#opening);
    if (kind === "notice") { this.#become("live", data.text); return; }
    if (kind === "overflow") { this.#reconnect(); return; }
    if (kind === "snapshot") this.#takeSnapshot(data);
    else if (kind === "resumed") { this.#stream = data.stream; clock.set(data.at); }
    else if (kind === "board") this.#takeBoard(data, false);
    else this.#tell(kind, data);
    this.#become("live");
  }

  #takeSnapshot(data) {
    this.#stream = data.stream ?? null;
    clock.set(data.at);
    if (data.board) this.#takeBoard(data.board, true);
    else this.refresh();
    for (const job of data.jobs ?? []) this.#tell("job", job);
    for (const kind of ON_DEMAND) this.#tell(kind, data[kind] ?? null);
  }

  #takeBoard(data, isWhole) {
    clock.set(data.at);
    this.board = isWhole || !this.board ? data : merged(this.board, data);
    this.#tell("board", this.board);
  }
}

/** The board with what a delta names; every record is replaced, none is changed. */
function merged(board, delta) {
  const { queues, gone, ...rest } = delta;
  const next = { ...board, ...rest };
  if (queues || gone) {
    const changed = new Map((queues ?? []).map((queue) => [queue.name, queue]));
    const kept = board.queues.filter((queue) => !gone?.includes(queue.name)).map((queue) => changed.get(queue.name) ?? queue);
    const known = new Set(kept.map((queue) => queue.name));
    next.queues = [...kept, ...[...changed.values()].filter((queue) => !known.has(queue.name))];
  }
  return next;
}

export const live = new Live();

/** The component renders again with every event of that kind. It listens before the browser paints: no event comes between. */
export function useLive(kind) {
  const [, again] = useReducer((count) => count + 1, 0);
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

const tickers = new Map(); // one timer for all components of a pace
function ticking(seconds) {
  if (!tickers.has(seconds)) {
    const listeners = new Set();
    setInterval(() => { if (!document.hidden) listeners.forEach((listener) => listener()); }, seconds * 1000);
    tickers.set(seconds, listeners);
  }
  return tickers.get(seconds);
}

/** The component renders again every `seconds`, for texts like "21 s ago". */
export function useTick(seconds = 1) {
  const [, again] = useReducer((count) => count + 1, 0);
  useEffect(() => {
    const listeners = ticking(seconds);
    listeners.add(again);
    return () => listeners.delete(again);
  }, [seconds]);
}

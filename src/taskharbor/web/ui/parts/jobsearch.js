/** The list of jobs for a query: pages of 50, rows kept up to date, new ones counted and not shown until asked for. */

import { api } from "../api.js";
import { live, useEvents } from "../live.js";
import { queuesOf } from "../query.js";
import { useCallback, useEffect, useRef, useState } from "./html.js";

const PAGE = 50;
const WALK_MS = 5000;   // a search that finds little goes on by itself for so long
const HEAD_MS = 2000;   // the head of the list is asked for at most so often
const NOTHING = { jobs: [], cursor: null, lookedAt: 0, backTo: null, problem: null, isLoading: true, isWalking: false, fresh: 0, changed: new Set() };

export function useJobs(q, sort) {
  const [state, become] = useState(NOTHING);
  const question = useRef(0), ids = useRef([]), head = useRef(null), headAt = useRef(0), timer = useRef(null);
  ids.current = state.jobs.map((job) => job.id);
  const query = { q, sort, limit: PAGE, args: true }, of = q + sort;

  /** Ask from `cursor` on, until a page is full, nothing is left, or 5 s have passed. */
  const walk = useCallback(async (cursor, before) => {
    const number = question.current += 1, until = performance.now() + WALK_MS;
    let jobs = before.jobs, lookedAt = before.lookedAt, wanted = jobs.length + PAGE;
    become((now) => ({ ...now, isLoading: true, fresh: cursor ? now.fresh : 0 }));
    try {
      do {
        const page = await api.get("jobs", { ...query, limit: wanted - jobs.length, cursor });
        if (number !== question.current) return;
        const seen = new Set(jobs.map((job) => job.id));
        jobs = [...jobs, ...page.items.filter((job) => !seen.has(job.id))];
        lookedAt += page.is_all === false ? page.looked_at ?? 0 : 0;
        cursor = page.next_cursor;
        const isWalking = Boolean(cursor) && jobs.length < wanted && performance.now() < until;
        become((now) => ({ ...now, of, jobs, cursor, lookedAt, backTo: page.looked_back_to ?? null, problem: null, isLoading: isWalking, isWalking }));
        if (!isWalking) return;
      } while (cursor);
    } catch (problem) {
      if (number === question.current) become((now) => ({ ...now, problem, isLoading: false, isWalking: false, ...(now.of !== of && { of, jobs: [], cursor: null }) }));
    }
  }, [q, sort]);

  const again = useCallback(() => walk(null, NOTHING), [walk]);
  useEffect(() => { head.current = null; again(); return () => { question.current += 1; clearTimeout(timer.current); }; }, [again]);

  // Rows that are there follow the stream; a changed one fades from the accent once.
  useEffect(() => { live.follow(state.jobs.map((job) => job.id)); }, [state.jobs]);
  useEffect(() => () => live.follow([]), []);
  const replace = (newer) => become((now) => {
    const byId = new Map(newer.map((job) => [job.id, job]));
    const changed = new Set();
    const jobs = now.jobs.map((job) => {
      const next = byId.get(job.id);
      if (!next || next.version <= job.version) return job; // an answer may be older than an event
      changed.add(job.id);
      return { ...job, ...next };
    });
    return changed.size ? { ...now, jobs, changed } : now;
  });
  useEvents("job", (job) => replace([{ ...job, id: job.asked_id ?? job.id }]));
  useEvents("job_gone", ({ id }) => become((now) => ({ ...now, jobs: now.jobs.filter((job) => job.id !== id) })));

  /** The board says that a queue of the query changed: look whether the head of the list is another one. */
  const lookAhead = async () => {
    headAt.current = performance.now();
    const number = question.current;
    try {
      const page = await api.get("jobs", query);
      if (number !== question.current) return;
      const seen = new Set(ids.current);
      const fresh = page.items.filter((job) => !seen.has(job.id)).length;
      head.current = page;
      replace(page.items);
      become((now) => (now.jobs.length === 0 && page.items.length ? { ...now, jobs: page.items, cursor: page.next_cursor, isLoading: false } : now.fresh === fresh ? now : { ...now, fresh }));
    } catch { /* the next board asks again */ }
  };
  const before = useRef(countsOf(live.board, q));
  useEvents("board", (board) => {
    const now = countsOf(board, q);
    if (now !== before.current && state.jobs.length <= 2 * PAGE) {
      clearTimeout(timer.current);
      timer.current = setTimeout(lookAhead, Math.max(HEAD_MS - (performance.now() - headAt.current), 0));
    }
    before.current = now;
  });

  const showNew = () => {
    question.current += 1;
    const page = head.current;
    if (page) become((now) => ({ ...NOTHING, of, jobs: page.items, cursor: page.next_cursor, isLoading: false }));
    else again();
    scrollTo(0, 0);
  };
  return { ...state, isOld: state.of !== of, ids, again, showNew, older: () => walk(state.cursor, state) };
}

/** The counts of the queues that a query names, as one text to compare. */
function countsOf(board, q) {
  const queues = queuesOf(q);
  return (board?.queues ?? []).filter((queue) => !queues || queues.has(queue.name)).map((queue) =>
    [queue.name, queue.ready, queue.running, queue.scheduled, queue.blocked, queue.completed, queue.failed, queue.cancelled].join()).join(";");
}

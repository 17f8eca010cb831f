/** What people do, and how they take it back.
 *
 * One retry and every setting happen at once, with Undo for 10 s. Many jobs, every cancel and every delete are held by the
 * server for 8 s: Undo drops them, Now begins at once.
 */

import { api } from "./api.js";
import { number, plural, shortId } from "./format.js";
import { live } from "./live.js";
import { say, sayProblem } from "./parts/toast.js";

const WORDS = { retry: ["Retrying", "Retried", "Nothing was retried"], cancel: ["Cancelling", "Cancelled", "Nothing was cancelled"],
  delete: ["Deleting", "Deleted", "Nothing was deleted"] };
const OVER = ["done", "stopped", "dropped"];

export const may = (session, what) => !session?.read_only && (session?.may ?? []).includes(what);

/** Change a setting now, and offer to change it back. `done` is called after both. */
export async function change(words, act, undo, done = () => {}) {
  try {
    await act();
    say(words, { undo: undo && (async () => {
      try { await undo(); say("Undone"); } catch (problem) { sayProblem(problem, "It was not undone"); }
      live.refresh();
      done();
    }) });
    live.refresh();
    done();
    return true;
  } catch (problem) {
    sayProblem(problem, "Nothing was changed");
    return false;
  }
}

export const pauseQueue = (name, done) => change(`Queue ${name} is paused`,
  () => api.post(`queues/${encodeURIComponent(name)}/pause`), () => api.post(`queues/${encodeURIComponent(name)}/resume`), done);
export const resumeQueue = (name, done) => change(`Queue ${name} runs again`,
  () => api.post(`queues/${encodeURIComponent(name)}/resume`), () => api.post(`queues/${encodeURIComponent(name)}/pause`), done);

/** Retry one job now. Undo cancels it if it has not begun. */
export async function retryOne(job, edit = {}, done = () => {}) {
  try {
    await api.post(`jobs/${job.id}/retry`, edit);
    say(`${job.type} ${shortId(job.id)} runs again`, { undo: () => unRetry(job, done) });
    done();
    return true;
  } catch (problem) {
    sayProblem(problem, "It was not retried");
    return false;
  }
}

async function unRetry(job, done) {
  try {
    const now = await api.get(`jobs/${job.id}`);
    if (!["ready", "scheduled", "blocked"].includes(now.state)) { say(`Too late: ${shortId(job.id)} is ${now.state}`); return; }
    await api.post(`jobs/${job.id}/cancel`);
    say(`Taken back: ${shortId(job.id)} is cancelled and did not run`);
  } catch (problem) { sayProblem(problem, "It was not taken back"); }
  done();
}

/** What a deed on many jobs would do: { count, exact, skipped, samples }. */
export const preview = (deed) => api.post("bulk", { ...deed, dry_run: true });

/** Hand a deed on many jobs to the server, which holds it for 8 s.
 *
 * @param {{ action: "retry" | "cancel" | "delete", q?: string, ids?: string[], edit?: object, expect?: number }} deed */
export async function hold(deed, done = () => {}) {
  const [doing, , nothing] = WORDS[deed.action];
  try {
    const held = await api.post("bulk", deed);
    const count = deed.expect ?? deed.ids?.length ?? held.count;
    const words = count === undefined || count === null ? `${doing} jobs` : `${doing} ${plural(count, "job")}`;
    const toast = say(words, {
      endsAt: Date.parse(held.starts_at),
      undo: () => api.delete(`bulk/${held.id}`).then(() => say("Undone: nothing was changed"), (problem) => sayProblem(problem, "It was not undone")),
      now: () => api.post(`bulk/${held.id}/now`).catch((problem) => sayProblem(problem, "It does not begin earlier")),
    });
    watch(held, deed.action, toast, done);
    return true;
  } catch (problem) {
    sayProblem(problem, nothing);
    return false;
  }
}

/** Follow a deed to its end and call `done`: the stream reports it, and a request asks when the stream is silent. */
function watch(held, action, toast, done) {
  const [doing, did] = WORDS[action];
  let isOver = false;
  const take = (now) => {
    if (isOver || now?.id !== held.id) return;
    if (now.state === "running") {
      toast.change(`${doing}: ${number(now.done)} of ${number(now.of)}`, { undo: () => api.delete(`bulk/${held.id}`).catch(() => {}) });
    }
    if (!OVER.includes(now.state)) return;
    isOver = true;
    end();
    clearInterval(timer);
    if (now.state === "done") toast.change(`${did} ${plural(now.done, "job")}${now.of > now.done ? `; ${plural(now.of - now.done, "other")} had changed meanwhile` : ""}`);
    else if (now.state === "stopped") toast.change(`Stopped after ${number(now.done)} of ${number(now.of)}${now.detail ? `: ${now.detail}` : ""}`);
    else toast.close();
    live.refresh();
    done(now.state);
  };
  const end = live.on("bulk", take);
  const timer = setInterval(async () => {
    try { take(await api.get(`bulk/${held.id}`)); } catch (problem) {
      if (problem.status === 404) { isOver = true; end(); clearInterval(timer); toast.close(); }
    }
  }, 1000);
}

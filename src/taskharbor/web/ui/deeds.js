/** What people do, and how they take it back.
 *
 * One retry and every setting happen at once, with Undo for 10 s. Many jobs, every cancel and every delete are held by the
 * server for 8 s: Undo drops them, Now begins at once.
 */

import { api } from "./api.js";
import { number, plural, shortId } from "./format.js";
import { live } from "./live.js";
import { say, trying } from "./parts/toast.js";

const WORDS = { retry: ["Retrying", "Retried", "Nothing was retried"], cancel: ["Cancelling", "Cancelled", "Nothing was cancelled"],
  delete: ["Deleting", "Deleted", "Nothing was deleted"] };
const OVER = ["done", "stopped", "dropped"];
const nothing = () => {};

let person = {}; // who is signed in: the body of GET /api/session
export const setPerson = (session) => { person = session; };

/** What is drawn: the server refuses what a role may not do. */
export const may = (what) => !person.read_only && (person.may ?? []).includes(what);

/** Change a setting now, and offer to change it back. `done` is called after both; `of` is what was changed: its newest change can be undone. */
export function change(words, act, undo, done = nothing, of) {
  const changed = (text, more) => { say(text, more); live.refresh(); done(); };
  return trying("Nothing was changed", async () => {
    await act();
    changed(words, { of, undo: undo && (() => trying("It was not undone", async () => { await undo(); changed("Undone"); })) });
  });
}

export function turnQueue({ name, paused }, done) {
  const [verb, back] = paused ? ["resume", "pause"] : ["pause", "resume"];
  return change(`Queue ${name} ${paused ? "runs again" : "is paused"}`, () => api.post(["queues", name, verb]), () => api.post(["queues", name, back]), done, name);
}

/** Retry one job now. Undo cancels it if it has not begun. */
export const retryOne = (job, edit = {}, done = nothing) => trying("It was not retried", async () => {
  await api.post(`jobs/${job.id}/retry`, edit);
  const name = `${job.type} ${shortId(job.id)}`, toast = say(`${name} runs again`, { undo: () => takeBack(job.id, done) });
  done();
  api.get(["jobs", job.id, "result"], { wait_s: 30 }).then(({ state }) => { if (["completed", "failed"].includes(state)) { toast.change(`${name} is ${state}`); done(); } }, nothing);
});

/** Cancel a job that was just put in, unless it has begun. */
export const takeBack = (id, done) => trying("It was not taken back", async () => {
  const { state } = await api.get(`jobs/${id}`);
  if (["ready", "scheduled", "blocked"].includes(state)) {
    await api.post(`jobs/${id}/cancel`);
    say(`Taken back: ${shortId(id)} is cancelled and did not run`);
  } else say(`Too late: ${shortId(id)} is ${state}`);
}).then(done);

/** What a deed on many jobs would do: { count, exact, skipped, samples }. */
export const preview = (deed) => api.post("bulk", { ...deed, dry_run: true });

/** Hand a deed on many jobs to the server, which holds it for 8 s.
 *
 * @param {{ action: "retry" | "cancel" | "delete", q?: string, ids?: string[], edit?: object, expect?: number }} deed */
export const hold = (deed, done = nothing) => trying(WORDS[deed.action][2], async () => {
  const held = await api.post("bulk", deed), count = deed.expect ?? deed.ids?.length ?? held.count, path = `bulk/${held.id}`;
  const [doing] = WORDS[deed.action];
  const toast = say(count == null ? `${doing} jobs` : `${doing} ${plural(count, "job")}`, {
    endsAt: Date.parse(held.starts_at),
    undo: () => trying("It was not undone", async () => { await api.delete(path); say("Undone: nothing was changed"); }),
    now: () => trying("It does not begin earlier", () => api.post(`${path}/now`)),
  });
  watch(held.id, path, deed.action, toast, done);
});

/** Follow a deed to its end and call `done`: the stream reports it, and a request asks when the stream is silent. */
function watch(id, path, action, toast, done) {
  const [doing, did] = WORDS[action];
  let isOver = false; // an answer may be on its way when the stream reports the end
  const end = () => { isOver = true; stop(); clearInterval(timer); };
  const take = (now) => {
    if (isOver || now?.id !== id) return;
    const { state, done: count, of, detail } = now, part = `${number(count)} of ${number(of)}`;
    if (state === "running") toast.change(`${doing}: ${part}`, { undo: () => api.delete(path).catch(nothing) });
    if (!OVER.includes(state)) return;
    end();
    if (state === "done") toast.change(`${did} ${plural(count, "job")}${of > count ? `; ${plural(of - count, "other")} had changed meanwhile` : ""}`);
    else if (state === "stopped") toast.change(`Stopped after ${part}${detail ? `: ${detail}` : ""}`);
    else toast.close();
    live.refresh();
    done(state);
  };
  const stop = live.on("bulk", take);
  const timer = setInterval(() => api.get(path).then(take, (problem) => { if (problem.status === 404) { end(); toast.close(); } }), 1000);
}

/** What the answer of /api/workers says: groups, releases, who is slow. Pure functions, without a page. */

import { bytes, number, secondsSince, span } from "../format.js";

export const nameOf = (worker) => worker.name || worker.id;
const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
const everybody = (items, lost) => [...items, ...lost.map((one) => ({ ...one, isLost: true }))];

function grouped(members, name) {
  const groups = new Map();
  for (const one of members) groups.set(name(one), [...(groups.get(name(one)) ?? []), one]);
  return [...groups];
}

/** By how the page groups: [name of the group, its members]. Lost workers are members with `isLost`. */
export const GROUPS = {
  host: (items, lost) => grouped(everybody(items, lost).sort((a, b) => compare(a.host, b.host) || compare(nameOf(a), nameOf(b)) || compare(a.id, b.id)), (one) => one.host || "unknown host"),
  speed: (items, lost) => grouped([...items].sort((a, b) => (b.times_slower ?? 0) - (a.times_slower ?? 0) || (b.latency_s ?? -1) - (a.latency_s ?? -1)).concat(everybody([], lost)), (one) => (one.isLost ? "Lost" : one.latency_s == null ? "Not measured yet" : "Slowest first")),
  release: (items, lost) => grouped(everybody(items, lost), (one) => one.release || "No release given").sort((a, b) => b[1].length - a[1].length),
};

/** Workers on which the same tasks take at least one and a half times as long as elsewhere: id → how many times.
 *
 * The server compares task by task; the average of a worker alone would only say who got the longer jobs. */
export const laggards = (items) => new Map(items.filter((one) => one.times_slower >= 1.5).map((one) => [one.id, one.times_slower]));

export function median(numbers) {
  if (!numbers.length) return 0;
  const sorted = [...numbers].sort((a, b) => a - b), half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

/** The most frequent release that is not the one started last; null when all run the same. */
export function oldRelease(items) {
  const known = items.filter((one) => one.release);
  if (new Set(known.map((one) => one.release)).size < 2) return null;
  const newest = known.reduce((a, b) => ((b.started_at ?? "") > (a.started_at ?? "") ? b : a)).release;
  const [release, members] = grouped(known.filter((one) => one.release !== newest), (one) => one.release).sort((a, b) => b[1].length - a[1].length)[0];
  return { release, count: members.length };
}

/** Above one's usual time: three times as long, and at least a second. */
export function isSlow(job, usual) {
  const known = usual.get(job.type), ran = secondsSince(job.started_at);
  return known != null && ran != null && ran > Math.max(known * 3, known + 1);
}

/** cpu · mail, default */
export function serves(worker) {
  const queues = worker.queues?.length ? worker.queues.join(", ") : "every queue";
  return worker.kind ? `${worker.kind} · ${queues}` : worker.queues ? queues : "";
}

/** send_welcome 9, 2 of them over their usual time */
export function doing(worker, jobs, late) {
  if (worker.isLost) return worker.running.length ? `${number(worker.running.length)} ${worker.running.length === 1 ? "job was" : "jobs were"} running` : "";
  if (!jobs.length) return worker.is_quiet ? "takes no more jobs" : "";
  const types = grouped(jobs, (job) => job.type).sort((a, b) => b[1].length - a[1].length || compare(a[0], b[0]));
  const tasks = types.map(([type, all]) => `${type} ${number(all.length)}`).join(", ");
  return `${tasks}${late ? `, ${late === 1 ? "one" : number(late)} of them over ${late === 1 ? "its" : "their"} usual time` : ""}${worker.is_quiet ? "; takes no more" : ""}`;
}

/** 16 cores, load 11.2 · 41 of 64 GiB · store 0.9 ms */
export function hostLine(members) {
  const machine = members.map((one) => one.machine).find(Boolean);
  if (!machine) return "";
  const gpus = members.reduce((sum, one) => sum + (one.gpus?.length ?? 0), 0);
  const memory = machine.memory == null || machine.memory_used == null ? "" : `${bytes(machine.memory_used)} of ${bytes(machine.memory)}`;
  const cores = machine.cores == null ? "" : `${number(machine.cores)} ${machine.cores === 1 ? "core" : "cores"}`;
  const extra = gpus ? `${gpus} ${gpus === 1 ? "GPU" : "GPUs"}` : machine.load == null ? "" : `load ${machine.load.toFixed(1)}`;
  return [[cores, extra].filter(Boolean).join(", "), memory.replace(/ (\w+) of (.*) \1$/, " of $2 $1"), machine.store_s == null ? "" : `store ${span(machine.store_s)}`].filter(Boolean).join(" · ");
}

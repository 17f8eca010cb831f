/** What the answer of /api/workers says: groups, releases, who is slow. Pure functions, without a page. */

import { number, plural, secondsSince } from "../format.js";

export const nameOf = (worker) => worker.name || worker.id;
const inOrder = (text) => (a, b) => text(a).localeCompare(text(b));

export function grouped(members, name) {
  const groups = new Map();
  for (const one of members) groups.set(name(one), [...(groups.get(name(one)) ?? []), one]);
  return [...groups];
}
const largestFirst = (groups) => groups.sort((a, b) => b[1].length - a[1].length);

/** By how the page groups: [name of the group, its members]. */
export const GROUPS = {
  host: (all) => grouped(all.sort(inOrder((one) => [one.host, nameOf(one), one.id].join("\n"))), (one) => one.host || "unknown host"),
  speed: (all) => grouped(all.sort((a, b) => (a.isLost ?? 0) - (b.isLost ?? 0) || (b.times_slower ?? 0) - (a.times_slower ?? 0) || (b.latency_s ?? -1) - (a.latency_s ?? -1)),
    (one) => (one.isLost ? "Lost" : one.latency_s == null ? "Not measured yet" : "Slowest first")),
  release: (all) => largestFirst(grouped(all, (one) => one.release || "No release given")),
};

/** How many times as long the same tasks take there as on the others, from one and a half on.
 *
 * The server compares task by task; the average of a worker alone would only say who got the longer jobs. */
export const slowness = (worker) => worker.times_slower >= 1.5 && worker.times_slower;

/** Above one's usual time: three times as long, and at least a second. */
export function isSlow(job, usual) {
  const known = usual.get(job.type);
  return known != null && secondsSince(job.started_at) > Math.max(known * 3, known + 1);
}

/** cpu · mail, default */
export const serves = (worker) => worker.queues && [worker.kind, worker.queues.join(", ") || "every queue"].filter(Boolean).join(" · ");

/** send_welcome 9, 2 of them over their usual time */
export function doing(worker, jobs, late) {
  const count = worker.running.length;
  if (worker.isLost) return count && `${plural(count, "job was", "jobs were")} running`;
  if (!jobs.length) return worker.is_quiet && "takes no more jobs";
  const tasks = largestFirst(grouped(jobs.sort(inOrder((job) => job.type)), (job) => job.type)).map(([type, all]) => `${type} ${number(all.length)}`);
  return `${tasks.join(", ")}${late ? `, ${late === 1 ? "one of them over its" : `${number(late)} of them over their`} usual time` : ""}${worker.is_quiet ? "; takes no more" : ""}`;
}

// BullMQ's adapter, with a deduplication id or a priority on each job: see job_options.py.
"use strict";
const path = require("path");
const { load, main, hit, REDIS } = require(path.join(process.env.BENCH_ADAPTERS, "_node.cjs"));
const { Queue, Worker } = load("bullmq");
const connection = { host: REDIS.hostname, port: Number(REDIS.port), maxRetriesPerRequest: null };
const options = {
  plain: () => ({}),
  keyed: (p) => ({ deduplication: { id: `k${p.seq}` } }),
  prioritised: (p) => ({ priority: 1 + ((p.seq * 7) % 5) }),
}[process.env.BENCH_JOBS || "plain"];
const asked = (p) => ({ name: "noop", data: p, opts: { removeOnComplete: true, ...options(p) } });
let queue;
main({
  package: "bullmq",
  async open() { queue = new Queue("bench", { connection }); await queue.waitUntilReady(); },
  one: (p) => queue.add("noop", p, asked(p).opts),
  many: (ps) => queue.addBulk(ps.map(asked)),
  worker() { new Worker("bench", async (job) => hit(job.data), { connection, concurrency: 100 }); },
});

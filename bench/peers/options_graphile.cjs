// graphile-worker's adapter, with a job key or a priority on each job: see job_options.py.
"use strict";
const path = require("path");
const { load, main, hit, PG_DSN } = require(path.join(process.env.BENCH_ADAPTERS, "_node.cjs"));
const { makeWorkerUtils, run, WorkerPreset, Logger } = load("graphile-worker");
const logger = new Logger(() => () => {});
const connected = () => makeWorkerUtils({ connectionString: PG_DSN, logger });
const options = {
  plain: () => ({}),
  keyed: (p) => ({ jobKey: `k${p.seq}` }),
  prioritised: (p) => ({ priority: (p.seq * 7) % 5 }),
}[process.env.BENCH_JOBS || "plain"];
const worker = {
  connectionString: PG_DSN, concurrentJobs: 100, maxPoolSize: 10, pollInterval: 2000, logger,
  localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0,
};
let utils;
main({
  package: "graphile-worker",
  async install() { const made = await connected(); await made.migrate(); await made.release(); },
  async open() { utils = await connected(); },
  one: (p) => utils.addJob("noop", p, options(p)),
  many: (ps) => utils.addJobs(ps.map((p) => ({ identifier: "noop", payload: p, ...options(p) }))),
  async worker() { await run({ preset: { extends: [WorkerPreset], worker }, taskList: { noop: async (p) => hit(p) } }); },
});

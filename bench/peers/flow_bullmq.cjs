"use strict";
// BullMQ: a flow whose parent is the callback; a chain of flows, each the only child of the next.
const SETTINGS = "concurrency 20, locks of 3 s, stalled jobs looked for every second";
const { load, line, childWork, main } = require("./flow_base.cjs");
const { FlowProducer, Queue, Worker } = load("bullmq");
const url = new URL(process.env.TRIAL_URL);
const connection = { host: url.hostname, port: Number(url.port), maxRetriesPerRequest: null };
const node = (name, data) => ({ name, queueName: "flow", data, opts: { attempts: 10 } });
const child = (run, number) => node("child", { run, number });

function work() {
  console.error(SETTINGS);
  new Worker("flow", ({ name, data: { run, number } }) => (
    name === "callback" ? line(run, "callback") : childWork(run, number)
  ), { connection, concurrency: 20, lockDuration: 3000, stalledInterval: 1000, maxStalledCount: 10 });
}

function produce() {
  const flows = new FlowProducer({ connection });
  const queue = new Queue("flow", { connection });
  const ended = (run, children) => flows.add({ ...node("callback", { run }), children });
  return {
    group: (run, count) => ended(run, Array.from({ length: count }, (_, number) => child(run, number))),
    chain: (run, count) => {
      let last = child(run, 0);
      for (let number = 1; number < count; number++) last = { ...child(run, number), children: [last] };
      return ended(run, [last]);
    },
    left: () => queue.getJobCountByTypes("waiting", "active", "delayed", "prioritized"),
  };
}

main(work, produce);

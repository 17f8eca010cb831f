"use strict";
// BullMQ: a flow whose parent is the callback; a chain of flows, each the only child of the next.
const SETTINGS = "concurrency 20, locks of 3 s, stalled jobs looked for every second";
const fs = require("fs");
const path = require("path");
const readline = require("readline");
const { createRequire } = require("module");
const load = createRequire(path.join(process.env.BENCH_NODE_HOME, "node_modules", "x.js"));
const { FlowProducer, Worker } = load("bullmq");
const url = new URL(process.env.TRIAL_URL);
const connection = { host: url.hostname, port: Number(url.port), maxRetriesPerRequest: null };
const seconds = Number(process.env.TRIAL_CHILD_SECONDS || 0);
const line = (run, what) => fs.appendFileSync(path.join(process.env.TRIAL_FOLDER, `run-${run}`), `${what} ${process.pid}\n`);
const child = (run, number) => ({ name: "child", queueName: "flow", data: { run, number }, opts: { attempts: 10 } });

function work() {
  new Worker("flow", async (job) => {
    const { run, number } = job.data;
    if (job.name === "callback") return line(run, "callback");
    if (seconds) await new Promise((done) => setTimeout(done, seconds * 1000));
    line(run, `child ${number}`);
    return { number };
  }, { connection, concurrency: 20, lockDuration: 3000, stalledInterval: 1000, maxStalledCount: 10 });
}

async function produce() {
  const flows = new FlowProducer({ connection });
  const commands = {
    group: (run, count) => flows.add({ name: "callback", queueName: "flow", data: { run },
      children: Array.from({ length: count }, (_, number) => child(run, number)) }),
    chain: (run, count) => {
      let node = child(run, 0);
      for (let number = 1; number < count; number++) node = { ...child(run, number), children: [node] };
      return flows.add({ name: "callback", queueName: "flow", data: { run }, children: [node] });
    },
  };
  console.log("ready");
  for await (const text of readline.createInterface({ input: process.stdin })) {
    const [name, ...numbers] = text.split(" ");
    const began = process.hrtime.bigint();
    await commands[name](...numbers.map(Number));
    console.log(`ok ${Number(process.hrtime.bigint() - began) / 1e9}`);
  }
}

if (process.argv[2] === "worker") { console.error(SETTINGS); work(); } else produce();

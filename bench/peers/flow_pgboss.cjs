"use strict";
// pg-boss: a flow of jobs that depend on others; its resolver lets them go, at most once a second.
const SETTINGS = "batches of 50, polled every 0.5 s and at once after a full one, flows resolved every second, jobs expire after 5 s";
const { load, line, childWork, main } = require("./flow_base.cjs");
const { PgBoss } = load("pg-boss");
const boss = new PgBoss({
  connectionString: process.env.TRIAL_URL,
  flowIntervalSeconds: 1, superviseIntervalSeconds: 1, monitorIntervalSeconds: 1,
});
boss.on("error", (error) => console.error(error.message));
const options = { retryLimit: 50, retryDelay: 0, expireInSeconds: 5 };
const child = (run, number, dependsOn) => (
  { ref: `child ${number}`, name: "flow", data: { run, number }, options, dependsOn });
const callback = (run, dependsOn) => ({ ref: `callback ${dependsOn[0]}`, name: "flow", data: { run }, options, dependsOn });
const upTo = (count) => Array.from({ length: count }, (_, number) => number);
// Nodes 0 to 8 of a graph, each with those it comes after; the callback is the tenth.
const BEFORE = [[], [0], [0], [0], [1, 2], [2, 3], [3], [4, 5], [5, 6]];

function graph(run, first) {
  const refs = (numbers) => numbers.map((number) => `child ${first + number}`);
  const nodes = BEFORE.map((before, number) => child(run, first + number, refs(before)));
  return [...nodes, callback(run, refs([7, 8]))];
}

async function work() {
  console.error(SETTINGS);
  await boss.start();
  await boss.work("flow", { batchSize: 50, pollingIntervalSeconds: 0.5, burstWhenBatchFull: true }, (jobs) => (
    Promise.all(jobs.map(({ data: { run, number } }) => (
      number === undefined ? line(run, "callback") : childWork(run, number))))
  ));
}

async function produce() {
  await boss.start();
  await boss.createQueue("flow");
  return {
    group: (run, count) => {
      const children = upTo(count).map((number) => child(run, number, []));
      return boss.flow([...children, callback(run, children.map((one) => one.ref))]);
    },
    chain: (run, count) => {
      const links = upTo(count).map((number) => child(run, number, number ? [`child ${number - 1}`] : []));
      return boss.flow([...links, callback(run, [links[count - 1].ref])]);
    },
    graph: async (run, count) => {
      for (const number of upTo(count)) await boss.flow(graph(run, number * BEFORE.length));
    },
  };
}

main(work, produce);

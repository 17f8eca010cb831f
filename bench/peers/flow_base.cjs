"use strict";
// What the workflow adapters in Node.js share: lines of handlers, and a producer that reads commands.
const fs = require("fs");
const path = require("path");
const readline = require("readline");
const { createRequire } = require("module");

const load = createRequire(path.join(process.env.BENCH_NODE_HOME, "node_modules", "x.js"));
const milliseconds = Number(process.env.TRIAL_CHILD_SECONDS || 0) * 1000;

function line(run, what) {
  fs.appendFileSync(path.join(process.env.TRIAL_FOLDER, `run-${run}`), `${what} ${process.pid}\n`);
}

async function childWork(run, number) {
  if (milliseconds) await new Promise((done) => setTimeout(done, milliseconds));
  line(run, `child ${number}`);
  return { number };
}

async function answer(commands) {
  console.log("ready");
  for await (const text of readline.createInterface({ input: process.stdin })) {
    const [name, ...numbers] = text.split(" ");
    const began = process.hrtime.bigint();
    const found = await commands[name](...numbers.map(Number));
    const seconds = Number(process.hrtime.bigint() - began) / 1e9;
    console.log(`ok ${name === "left" ? found : seconds}`);
  }
}

async function main(work, produce) {
  if (process.argv[2] === "worker") await work();
  else await answer(await produce());
}

module.exports = { load, line, childWork, main };

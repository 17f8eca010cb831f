/** Every page but the overview, which the first view brings: loaded together when the first of them is opened. */

import { morePage } from "./more.js";
import { loginPage } from "./login.js";
import { jobsPage } from "./jobs.js";
import { systemPage } from "./system.js";
import { jobPage } from "./job.js";
import { workflowsPage } from "./workflows.js";
import { failuresPage } from "./failures.js";
import { queuesPage } from "./queues.js";
import { schedulesPage } from "./schedules.js";
import { workersPage } from "./workers.js";

export const pages = {
  jobs: jobsPage, job: jobPage, failures: failuresPage, queues: queuesPage, workers: workersPage, schedules: schedulesPage, system: systemPage, workflows: workflowsPage, more: morePage, login: loginPage,
};

/** Queues: does each keep up? Worst first. `#/queues/<name>` is the page of one, `#/queues/*` has the settings of all. */

import { may, pauseQueue, resumeQueue } from "../deeds.js";
import { NONE, number } from "../format.js";
import { useBoard } from "../live.js";
import { Button } from "../parts/controls.js";
import { useAsk } from "../parts/data.js";
import { html } from "../parts/html.js";
import { Empty, Loading, Trouble } from "../parts/notes.js";
import { QueueTable, isLate, needsByQueue } from "../parts/queues.js";
import { useRowKeys } from "../parts/rows.js";
import { href } from "../route.js";
import { QueuePage } from "./queue.js";

export const queuesPage = { Page: Queues, title: (route) => (route.path.length ? `Queue ${route.path[0]}` : "Queues"), hasWindow: true };

function Queues({ route, session }) {
  return route.path.length
    ? html`<${QueuePage} key=${route.path[0]} name=${route.path[0]} route=${route} session=${session}/>`
    : html`<${AllQueues} route=${route} session=${session}/>`;
}

function AllQueues({ route, session }) {
  const board = useBoard();
  const window = route.query.window ?? "1h";
  const names = (board?.queues ?? []).map((queue) => queue.name);
  const series = useAsk(names.length ? "series" : null, { window, by: "queue", names: [...names].sort().join() }, { every: 60 }).data;
  const asked = useAsk(board ? null : "board"); // only until the stream has brought one
  const waiting = new Map((series?.series ?? []).map((one) => [one.name, one.waiting]));
  const mayChange = may(session, "configure");
  useRowKeys();
  const queues = board?.queues ?? [];
  return html`
    <div class="head"><div class="grow"><h1>Queues</h1><p class="lede">${board && queuesLede(queues, needsByQueue(board))}</p></div>
      <div class="acts"><${Button} href=${href("queues", ["*"])}>Settings of all<//></div></div>
    ${!board ? (asked.problem ? html`<${Trouble} problem=${asked.problem} onAgain=${asked.ask}/>` : html`<${Loading}/>`)
      : !queues.length ? html`<${Empty} title="No queue yet" text="A queue appears with its first job." code=${["send_welcome.enqueue(user_id=7)"]}/>`
      : html`<${QueueTable} board=${board} waiting=${waiting} window=${window.replace(/(\d+)/, "$1 ")} Cells=${mayChange ? FailedAndPause : Failed}
        heads=${html`<th class="num">Failed</th>${mayChange && html`<th class="num"><span class="sr">Pause or resume</span></th>`}`}/>`}`;
}

const BEHIND = ["behind", "unserved"];

/** The answer of the page: which fall behind, which are paused, and whether the rest keeps up. */
function queuesLede(queues, needs) {
  if (!queues.length) return "";
  const behind = queues.filter((queue) => !queue.paused && (isLate(queue) || BEHIND.includes(needs.get(queue.name)?.kind)));
  const paused = queues.filter((queue) => queue.paused);
  const good = queues.length - behind.length - paused.length;
  const list = (some) => some.slice(0, 3).map((queue) => queue.name).join(", ") + (some.length > 3 ? ` and ${number(some.length - 3)} more` : "");
  const parts = [behind.length && `${list(behind)} ${behind.length === 1 ? "falls" : "fall"} behind.`, paused.length && `${list(paused)} ${paused.length === 1 ? "is" : "are"} paused.`,
    good && (behind.length || paused.length ? `${good === 1 ? "The other one keeps" : `The other ${number(good)} keep`} up.` : good === 1 ? "It keeps up." : `All ${number(good)} keep up.`)];
  return parts.filter(Boolean).join(" ");
}

const Failed = ({ queue }) => html`<td class="num hide">${queue.failed
  ? html`<a class="link" href=${href("jobs", [], { q: `queue:${queue.name} state:failed` })}>${number(queue.failed)}</a>` : NONE}</td>`;

function FailedAndPause({ queue }) {
  const word = queue.paused ? "Resume" : "Pause";
  return html`<${Failed} queue=${queue}/><td class="num hide"><${Button} kind="bare small" aria-label=${`${word} ${queue.name}`}
    onClick=${() => (queue.paused ? resumeQueue : pauseQueue)(queue.name)}>${word}<//></td>`;
}

/** Queues: does each keep up? Worst first. `#/queues/<name>` is the page of one, `#/queues/*` has the settings of all. */

import { may, turnQueue } from "../deeds.js";
import { NONE, number } from "../format.js";
import { useBoard } from "../live.js";
import { Button } from "../parts/controls.js";
import { useAsk } from "../parts/data.js";
import { html } from "../parts/html.js";
import { Empty } from "../parts/notes.js";
import { Asked, Head } from "../parts/page.js";
import { QueueTable } from "../parts/queues.js";
import { useRowKeys } from "../parts/rows.js";
import { href } from "../route.js";
import { QueuePage } from "./queue.js";

export const queuesPage = { Page: Queues, title: (route) => (route.path.length ? `Queue ${route.path[0]}` : "Queues"), hasWindow: true };

function Queues({ route }) {
  return route.path.length ? html`<${QueuePage} name=${route.path[0]} route=${route}/>` : html`<${AllQueues} route=${route}/>`;
}

function AllQueues({ route }) {
  const board = useBoard();
  const window = route.query.window ?? "1h";
  const queues = board?.queues ?? [];
  const series = useAsk(queues.length ? "series" : null, { window, by: "queue", names: queues.map((queue) => queue.name).sort().join() }, { every: 60 }).answer;
  const asked = useAsk(board ? null : "board"); // only until the stream has brought one
  useRowKeys();
  return html`
    <${Head} heading="Queues" lede=${board?.queues_text} acts=${html`<${Button} href=${href("queues", ["*"])}>Settings of all<//>`}/>
    <${Asked} of=${{ ...asked, answer: board }}>${() => (queues.length ? html`<${QueueTable} board=${board} series=${series} window=${window.replace(/(\d+)/, "$1 ")} more=${[
        ["Failed", "num hide", (queue) => (queue.failed ? html`<a class="link" href=${href("jobs", [], { q: `queue:${queue.name} state:failed` })}>${number(queue.failed)}</a>` : NONE)],
        may("configure") && [html`<span class="sr">Pause or resume</span>`, "num hide", (queue) => {
          const word = queue.paused ? "Resume" : "Pause";
          return html`<${Button} look="bare small" aria-label=${`${word} ${queue.name}`} onClick=${() => turnQueue(queue)}>${word}<//>`;
        }]]}/>`
      : html`<${Empty} heading="No queue yet" text="A queue appears with its first job." code=${["send_welcome.enqueue(user_id=7)"]}/>`)}<//>`;
}

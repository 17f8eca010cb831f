/** The places that have no room in the phone's bar, and what belongs to this browser. */

import { PLACES } from "../keys.js";
import { Button, Switch } from "../parts/controls.js";
import { html } from "../parts/html.js";
import { Icon } from "../parts/icons.js";
import { nextTheme, THEME_WORDS, usePref } from "../prefs.js";
import { href } from "../route.js";

export const morePage = { Page: More, title: () => "More" };

function More() {
  const [theme] = usePref("theme");
  const [density, setDensity] = usePref("density");
  const [keys, setKeys] = usePref("keys");
  const [zone, setZone] = usePref("zone");
  return html`<div class="head"><div class="grow"><h1>More</h1></div></div>
    <ul class="card list">${PLACES.filter(([place]) => ["queues", "schedules", "system"].includes(place)).map(([place, word]) => html`
      <li key=${place}><${Icon} glyph=${place}/><a class="grow" href=${href(place)}>${word}</a></li>`)}</ul>
    <section><div class="cap"><h2>This browser</h2></div><ul class="card list">
      <li><span class="grow">Theme: ${THEME_WORDS[theme]}</span><${Button} onClick=${nextTheme}>Next theme<//></li>
      <li><${Switch} label="Compact rows" isOn=${density === "compact"} onChange=${(isOn) => setDensity(isOn ? "compact" : "normal")}/></li>
      <li><${Switch} label="Times in UTC" isOn=${zone === "utc"} onChange=${(isOn) => setZone(isOn ? "utc" : "")}/></li>
      <li><${Switch} label="Single keys" isOn=${keys} onChange=${setKeys}/></li></ul></section>`;
}

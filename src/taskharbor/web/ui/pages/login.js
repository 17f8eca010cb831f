/** Login: a token becomes a session of this browser. The token itself is stored nowhere. */

import { capital } from "../format.js";
import { Input, typed } from "../parts/controls.js";
import { html, useEffect, useState } from "../parts/html.js";
import { Logo } from "../parts/icons.js";

export const loginPage = { Page: Login };

function Login({ api, onLogin }) {
  const [token, type] = useState("");
  const [problem, fail] = useState("");
  const [isSent, sending] = useState(false);
  const field = () => document.querySelector("#token");
  useEffect(() => { document.title = "Sign in · TaskHarbor"; field().focus(); }, []);
  const enter = async (event) => {
    event.preventDefault();
    sending(true);
    try {
      await api.post("session", { token: token.trim() });
      type("");
      onLogin();
    } catch (error) {
      fail(`${capital(error.message)}.`);
      sending(false);
      field().select();
    }
  };
  return html`<main id="main" class="login"><form class="panel pad" onSubmit=${enter}>
    <span class="brand"><${Logo}/>TaskHarbor</span><h1>Sign in</h1>
    <p class="lede">This server asks for a token. One that may read is enough to look around.</p>
    <${Input} id="token" label="Token" error=${problem} hint="Kept nowhere: a session of 12 hours takes its place, and ends when the token is revoked." type="password" autocomplete="current-password"
      spellcheck=${false} autocapitalize="off" required placeholder="taskharbor_…" value=${token} onInput=${typed((text) => { type(text); fail(""); })} aria-invalid=${problem !== ""}/>
    <div class="acts gap2"><button class="btn main" type="submit" disabled=${isSent || !token.trim()}>Sign in</button></div>
    <p class="dim small gap3">An administrator makes one with <code>taskharbor tokens create --role viewer</code></p></form></main>`;
}

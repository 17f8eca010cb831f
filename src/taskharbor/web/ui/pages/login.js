/** Login: a token becomes a session of this browser. The token itself is stored nowhere. */

import { html, useEffect, useRef, useState } from "../parts/html.js";
import { Logo } from "../parts/icons.js";

export const loginPage = { Page: Login };

function Login({ api, onLogin }) {
  const [token, type] = useState("");
  const [problem, fail] = useState("");
  const [isSent, sending] = useState(false);
  const field = useRef(null);
  useEffect(() => { document.title = "Sign in · TaskHarbor"; field.current.focus(); }, []);
  const send = async (event) => {
    event.preventDefault();
    sending(true);
    try {
      await api.post("session", { token: token.trim() });
      type("");
      onLogin();
    } catch (error) {
      fail(explained(error));
      sending(false);
      field.current.select();
    }
  };
  return html`<main id="main" class="login"><form class="panel pad" onSubmit=${send}>
    <span class="brand"><${Logo}/>TaskHarbor</span><h1>Sign in</h1>
    <p class="lede">This server asks for a token. One that may read is enough to look around.</p>
    <div class="fld gap2"><label for="token">Token</label>
      <input id="token" class="field" ref=${field} type="password" autocomplete="current-password" spellcheck="false" autocapitalize="off" required placeholder="taskharbor_…"
        value=${token} onInput=${(event) => { type(event.target.value); fail(""); }} aria-invalid=${problem !== ""} aria-describedby="token-note"/>
      <p id="token-note" class=${problem ? "err" : "dim small"} role=${problem ? "alert" : undefined}>${problem || "Kept nowhere: a session of 12 hours takes its place, and ends when the token is revoked."}</p></div>
    <div class="acts gap2"><button class="btn main" type="submit" disabled=${isSent || !token.trim()}>Sign in</button></div>
    <p class="dim small gap3">An administrator makes one with <code>taskharbor tokens create --role viewer</code></p></form></main>`;
}

function explained(problem) {
  if (problem.status === 401) return "This token is not known, has expired, or was revoked.";
  if (problem.status === 429) return "Too many wrong tokens from this address. Wait a minute, then try again.";
  return problem.message;
}

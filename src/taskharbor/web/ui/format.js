/** Time, numbers and sizes as every page writes them. Unknown is an en dash, never 0. */

export const NONE = "–";

export const LANGUAGE = usable(navigator.language) ?? "en";
const whole = new Intl.NumberFormat(LANGUAGE, { maximumFractionDigits: 0 });
const fixed = [0, 1, 2].map((digits) =>
  new Intl.NumberFormat(LANGUAGE, { minimumFractionDigits: digits, maximumFractionDigits: digits }));

const isMissing = (value) => value === null || value === undefined || Number.isNaN(value);

/** 9,812; from a million on 2.14 M. */
export function number(value) {
  if (isMissing(value)) return NONE;
  if (Math.abs(value) < 1e6) return whole.format(value);
  const [size, unit] = Math.abs(value) < 1e9 ? [1e6, "M"] : [1e9, "G"];
  return `${three(value / size)} ${unit}`;
}

/** All digits: 1,794,829,859,013,070. */
export const exact = (value) => whole.format(value);

/** Three digits: 0.28, 41.0, 803. */
export function three(value) {
  if (isMissing(value)) return NONE;
  const size = Math.abs(value);
  return fixed[size >= 100 ? 0 : size >= 9.995 ? 1 : 2].format(value);
}

/** A rate as [number, unit]: a minute where a second would be too small to read. */
export function rate(perSecond) {
  if (isMissing(perSecond)) return [NONE, ""];
  if (perSecond !== 0 && perSecond < 1) return [three(perSecond * 60), "/min"];
  return [perSecond === 0 ? "0" : three(perSecond), "/s"];
}

export const perSecond = (value) => (isMissing(value) ? NONE : value === 0 ? "0.0" : three(value));

const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

/** One unit: 12 ms, 8.1 s, 14 min, 3 h, 2 d. With `parts` 2: 2 min 50 s. */
export function span(seconds, parts = 1) {
  if (isMissing(seconds)) return NONE;
  const value = Math.abs(seconds);
  if (value < 0.00005) return "0 s";
  if (value < 0.00095) return `${fixed[1].format(value * 1000)} ms`;
  if (value < 0.9995) return `${whole.format(value * 1000)} ms`;
  if (value < 59.95) return `${(value < 9.95 || parts > 1) && Math.round(value * 10) % 10 ? fixed[1].format(value) : whole.format(value)} s`;
  const at = UNITS.findIndex(([, size]) => value >= size * 0.999);
  const [unit, size] = UNITS[at];
  if (parts < 2 || at === UNITS.length - 1) return `${whole.format(Math.max(Math.floor(value / size), 1))} ${unit}`;
  const first = Math.floor(value / size);
  const rest = Math.round((value - first * size) / UNITS[at + 1][1]);
  return rest ? `${first} ${unit} ${rest} ${UNITS[at + 1][0]}` : `${first} ${unit}`;
}

/** A span that was measured, always with its digits: 30.0 s. */
export const measured = (seconds) =>
  !isMissing(seconds) && seconds >= 9.95 && seconds < 59.95 ? `${fixed[1].format(seconds)} s` : span(seconds, 2);

export function bytes(count) {
  if (isMissing(count)) return NONE;
  if (count < 1024) return `${whole.format(count)} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let size = count / 1024, at = 0;
  while (size >= 1024 && at < units.length - 1) { size /= 1024; at += 1; }
  return `${size < 100 ? three(size).replace(/([.,]\d*?)0+$/, "$1").replace(/[.,]$/, "") : whole.format(size)} ${units[at]}`;
}

export const percent = (share, write = fixed[0].format) => (isMissing(share) ? NONE : `${write(share * 100)} %`);
export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

/** The server's clock: the browser's may be wrong, so it only measures what has passed since. */
export const clock = {
  base: Date.now(), since: performance.now(),
  set(at) {
    const time = Date.parse(at);
    if (!Number.isNaN(time)) { this.base = time; this.since = performance.now(); }
  },
  now() { return this.base + (performance.now() - this.since); },
};

export const secondsSince = (at) => (at ? (clock.now() - Date.parse(at)) / 1000 : null);

/** "21 s ago", "in 41 s". */
export function ago(at) {
  const seconds = secondsSince(at);
  if (isMissing(seconds)) return NONE;
  if (Math.abs(seconds) < 1) return "now";
  const text = Math.abs(seconds) < 60 ? `${Math.floor(Math.abs(seconds))} s` : span(seconds);
  return seconds > 0 ? `${text} ago` : `in ${text}`;
}

let zone; // undefined: the browser's own
export const setZone = (name) => { zone = name === "utc" ? "UTC" : undefined; };
export const zoneName = () => zone ?? Intl.DateTimeFormat().resolvedOptions().timeZone;

const made = new Map();
function formatter(options) {
  const key = JSON.stringify([zone, options]);
  if (!made.has(key)) made.set(key, new Intl.DateTimeFormat(LANGUAGE, { ...options, timeZone: zone, hourCycle: "h23" }));
  return made.get(key);
}
const HOUR = { hour: "2-digit", minute: "2-digit" };
const SECOND = { ...HOUR, second: "2-digit" };
const DAY = { day: "numeric", month: "short", year: "numeric" };

/** 11:48, 11:48:39 or 11:48:39.113. */
export function time(at, exact = "s") {
  if (!at) return NONE;
  const options = exact === "min" ? HOUR : exact === "ms" ? { ...SECOND, fractionalSecondDigits: 3 } : SECOND;
  return formatter(options).format(new Date(at));
}
export const day = (at) => (at ? formatter(DAY).format(new Date(at)) : NONE);

/** For tooltips: the whole instant with its zone. */
export const instant = (at) => (at ? `${day(at)}, ${time(at, "ms")} ${zoneName()}` : "");

/** A time of today, or the day with it. */
export const dateText = (at) => (!at ? NONE : day(at) === day(clock.now()) ? time(at) : `${day(at)} ${time(at, "min")}`);

/** Cut to so many signs. */
export const short = (text, length) => (text.length > length ? `${text.slice(0, Math.max(length - 1, 0))}…` : text);

/** The last digits, as in the tables of the command line: the first ones are a time, which jobs of one minute share. */
export const shortId = (id) => (id || "").slice(-8);
export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** A browser started without a locale calls its language "en-US@posix", which Intl refuses. */
function usable(tag) {
  try { return Intl.getCanonicalLocales(tag)[0]; } catch { return undefined; }
}

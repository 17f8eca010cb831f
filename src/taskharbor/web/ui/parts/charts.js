/** Charts: inline SVG, coloured by the tokens of harbor.css. A gap where nothing was measured; the baseline is 0.
 *
 *     <Spark values tone label/>            a line of 26 px
 *     <Bar share tone target/>              a horizontal bar; share and target from 0 to 1
 *     <Columns values tone/>                little columns
 *     <Plot …/>                             the large one, with gridlines, marks, a cursor and a table
 */

import { LANGUAGE, NONE, number, span, three, time } from "../format.js";
import { html, useMemo, useReducer, useEffect, useRef, useState } from "./html.js";

const tenth = (value) => Math.round(value * 10) / 10;

/** The parts of a line between gaps, as paths: [line, area]. */
function paths(values, x, y, ground) {
  let line = "", area = "", first = null, last = null;
  values.forEach((value, index) => {
    if (value === null || value === undefined) {
      if (first !== null) area += `L${last} ${ground}L${first} ${ground}Z`;
      first = null;
      return;
    }
    const point = `${tenth(x(index))} ${tenth(y(value))}`;
    line += `${first === null ? "M" : "L"}${point}`;
    area += `${first === null ? "M" : "L"}${point}`;
    last = tenth(x(index));
    if (first === null) first = last;
  });
  if (first !== null) area += `L${last} ${ground}L${first} ${ground}Z`;
  return [line, area];
}

const most = (values) => values.reduce((high, value) => Math.max(high, value ?? 0), 0);
const TONES = { acc: ["s-acc", "f-acc"], ink: ["s-ink", "f-ink"], bad: ["s-bad", "f-bad"], warn: ["s-warn", "f-warn"] };

export function Spark({ values, tone = "acc", label, width = 140, height = 26 }) {
  const [line, area] = useMemo(() => {
    const top = most(values) || 1, step = width / Math.max(values.length - 1, 1);
    return paths(values, (index) => index * step, (value) => height - 1.4 - (value / top) * (height - 3), height);
  }, [values, width, height]);
  const named = label ? { role: "img", "aria-label": label } : { "aria-hidden": "true" };
  return html`<svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} preserveAspectRatio="none" ...${named}>
    <path d=${area} class=${`${TONES[tone][1]} wash`}/><path d=${line} class=${`thin ${TONES[tone][0]}`}/></svg>`;
}

export const Bar = ({ share, tone = "acc", height = 6, target = null }) => html`
  <svg class=${`bar ${tone}`} height=${height} aria-hidden="true">
    <rect width=${`${tenth(Math.min(Math.max(share || 0, 0), 1) * 100)}%`} height=${height} rx=${height / 2}/>
    ${target !== null && html`<rect class="tgt" x=${`${tenth(target * 100)}%`} y="-4" width="1.5" height=${height + 8}/>`}</svg>`;

export function Columns({ values, tone = "bad", width = 72, height = 18, label }) {
  const top = most(values) || 1, step = width / Math.max(values.length, 1);
  const named = label ? { role: "img", "aria-label": label } : { "aria-hidden": "true" };
  return html`<svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} ...${named}>
    ${values.map((value, index) => {
      const tall = value ? Math.max((value / top) * height, 1.6) : 0.6;
      return html`<rect key=${index} x=${tenth(index * step)} y=${tenth(height - tall)} width=${tenth(step * 0.68)} height=${tenth(tall)}
        rx=".6" class=${TONES[tone][1]} opacity=${value ? 1 : 0.25}/>`;
    })}</svg>`;
}

export const perSpan = (values, spans) => values.map((value) => (value == null ? null : value * spans));

/** What arrived and was done per second, or per minute where that is less than one. */
export function ratesOf({ arrived, done }, step) {
  const unit = Math.max(...arrived, ...done, 0) < step ? 60 : 1;
  return { arrived: perSpan(arrived, unit / step), done: perSpan(done, unit / step), word: unit === 1 ? "second" : "minute" };
}

/** The marks of /api/series as a chart shows them. */
export const marksOf = (series) => (series?.marks ?? []).map((mark) =>
  ({ at: mark.at, text: `${mark.kind === "release" ? `release ${mark.text}` : mark.text}${mark.by ? `, ${mark.by}` : ""}` }));

/** Round steps up to `high`: at most five lines. */
export function ticks(high) {
  if (!(high > 0)) return [0, 1];
  const raw = high / 4, size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * size).find((value) => value >= raw * 0.999);
  const found = [0];
  while (found.at(-1) < high * 0.999) found.push(found.at(-1) + step);
  return found;
}

// One cursor for all charts of a page.
const cursor = { index: null, listeners: new Set() };
function point(index) {
  if (index === cursor.index) return;
  cursor.index = index;
  cursor.listeners.forEach((listener) => listener());
}
function useCursor() {
  const [, again] = useReducer((count) => count + 1, 0);
  useEffect(() => { cursor.listeners.add(again); return () => cursor.listeners.delete(again); }, []);
  return cursor.index;
}

const LEFT = 36;

/** Lines above, columns below.
 *
 * @param {{ at: (index: number) => Date, count: number, lines: {name: string, values: number[], tone: string, isFilled?: boolean}[],
 *           columns?: {name: string, values: number[], tone: string}, marks?: {at: string, text: string}[], label: string,
 *           read: (value: number) => string, onWindow?: (from: number, to: number) => void }} props
 *   `onWindow` is called with the first and last index of a drag. */
export function Plot({ at, count, lines, columns, marks = [], label, read, onWindow }) {
  const [width, measure] = useState(760);
  const [from, drag] = useState(null);
  const [isTable, asTable] = useState(false);
  const box = useRef(null);
  const index = useCursor();
  useEffect(() => {
    if (!box.current) return undefined;
    const watch = new ResizeObserver(([entry]) => measure(Math.max(Math.round(entry.contentRect.width), 200)));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, [isTable]);
  if (isTable) return html`<div class="card plotcard"><${Table} ...${{ at, count, lines, columns, read }} onClose=${() => asTable(false)}/></div>`;
  const height = columns ? 250 : 190, ground = columns ? 174 : 170, top = 18;
  const levels = ticks(Math.max(...lines.map((one) => most(one.values))));
  const x = (position) => LEFT + (position * (width - LEFT)) / Math.max(count - 1, 1);
  const y = (value) => ground - (value / levels.at(-1)) * (ground - top);
  const indexAt = (event) => {
    const inside = event.currentTarget.getBoundingClientRect();
    return Math.min(Math.max(Math.round(((event.clientX - inside.left - LEFT) / (inside.width - LEFT)) * (count - 1)), 0), count - 1);
  };
  const released = (event) => {
    const to = indexAt(event);
    if (from !== null && onWindow && Math.abs(to - from) > 1) onWindow(Math.min(from, to), Math.max(from, to));
    drag(null);
  };
  const moving = { onPointerMove: (event) => point(indexAt(event)), onPointerLeave: () => { point(null); drag(null); },
    onPointerDown: (event) => onWindow && drag(indexAt(event)), onPointerUp: released };
  return html`<div class="card pad plotcard" ref=${box}>
    <svg class="plot" width="100%" height=${height} viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${label} ...${moving}>
      ${levels.map((level) => html`<line key=${`l${level}`} x1=${LEFT} x2=${width} y1=${y(level)} y2=${y(level)} class="grid"/>
        <text key=${`t${level}`} x="0" y=${y(level) + 4}>${Number.isInteger(level) ? number(level) : three(level)}</text>`)}
      ${columns && html`<${Below} ...${columns} x=${x} width=${width} count=${count}/>`}
      ${hours(count, at, width).map(([position, anchor, text]) => html`
        <text key=${`h${position}`} x=${x(position)} y=${height - 2} text-anchor=${anchor}>${text}</text>`)}
      ${lines.map((one) => {
        const [line, area] = paths(one.values, x, y, ground);
        return html`<g key=${one.name}>${one.isFilled && html`<path d=${area} class=${`${TONES[one.tone][1]} wash`}/>`}
          <path d=${line} class=${`thin ${TONES[one.tone][0]}`}/></g>`;
      })}
      ${marks.map((mark, position) => html`<${Mark} key=${mark.at + mark.text} mark=${mark} at=${at} count=${count} x=${x} width=${width} bottom=${columns ? 232 : ground} row=${position % 2}/>`)}
      ${from !== null && index !== null && html`<rect x=${Math.min(x(from), x(index))} y=${top} width=${Math.abs(x(index) - x(from))} height=${ground - top} class="f-acc wash"/>`}
      ${index !== null && index < count && html`<line x1=${x(index)} x2=${x(index)} y1=${top} y2=${columns ? 232 : ground} class="s-ink"/>`}
    </svg>
    <div class="plotfoot"><span class="dim">${index !== null && index < count ? reading(index, at, lines, columns, read) : ""}</span>
      <button class="btn bare small end" type="button" onClick=${() => asTable(true)}>As table</button></div></div>`;
}

const reading = (index, at, lines, columns, read) =>
  [time(at(index), "min"), ...lines.map((one) => `${one.name} ${read(one.values[index])}`),
    ...(columns ? [`${columns.name} ${number(columns.values[index])}`] : [])].join(" · ");

function Below({ values, tone, x, width, count }) {
  const top = ticks(most(values)).at(-1), bar = Math.min(Math.max(((width - LEFT) / Math.max(count, 1)) * 0.66, 1), 9);
  return html`<g><line x1=${LEFT} x2=${width} y1="232" y2="232" class="grid"/><text x="0" y="236">0</text><text x="0" y="196">${number(top)}</text>
    ${values.map((value, index) => value ? html`<rect key=${index} x=${tenth(Math.min(x(index), width - bar))} width=${tenth(bar)} rx="1" class=${TONES[tone][1]}
      y=${tenth(232 - Math.max((value / top) * 40, 1.5))} height=${tenth(Math.max((value / top) * 40, 1.5))}/>` : null)}</g>`;
}

function Mark({ mark, at, count, x, width, bottom, row }) {
  const first = at(0).getTime(), last = at(count - 1).getTime(), share = (Date.parse(mark.at) - first) / (last - first);
  if (!(share >= 0 && share <= 1)) return null;
  const place = tenth(x(share * (count - 1))), isRight = place > width - 150;
  return html`<g><line x1=${place} x2=${place} y1="6" y2=${bottom} class="mark"/>
    <text class="flag wide" x=${isRight ? place - 5 : place + 5} y=${10 + row * 12} text-anchor=${isRight ? "end" : "start"}>${mark.text}</text></g>`;
}

/** Three to five instants below a chart. */
function hours(count, at, width) {
  const parts = width < 420 ? 1 : 4;
  const isLong = at(count - 1) - at(0) > 36 * 3600e3;
  const text = (index) => (isLong ? at(index).toLocaleDateString(LANGUAGE, { day: "numeric", month: "short" }) : time(at(index), "min"));
  return Array.from({ length: parts + 1 }, (_, part) => {
    const position = ((count - 1) * part) / parts;
    return [position, part === 0 ? "start" : part === parts ? "end" : "middle", text(Math.round(position))];
  });
}

function Table({ at, count, lines, columns, read, onClose }) {
  const heads = [...lines.map((one) => [one.name, one.values, read]), ...(columns ? [[columns.name, columns.values, number]] : [])];
  return html`<div class="scroll" tabindex="0" role="region" aria-label="The chart as a table"><table class="tight">
    <thead><tr><th>Time</th>${heads.map(([name]) => html`<th key=${name} class="num">${name}</th>`)}</tr></thead>
    <tbody>${Array.from({ length: count }, (_, back) => count - 1 - back).map((index) => html`<tr key=${index}><td>${time(at(index), "min")}</td>
      ${heads.map(([name, values, shown]) => html`<td key=${name} class="num">${values[index] == null ? NONE : shown(values[index])}</td>`)}</tr>`)}</tbody></table></div>
    <div class="more"><button class="btn bare small end" type="button" onClick=${onClose}>As chart</button></div>`;
}

/** A share on a logarithmic scale from 0.1 s to a day: for waits. */
export const onLogScale = (seconds) => Math.min(Math.max((Math.log10(Math.max(seconds, 0.1)) + 1) / (Math.log10(86400) + 1), 0), 1);
export const waitText = (seconds) => span(seconds);

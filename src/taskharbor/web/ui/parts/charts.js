/** Charts: inline SVG, coloured by the tokens of harbor.css. A gap where nothing was measured; the baseline is 0.
 *
 *     <Spark values tone label/>            a line of 26 px
 *     <Bar share tone target/>              a horizontal bar; share and target from 0 to 1
 *     <Columns values tone/>                little columns
 *     <Plot …/>                             the large one, with gridlines, marks, a cursor and a table
 *     <FlowPlot …/>                         what arrived and was done, as a Plot below its words
 */

import { LANGUAGE, NONE, number, three, time } from "../format.js";
import { Button } from "./controls.js";
import { html, useEffect, useMemo, useRef, useSet, useState } from "./html.js";

const tenth = (value) => Math.round(value * 10) / 10;
const within = (value, low, high) => Math.min(Math.max(value, low), high);

/** A line with gaps, as paths: [line, area]. */
function paths(values, x, y, ground) {
  const runs = [[]];
  values.forEach((value, index) => { if (value == null) runs.push([]); else runs.at(-1).push([tenth(x(index)), tenth(y(value))]); });
  const found = runs.filter((run) => run.length).map((run) => [`M${run.map((point) => point.join(" ")).join("L")}`, `L${run.at(-1)[0]} ${ground}L${run[0][0]} ${ground}Z`]);
  return [found.map(([line]) => line).join(""), found.flat().join("")];
}

const most = (values) => values.reduce((high, value) => Math.max(high, value ?? 0), 0);

const Line = ({ of: [line, area], tone, isFilled = true }) => html`${isFilled && html`<path d=${area} class=${`f-${tone} wash`}/>`}<path d=${line} class=${`thin s-${tone}`}/>`;

const Picture = ({ width, height, label, children, ...rest }) => html`<svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role=${label && "img"} aria-label=${label} aria-hidden=${label ? undefined : "true"} ...${rest}>${children}</svg>`;

export function Spark({ values, tone = "acc", label, width = 140, height = 26 }) {
  const drawn = useMemo(() => {
    const top = most(values) || 1, step = width / Math.max(values.length - 1, 1);
    return paths(values, (index) => index * step, (value) => height - 1.4 - (value / top) * (height - 3), height);
  }, [values]);
  return html`<${Picture} width=${width} height=${height} label=${label} preserveAspectRatio="none"><${Line} of=${drawn} tone=${tone}/><//>`;
}

export const Bar = ({ share, tone = "acc", height = 6, target = null }) => html`
  <svg class=${`bar ${tone}`} height=${height} aria-hidden="true">
    <rect width=${`${tenth(within(share || 0, 0, 1) * 100)}%`} height=${height} rx=${height / 2}/>
    ${target !== null && html`<rect class="tgt" x=${`${tenth(target * 100)}%`} y="-4" width="1.5" height=${height + 8}/>`}</svg>`;

export function Columns({ values, tone = "bad", width = 72, height = 18, label }) {
  const top = most(values) || 1, step = width / Math.max(values.length, 1);
  return html`<${Picture} width=${width} height=${height} label=${label}>${values.map((value, index) => {
    const tall = value ? Math.max((value / top) * height, 1.6) : 0.6;
    return html`<rect x=${tenth(index * step)} y=${tenth(height - tall)} width=${tenth(step * 0.68)} height=${tenth(tall)} rx=".6" class=${`f-${tone}`} opacity=${value ? 1 : 0.25}/>`;
  })}<//>`;
}

/** Round steps up to `high`: at most five lines. */
export function ticks(high) {
  if (!(high > 0)) return [0, 1];
  const raw = high / 4, size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * size).find((value) => value >= raw * 0.999);
  const found = [0];
  while (found.at(-1) < high * 0.999) found.push(found.at(-1) + step);
  return found;
}

/** Jobs that arrived and that were done per second, or per minute where that is less than one; columns below.
 *
 * @param {{ series: any, columns: any, label: (rates: any) => string, onWindow?: Function, none?: any }} props `series` has from, step_s,
 *   arrived, done and marks; `none` is drawn in place of the chart */
export function FlowPlot({ series: { from, step_s: step = 0, arrived = [], done = [], marks }, columns, label, onWindow, none }) {
  const unit = Math.max(...arrived, ...done, 0) < step ? 60 : 1, word = unit === 1 ? "second" : "minute";
  const [came, went] = [arrived, done].map((values) => values.map((value) => (value == null ? null : (value * unit) / step)));
  return html`<div class="cap"><h2>Jobs per ${word}</h2><span class="end row gap"><span class="key ink"><i></i>arrived</span><span class="key"><i></i>done</span>
      <span class=${`key ${columns.tone}`}><i></i>${columns.name}</span></span></div>
    ${none || html`<${Plot} at=${(index) => new Date(Date.parse(from) + index * step * 1000)} count=${done.length} marks=${marks ?? []} onWindow=${onWindow} columns=${columns} label=${label({ word, came, went })}
      lines=${[{ name: "arrived", values: came, tone: "ink" }, { name: "done", values: went, tone: "acc", isFilled: true }]}/>`}`;
}

// One cursor for all charts of a page.
let cursor = null;
const pointed = new Set();
function point(index) {
  if (index === cursor) return;
  cursor = index;
  pointed.forEach((listener) => listener());
}

const LEFT = 36, TOP = 18, GROUND = 174, FLOOR = 232;

/** Lines above, columns below.
 *
 * @param {{ at: (index: number) => Date, count: number, lines: {name: string, values: number[], tone: string, isFilled?: boolean}[],
 *           columns: {name: string, values: number[], tone: string}, marks: {at: string, text: string}[], label: string, onWindow?: (from: number, to: number) => void }} props
 *   `onWindow` is called with the first and last index of a drag. */
function Plot({ at, count, lines, columns, marks, label, onWindow }) {
  const [width, measure] = useState(760);
  const [from, drag] = useState(null);
  const [isTable, asTable] = useState(false);
  const box = useRef(null);
  useSet(pointed);
  useEffect(() => {
    if (isTable) return undefined;
    const watch = new ResizeObserver(([entry]) => measure(Math.max(Math.round(entry.contentRect.width), 200)));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, [isTable]);
  const read = [...lines.map((one) => [one.name, one.values, three]), [columns.name, columns.values, number]];
  const turn = html`<${Button} look="bare small end" onClick=${() => asTable(!isTable)}>As ${isTable ? "chart" : "table"}<//>`;
  if (isTable) {
    return html`<div class="card plotcard"><div class="scroll" tabindex="0" role="region" aria-label="The chart as a table"><table class="tight">
      <thead><tr><th>Time</th>${read.map(([name]) => html`<th class="num">${name}</th>`)}</tr></thead>
      <tbody>${Array.from({ length: count }, (_, back) => count - 1 - back).map((index) => html`<tr><td>${time(at(index), "min")}</td>
        ${read.map(([, values, text]) => html`<td class="num">${text(values[index])}</td>`)}</tr>`)}</tbody></table></div><div class="more">${turn}</div></div>`;
  }
  const index = cursor !== null && cursor < count ? cursor : null;
  const levels = ticks(Math.max(...lines.map((one) => most(one.values))));
  const ends = [0, 0]; // of the texts in both rows above the chart
  const x = (position) => LEFT + (position * (width - LEFT)) / Math.max(count - 1, 1);
  const y = (value) => GROUND - (value / levels.at(-1)) * (GROUND - TOP);
  const indexAt = (event) => {
    const inside = event.currentTarget.getBoundingClientRect();
    return within(Math.round(((event.clientX - inside.left - LEFT) / (inside.width - LEFT)) * (count - 1)), 0, count - 1);
  };
  const released = (event) => {
    const to = indexAt(event);
    if (from !== null && Math.abs(to - from) > 1) onWindow(Math.min(from, to), Math.max(from, to));
    drag(null);
  };
  return html`<div class="card pad plotcard" ref=${box}>
    <svg class="plot" width="100%" height="250" viewBox=${`0 0 ${width} 250`} role="img" aria-label=${label} onPointerMove=${(event) => point(indexAt(event))}
      onPointerLeave=${() => { point(null); drag(null); }} onPointerDown=${(event) => onWindow && drag(indexAt(event))} onPointerUp=${released}>
      ${levels.map((level) => html`<line x1=${LEFT} x2=${width} y1=${y(level)} y2=${y(level)} class="grid"/>
        <text x="0" y=${y(level) + 4}>${Number.isInteger(level) ? number(level) : three(level)}</text>`)}
      <${Below} ...${columns} x=${x} width=${width} count=${count}/>
      ${hours(count, at, width).map(([position, anchor, text]) => html`<text x=${x(position)} y="248" text-anchor=${anchor}>${text}</text>`)}
      ${lines.map((one) => html`<${Line} ...${one} isFilled=${one.isFilled ?? false} of=${paths(one.values, x, y, GROUND)}/>`)}
      ${marks.map((mark) => markAt(mark, at, count, x, width, ends))}
      ${from !== null && index !== null && html`<rect x=${Math.min(x(from), x(index))} y=${TOP} width=${Math.abs(x(index) - x(from))} height=${GROUND - TOP} class="f-acc wash"/>`}
      ${index !== null && html`<line x1=${x(index)} x2=${x(index)} y1=${TOP} y2=${FLOOR} class="s-ink"/>`}
    </svg>
    <div class="plotfoot"><span class="dim">${index !== null && [time(at(index), "min"), ...read.map(([name, values, text]) => `${name} ${text(values[index])}`)].join(" · ")}</span>${turn}</div></div>`;
}

function Below({ values, tone, x, width, count }) {
  const top = ticks(most(values)).at(-1), bar = within(((width - LEFT) / Math.max(count, 1)) * 0.66, 1, 9);
  return html`<line x1=${LEFT} x2=${width} y1=${FLOOR} y2=${FLOOR} class="grid"/><text x="0" y="236">0</text><text x="0" y="196">${number(top)}</text>
    ${values.map((value, index) => {
      const tall = Math.max((value / top) * 40, 1.5);
      return value > 0 && html`<rect x=${tenth(x((index * (count - 1)) / count))} width=${tenth(bar)} rx="1" class=${`f-${tone}`} y=${tenth(FLOOR - tall)} height=${tenth(tall)}/>`;
    })}`;
}

/** A release, or a changed setting and by whom; a text that would lie on another one is left out. */
function markAt({ at: instant, kind, text, by }, at, count, x, width, ends) {
  const first = at(0).getTime(), share = (Date.parse(instant) - first) / (at(count - 1) - first);
  if (!(share >= 0 && share <= 1)) return null;
  const place = tenth(x(share * (count - 1))), words = (kind === "release" ? "release " : "") + text + (by ? `, ${by}` : ""), wide = words.length * 7;
  const from = place + 5 + wide > width ? place - 5 - wide : place + 5, row = ends.findIndex((end) => from > end);
  if (row >= 0) ends[row] = from + wide;
  return html`<line x1=${place} x2=${place} y1="6" y2=${FLOOR} class="mark"/>${row >= 0 && html`<text class="flag wide" x=${from} y=${10 + row * 12}>${words}</text>`}`;
}

/** Three to five instants below a chart. */
function hours(count, at, width) {
  const parts = width < 420 ? 1 : 4, isLong = at(count - 1) - at(0) > 36 * 3600e3;
  return Array.from({ length: parts + 1 }, (_, part) => {
    const position = ((count - 1) * part) / parts, instant = at(Math.round(position));
    return [position, part === 0 ? "start" : part === parts ? "end" : "middle", isLong ? instant.toLocaleDateString(LANGUAGE, { day: "numeric", month: "short" }) : time(instant, "min")];
  });
}

/** A share on a logarithmic scale from 0.1 s to a day: for waits. */
export const onLogScale = (seconds) => within((Math.log10(Math.max(seconds, 0.1)) + 1) / (Math.log10(86400) + 1), 0, 1);

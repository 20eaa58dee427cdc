// Lines over time, drawn by uPlot (vendor/uplot.js, which is a script of its own and so a global).
//
// A line differs from the others by its dashes too. What a canvas shows is also said: its name tells the newest values,
// and `Figures` (below) has all of them as a table. Charts on one view share the cursor.

import { classes, html, useEffect, useRef, useState, useStore } from "./lib.js";
import { Help } from "./help.js";
import { NONE, count, moment } from "./format.js";
import { language, t } from "./i18n.js";
import { colour, colours } from "./theme.js";

const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3]];
const FONT = "12px system-ui, sans-serif";
/** The steps of an axis of whole numbers. */
const WHOLE = Array.from({ length: 9 }, (_, power) => [1, 2, 5].map((step) => step * 10 ** power)).flat();

/** The last value of a line that is there. */
export const newest = (values) => values.findLast((value) => value !== null && value !== undefined) ?? null;

/**
 * A chart with its title and legend.
 *
 * `times`: seconds of the run; `lines`: `[{name, values, colour, dash, fill, dots}]`, values as long as `times` with null where
 * nothing is known; `band`: the numbers of the two lines between which it is filled; `range`: `[from, to]` of the axis;
 * `write`: how a value reads; `top`: the axis' end, where that is known; `help`: the name of the words that explain it;
 * `wide`: it may have the room of two; `onPeriod(from, to)`: the viewer drew over a part.
 */
export function Chart({ title, help, times, lines, band, range, write, top, wide, onPeriod }) {
  const place = useRef(), drawn = useRef(null), latest = useRef();
  const [at, setAt] = useState(null);
  const spoken = useStore(language), painted = useStore(colours);
  latest.current = { range, write, top, onPeriod, lines };
  const shape = `${spoken} ${lines.map((line) => `${line.name}/${line.colour}`).join()}`;
  useEffect(() => {
    if (!window.uPlot) return undefined; // it did not load: the figures of the legend and the table are still there
    const chart = made(place.current, latest, setAt, lines, band, [times, ...lines.map((line) => line.values)]);
    drawn.current = chart;
    const watcher = new ResizeObserver(() => chart.setSize(size(place.current)));
    watcher.observe(place.current);
    return () => {
      watcher.disconnect();
      chart.destroy();
    };
  }, [shape]);
  useEffect(() => drawn.current?.redraw(false, true), [painted]);
  useEffect(() => {
    drawn.current?.setData([times, ...lines.map((line) => line.values)], true);
  }, [times, lines, range[0], range[1]]);
  const shown = (line) => (at === null ? newest(line.values) : line.values[at] ?? null);
  const said = lines.map((line) => `${line.name} ${write(newest(line.values))}`).join(t("unit.comma"));
  return html`<figure class=${classes("chart", wide && "wide")}>
    <figcaption><${Help} of=${help}>${title}<//>
      <ul class="legend">${lines.map((line, index) => html`<li key=${line.name}>
        <${Mark} colour=${line.colour} dash=${DASHES[line.dash ?? index % DASHES.length]} /> ${line.name} <b>${write(shown(line))}</b></li>`)}
        ${at !== null && html`<li class="soft">${t("chart.at", { when: moment(times[at], 1) })}</li>`}</ul>
    </figcaption>
    <div class="canvas" ref=${place} role="img" aria-label=${t("chart.says", { title, said: said || NONE })}></div>
  </figure>`;
}

function Mark({ colour: name, dash }) {
  return html`<svg class=${`mark ${name}`} width="22" height="10" aria-hidden="true"><line x1="1" x2="21" y1="5" y2="5" stroke-dasharray=${dash.join(" ")} /></svg>`;
}

const size = (place) => ({ width: Math.max(120, place.clientWidth), height: Math.max(80, place.clientHeight) });

function made(place, latest, setAt, lines, band, values) {
  const axis = { font: FONT, stroke: () => colour("soft"), grid: { stroke: () => colour("line"), width: 1 }, ticks: { show: false } };
  const select = (chart) => {
    const { left, width } = chart.select;
    if (width > 4) latest.current.onPeriod?.(chart.posToVal(left, "x"), chart.posToVal(left + width, "x"));
    chart.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
  };
  const options = {
    ...size(place),
    legend: { show: false },
    padding: [8, 18, 0, 0],
    cursor: {
      sync: { key: "page" }, y: false, points: { size: 6 },
      drag: { x: Boolean(latest.current.onPeriod), y: false, setScale: false },
    },
    scales: {
      x: { time: false, range: () => latest.current.range },
      y: { range: (chart, low, high) => [Math.min(0, low ?? 0), latest.current.top ?? ((high ?? 0) * 1.08 || 1)] },
    },
    axes: [
      { ...axis, size: 26, space: 70, values: (chart, splits) => splits.map((value) => moment(value, splits[1] - splits[0] < 1 ? 1 : 0)) },
      { ...axis, size: 62, space: 34, incrs: latest.current.write === count ? WHOLE : undefined, values: (chart, splits) => splits.map((value) => latest.current.write(value)) },
    ],
    series: [
      {},
      ...lines.map((line, index) => ({
        stroke: () => colour(line.colour), width: 2, dash: DASHES[line.dash ?? index % DASHES.length], points: line.dots ? { show: true, size: 4, width: 1 } : { show: false },
        fill: line.fill ? () => faded(colour(line.colour)) : undefined, spanGaps: Boolean(line.dots),
      })),
    ],
    bands: band ? [{ series: [band[0] + 1, band[1] + 1], fill: () => faded(colour(lines[band[0]].colour)) }] : [],
    hooks: { setSelect: [select], setCursor: [(chart) => setAt(chart.cursor.idx ?? null)] },
  };
  return new window.uPlot(options, values, place);
}

const faded = (text) => text.replace(/^rgb\((.*)\)$/, "rgba($1, 0.16)");

/** All values of charts as one table, for who reads rather than looks. `columns`: `[{name, values, write}]`. */
export function Figures({ title, times, columns, most = 60 }) {
  const [open, setOpen] = useState(false);
  const step = Math.max(1, Math.ceil(times.length / most));
  const rows = open ? times.map((_, index) => index).filter((index) => (times.length - 1 - index) % step === 0).reverse() : [];
  return html`<details class="figures" onToggle=${(event) => setOpen(event.target.open)}>
    <summary>${title}</summary>
    <div class="scroll" tabindex="0" role="group" aria-label=${title}><table>
      <thead><tr><th scope="col">${t("chart.time")}</th>${columns.map((column) => html`<th scope="col">${column.name}</th>`)}</tr></thead>
      <tbody>${rows.map((index) => html`<tr key=${times[index]}><th scope="row">${moment(times[index], 1)}</th>
        ${columns.map((column) => html`<td>${column.write(column.values[index])}</td>`)}</tr>`)}</tbody>
    </table></div>
  </details>`;
}

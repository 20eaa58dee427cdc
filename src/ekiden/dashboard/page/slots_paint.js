// Slots by time, on a canvas: one line a slot, one bar a stay of a request in it.
//
// What a request does is told by the pattern and the height, whose it is by the colour (or the other way round where the
// viewer colours by phase):
//   decode      filled                    preempted   a thin dashed band: it keeps the slot, its blocks are gone
//   prefill     stripes                   paused      a hollow band in a line of its own, as it has no slot
//   recompute   stripes both ways         padding     a thin grey line: the row is computed for nobody
// A red end with a cross: aborted, over its deadline, or an error.

import { brief, moment } from "./format.js";
import { colour } from "./theme.js";
import { tenantColour } from "./tenants.js";

export const PHASE_COLOURS = { prefill: "c0", decode: "c2", recompute: "c4", preempted: "c1", paused: "c3", padding: "other" };
const ROUGH_ENDS = new Set(["abort", "deadline", "error"]);
const AXIS = 22, TOP = 4, GUTTER = 8;
const TEXT = "system-ui, 'Noto Sans JP', 'Hiragino Sans', sans-serif";

/**
 * Where things are: `rows` lines of `row` CSS pixels, the first of them `slots` slots and then lanes of pauses, between
 * `left` and `width`. `place(bar)` is the line of a bar.
 */
export function layout({ width, slots, bars, height }) {
  const lanes = new Map(), free = [];
  for (const bar of bars) {
    if (bar.slot !== null && bar.slot !== undefined) continue;
    let lane = free.findIndex((end) => end <= bar.start);
    if (lane < 0) lane = free.length < 4 ? free.length : free.indexOf(Math.min(...free));
    free[lane] = bar.end ?? Infinity;
    lanes.set(bar.id, lane);
  }
  const highest = bars.reduce((most, bar) => Math.max(most, (bar.slot ?? -1) + 1), slots);
  const rows = highest + free.length;
  const row = Math.max(5, Math.min(34, Math.floor((height - AXIS - TOP) / Math.max(1, rows))));
  return {
    slots: highest, lanes: free.length, rows, row, width, height: rows * row + AXIS + TOP + (free.length ? GUTTER : 0),
    left: width < 520 ? 26 : 40,
    place: (bar) => lanes.has(bar.id) ? highest + lanes.get(bar.id) : bar.slot,
    y: (line) => TOP + line * row + (line >= highest ? GUTTER : 0),
  };
}

/** The moment at a pixel, and the pixel of a moment. */
export const timeAt = (plan, from, to, x) => from + ((x - plan.left) / (plan.width - plan.left)) * (to - from);
export const pixelOf = (plan, from, to, time) => plan.left + ((time - from) / (to - from)) * (plan.width - plan.left);

/** The bar under a point, the newest first; short ones may be missed by a few pixels. */
export function barAt(plan, bars, from, to, now, x, y) {
  const line = Array.from({ length: plan.rows }, (_, index) => index).find((index) => y >= plan.y(index) && y < plan.y(index) + plan.row);
  if (line === undefined || x < plan.left) return null;
  const time = timeAt(plan, from, to, x), slack = ((to - from) / (plan.width - plan.left)) * 3;
  return bars.findLast((bar) => plan.place(bar) === line && bar.start - slack <= time && (bar.end ?? now) + slack >= time) ?? null;
}

/** Paints everything. `marks`: `[{at, sign}]` above the bars; `gaps`: `[{start, end}]`; `chosen`: `[from, to]` or null. */
export function paint(canvas, plan, { bars, from, to, now, selected, by, marks, gaps, chosen, words }) {
  const ratio = devicePixelRatio || 1, context = canvas.getContext("2d");
  if (canvas.width !== Math.round(plan.width * ratio) || canvas.height !== Math.round(plan.height * ratio)) {
    canvas.width = Math.round(plan.width * ratio);
    canvas.height = Math.round(plan.height * ratio);
  }
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, plan.width, plan.height);
  const x = (time) => pixelOf(plan, from, to, time);
  ground(context, plan, words);
  ticks(context, plan, from, to, x);
  context.save();
  context.beginPath();
  context.rect(plan.left, 0, plan.width - plan.left, plan.height - AXIS);
  context.clip();
  for (const gap of gaps) lost(context, plan, x(gap.start), x(gap.end));
  for (const bar of bars) {
    const line = plan.place(bar);
    if (line < plan.rows) stay(context, plan, bar, x, plan.y(line), now, by, bar.id === selected, ratio);
  }
  for (const mark of marks) flag(context, x(mark.at), plan.height - AXIS);
  if (chosen) {
    context.globalAlpha = 0.2;
    context.fillStyle = colour("link");
    context.fillRect(x(chosen[0]), 0, x(chosen[1]) - x(chosen[0]), plan.height - AXIS);
    context.globalAlpha = 1;
  }
  context.restore();
}

function ground(context, plan, words) {
  context.font = `${Math.min(12, Math.max(9, plan.row - 2))}px ${TEXT}`;
  context.textBaseline = "middle";
  context.textAlign = "right";
  const every = [1, 2, 4, 8, 16, 32, 64].find((step) => step * plan.row >= 12) ?? 128;
  for (let line = 0; line < plan.rows; line++) {
    const y = plan.y(line);
    context.fillStyle = colour("card");
    context.fillRect(plan.left, y, plan.width - plan.left, plan.row - (plan.row > 8 ? 2 : 1));
    context.fillStyle = colour("soft");
    if (line < plan.slots && line % every === 0) context.fillText(String(line), plan.left - 5, y + plan.row / 2);
  }
  if (plan.lanes) context.fillText(words.paused, plan.left - 5, plan.y(plan.slots) + plan.row / 2);
}

const STEPS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400];

function ticks(context, plan, from, to, x) {
  const room = (plan.width - plan.left) / 78, step = STEPS.find((each) => (to - from) / each <= room) ?? STEPS.at(-1);
  context.font = `12px ${TEXT}`;
  context.textAlign = "center";
  for (let index = Math.max(0, Math.ceil(from / step)); index * step <= to; index++) {
    const at = Math.round(x(index * step)) + 0.5;
    if (at < plan.left) continue;
    context.fillStyle = colour("line");
    context.fillRect(at - 0.5, 0, 1, plan.height - AXIS + 4);
    context.fillStyle = colour("soft");
    if (at > plan.left + 16 && at < plan.width - 16) context.fillText(moment(index * step, step < 1 ? 1 : 0), at, plan.height - AXIS / 2 + 2);
  }
}

function stay(context, plan, bar, x, top, now, by, selected, ratio) {
  const height = plan.row - (plan.row > 8 ? 2 : 1), tint = by === "tenant" ? tenantColour(bar.tenant) : null;
  const end = x(bar.end ?? now);
  let widest = null;
  for (const [phase, start, stop] of bar.segments) {
    const left = x(start), width = Math.max(1, x(stop ?? now) - left);
    if (left > plan.width || left + width < plan.left) continue;
    segment(context, phase, tint ?? PHASE_COLOURS[phase] ?? "other", left, top, width, height, ratio);
    const seen = Math.min(left + width, plan.width) - Math.max(left, plan.left);
    if (phase === "decode" && seen > (widest?.seen ?? 30)) widest = { left: Math.max(left, plan.left), seen };
  }
  const begin = x(bar.start);
  context.fillStyle = colour("paper"); // neighbours in a slot stay apart
  context.fillRect(end - 0.5, top, 1, height);
  if (bar.end !== null && ROUGH_ENDS.has(bar.state)) cross(context, end, top, height);
  if (widest && height >= 13) {
    context.save();
    context.beginPath();
    context.rect(widest.left, top, widest.seen - 3, height);
    context.clip();
    context.font = `600 ${Math.min(12, height - 2)}px ${TEXT}`;
    context.textAlign = "left";
    context.fillStyle = colour("paper");
    context.fillText(by === "tenant" ? brief(bar.tenant, 30) : brief(bar.request_id, 20), widest.left + 4, top + height / 2 + 0.5);
    context.restore();
  }
  if (selected) {
    context.lineWidth = 2.5;
    context.strokeStyle = colour("ink");
    context.strokeRect(begin - 1, top - 0.5, Math.max(3, end - begin) + 2, height + 1);
  }
}

function segment(context, phase, name, left, top, width, height, ratio) {
  const tone = colour(name);
  if (phase === "decode") {
    context.fillStyle = tone;
    context.fillRect(left, top, width, height);
  } else if (phase === "prefill" || phase === "recompute") {
    context.fillStyle = stripes(context, tone, phase === "recompute", ratio);
    context.fillRect(left, top, width, height);
    context.fillStyle = tone;
    context.fillRect(left, top, width, 1);
    context.fillRect(left, top + height - 1, width, 1);
  } else if (phase === "preempted" || phase === "paused") {
    const band = Math.max(3, Math.round(height * (phase === "paused" ? 0.6 : 0.35))), y = top + (height - band) / 2;
    context.strokeStyle = tone;
    context.lineWidth = 1.5;
    context.setLineDash(phase === "preempted" ? [4, 3] : []);
    context.strokeRect(left + 0.75, y + 0.5, Math.max(1, width - 1.5), band - 1);
    context.setLineDash([]);
  } else {
    context.fillStyle = colour("edge");
    context.fillRect(left, top + height - Math.max(2, height / 5), width, Math.max(2, height / 5));
  }
}

const patterns = new Map();

/** Stripes of a colour on a paler ground of it. */
function stripes(context, tone, crossed, ratio) {
  const key = `${tone} ${colour("paper")} ${crossed} ${ratio}`;
  if (!patterns.has(key)) {
    if (patterns.size > 64) patterns.clear();
    const size = Math.round(6 * ratio), tile = document.createElement("canvas"), pen = tile.getContext("2d");
    tile.width = tile.height = size;
    pen.fillStyle = colour("paper");
    pen.fillRect(0, 0, size, size);
    pen.strokeStyle = tone;
    pen.lineWidth = 2 * ratio;
    for (const way of crossed ? [1, -1] : [1]) {
      for (const shift of [-size, 0, size]) {
        pen.beginPath();
        pen.moveTo(shift, way > 0 ? size : 0);
        pen.lineTo(shift + size, way > 0 ? 0 : size);
        pen.stroke();
      }
    }
    const pattern = context.createPattern(tile, "repeat");
    pattern.setTransform(new DOMMatrix().scale(1 / ratio));
    patterns.set(key, pattern);
  }
  return patterns.get(key);
}

function cross(context, end, top, height) {
  const size = Math.max(2, Math.min(4, height / 3)), middle = top + height / 2;
  context.fillStyle = colour("bad");
  context.fillRect(end - 3, top, 3, height);
  context.strokeStyle = colour("bad");
  context.lineWidth = 2;
  context.beginPath();
  context.moveTo(end + 2, middle - size);
  context.lineTo(end + 2 + 2 * size, middle + size);
  context.moveTo(end + 2, middle + size);
  context.lineTo(end + 2 + 2 * size, middle - size);
  context.stroke();
}

function lost(context, plan, left, right) {
  context.fillStyle = colour("open-back");
  context.fillRect(left, 0, Math.max(2, right - left), plan.height - AXIS);
  context.strokeStyle = colour("open");
  context.setLineDash([3, 3]);
  context.lineWidth = 1;
  context.strokeRect(left, 0.5, Math.max(2, right - left), plan.height - AXIS - 1);
  context.setLineDash([]);
}

/** A change of the rules. */
function flag(context, at, height) {
  context.fillStyle = colour("c3");
  context.fillRect(at - 0.75, 0, 1.5, height);
  context.beginPath();
  context.moveTo(at - 5, 0);
  context.lineTo(at + 5, 0);
  context.lineTo(at, 7);
  context.fill();
}

// What the page holds of the run that is being written: bars and points, gathered from frames and from periods that were
// asked for. It is bounded in time (KEPT) and in bars; what is older is asked for again when it is looked at.

import { get } from "./api.js";
import { store } from "./lib.js";
import { onFrame } from "./connection.js";

/** How far back things are kept, in seconds, and how many bars. */
export const KEPT = 900, MOST_BARS = 6_000;

/** `changed` counts what was taken in; `run`: id of the run; `since`: from here on nothing is missing, in its seconds;
 * `at`: its newest moment; `start`: its first moment that there is. */
export const held = store({ changed: 0, run: null, since: 0, at: 0 });

let bars = new Map(), points = [], fetching = null;

/** Those that touch a part of the run, in order of their beginnings. */
export function barsBetween(from, to) {
  return [...bars.values()].filter((bar) => bar.start <= to && (bar.end ?? Infinity) >= from).sort((a, b) => a.start - b.start);
}

/** The points that touch a part of the run. */
export const pointsBetween = (from, to) => points.filter((point) => point.t > from && point.t - point.seconds < to);

/** A bar that is held, by the id of its request: the newest stay. */
export const barOf = (request) => [...bars.values()].findLast((bar) => bar.request_id === request) ?? null;

onFrame((frame) => {
  if (!("at" in frame)) return;
  const now = held.get(), anew = frame.reset || frame.run_id !== now.run;
  if (anew) {
    bars = new Map();
    points = [];
  }
  for (const bar of frame.bars) bars.set(bar.id, bar);
  for (const point of frame.series) if (!points.length || point.t > points.at(-1).t) points.push(point);
  const first = points.length ? points[0].t - points[0].seconds : frame.at;
  const oldest = forget(frame.at);
  held.set({
    changed: now.changed + 1, run: frame.run_id, at: frame.at, since: Math.max(oldest, anew ? first : now.since),
  });
});

/** Lets go of what is old; returns from when on all is still there. */
function forget(at) {
  let since = at - KEPT;
  const ended = [...bars.values()].filter((bar) => bar.end !== null).sort((a, b) => a.end - b.end);
  ended.forEach((bar, index) => {
    if (bar.end >= since && index >= ended.length - MOST_BARS) return;
    bars.delete(bar.id);
    since = Math.max(since, bar.end);
  });
  points = points.filter((point) => point.t >= at - KEPT);
  return Math.max(0, since);
}

/** Asks for what is missing of the run from a moment on, and takes it in. Bars that frames brought are newer. */
export async function reach(from) {
  const { run, since, at } = held.get();
  const wanted = Math.max(from, at - KEPT, 0);
  if (fetching || run === null || wanted >= since - 0.5) return;
  fetching = get("period", { run, from: wanted, to: since });
  try {
    const period = await fetching;
    if (held.get().run !== run) return;
    for (const bar of period.bars) if (!bars.has(bar.id)) bars.set(bar.id, bar);
    points = [...period.series.filter((point) => !points.length || point.t < points[0].t), ...points];
    held.set((now) => ({ ...now, changed: now.changed + 1, since: period.whole ? wanted : now.since }));
  } finally {
    fetching = null;
  }
}

// The moving chart of slots: what slots_paint.js draws, with pointer and keys.
//
// A mouse draws over a period, a finger moves along the run, Ctrl and the wheel zoom, Shift and the wheel move; a plain
// wheel still scrolls the page. With the keyboard the chart is one stop: arrows go from bar to bar, Enter opens the
// request. Screen readers hear the bar that is chosen; the tables beside the chart have the same as text.

import { classes, html, useEffect, useMemo, useName, useRef, useState, useStore } from "./lib.js";
import { language, named, t } from "./i18n.js";
import { brief, count, line, moment, seconds } from "./format.js";
import { go } from "./router.js";
import { barAt, layout, paint, PHASE_COLOURS, timeAt } from "./slots_paint.js";
import { tenantColour } from "./tenants.js";
import { colours, still } from "./theme.js";

/** What a bar says: whose it is, and how long each phase took. */
export function barWords(bar, now) {
  const took = {};
  for (const [phase, start, end] of bar.segments) took[phase] = (took[phase] ?? 0) + (end ?? now) - start;
  const phases = Object.entries(took).map(([phase, time]) => `${named("phase", phase)} ${seconds(time)}`).join(t("unit.comma"));
  return { who: t("slots.of", { tenant: line(bar.tenant), slot: bar.slot ?? t("slots.none") }), phases, end: named("end", bar.state) };
}

/**
 * The chart. `range()` gives `[from, to]` whenever it is drawn, and `moving` says that it changes by itself; `now` is the
 * newest moment that is known. `onPeriod(from, to)`, `onPan(seconds)`, `onZoom(factor, at)`, `onKey(name)` ("pause",
 * "first", "last") are the viewer's wishes.
 */
export function SlotChart({ bars, slots, range, moving, now, marks, gaps, by, run, onPeriod, onPan, onZoom, onKey }) {
  const place = useRef(), canvas = useRef(), keys = useName("slots-keys");
  const [width, setWidth] = useState(0), [selected, select] = useState(null), [hovered, hover] = useState(null);
  const drag = useRef(null), spoken = useStore(language), painted = useStore(colours);
  const height = Math.max(150, Math.round(innerHeight * 0.55));
  const plan = useMemo(() => layout({ width, slots, bars, height }), [width, slots, bars, height]);
  const shown = bars.find((bar) => bar.id === selected);

  const draw = () => {
    if (!width) return;
    const [from, to] = drag.current?.range ?? range();
    const chosen = drag.current?.chosen ?? null, words = { paused: "‖" };
    paint(canvas.current, plan, { bars, from, to, now, selected, by, marks, gaps, chosen, words });
  };
  useEffect(draw);
  useEffect(draw, [spoken, painted]);
  useEffect(() => {
    const watcher = new ResizeObserver(() => setWidth(Math.floor(place.current.clientWidth)));
    watcher.observe(place.current);
    return () => watcher.disconnect();
  }, []);
  const latest = useRef();
  latest.current = draw;
  useEffect(() => {
    if (!moving || still()) return undefined;
    let frame = 0, odd = false;
    const step = () => {
      odd = !odd;
      if (odd) latest.current(); // thirty pictures a second are enough
      frame = requestAnimationFrame(step);
    };
    frame = requestAnimationFrame(step);
    return () => cancelAnimationFrame(frame);
  }, [moving]);

  const at = (event) => {
    const box = canvas.current.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const found = ({ x, y }) => barAt(plan, bars, ...(drag.current?.range ?? range()), now, x, y);
  const open = (bar) => bar && go(["request", bar.request_id], { run });

  const pointer = {
    onPointerDown(event) {
      if (event.button !== 0) return;
      drag.current = { ...at(event), range: range(), moved: false, touch: event.pointerType === "touch" };
      if (!drag.current.touch) canvas.current.setPointerCapture(event.pointerId);
    },
    onPointerMove(event) {
      const { x, y } = at(event), held = drag.current;
      if (!held) return hover(event.pointerType === "touch" ? null : { bar: found({ x, y }), x, y });
      if (!held.moved && Math.abs(x - held.x) < 5) return undefined;
      held.moved = true;
      hover(null);
      const [from, to] = held.range, time = (pixel) => Math.min(to, Math.max(from, timeAt(plan, from, to, pixel)));
      if (held.touch) {
        onPan(timeAt(plan, from, to, held.x) - timeAt(plan, from, to, x));
        drag.current = { ...held, x, range: range() };
      } else {
        held.chosen = [time(held.x), time(x)].sort((a, b) => a - b);
        draw();
      }
      return undefined;
    },
    onPointerUp(event) {
      const held = drag.current;
      if (!held) return;
      const bar = held.moved ? null : found(at(event));
      drag.current = null;
      if (held.chosen) onPeriod(...held.chosen);
      else if (!held.moved) open(bar);
    },
    onPointerCancel: () => (drag.current = null),
    onPointerLeave: () => hover(null),
  };

  useEffect(() => {
    const wheel = (event) => {
      const [from, to] = range(), sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
      if (event.ctrlKey || event.metaKey) onZoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(plan, from, to, at(event).x));
      else if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) onPan((sideways / plan.width) * (to - from));
      else return;
      event.preventDefault();
    };
    const element = canvas.current; // not by the view library, whose listeners of wheels may not prevent scrolling
    element.addEventListener("wheel", wheel, { passive: false });
    return () => element.removeEventListener("wheel", wheel);
  });

  const key = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const [from, to] = range(), ways = {
      ArrowRight: () => select(neighbour(bars, plan, shown, from, to, 1)), ArrowLeft: () => select(neighbour(bars, plan, shown, from, to, -1)),
      ArrowDown: () => select(across(bars, plan, shown, from, to, 1)), ArrowUp: () => select(across(bars, plan, shown, from, to, -1)),
      Enter: () => open(shown), Escape: () => select(null), " ": () => onKey("pause"), Home: () => onKey("first"), End: () => onKey("last"),
      PageUp: () => onPan((from - to) / 2), PageDown: () => onPan((to - from) / 2),
      "+": () => onZoom(0.5), "=": () => onZoom(0.5), "-": () => onZoom(2),
    };
    if (!(event.key in ways) || (event.key === "Escape" && !shown)) return;
    event.preventDefault();
    ways[event.key]();
  };
  const [from, to] = range();
  const label = t("slots.label", { from: moment(from), to: moment(to), requests: count(bars.length), slots: count(slots) });
  const words = shown && barWords(shown, now);
  return html`<div class="slots" ref=${place}>
    <div class="slots-keys" tabindex="0" role="application" aria-label=${label} aria-describedby=${keys} onKeyDown=${key}>
      <canvas ref=${canvas} aria-hidden="true" class=${hovered?.bar ? "over" : ""} ...${pointer} data-row=${plan.row}
        style=${{ width: `${plan.width}px`, height: `${plan.height}px` }}></canvas>
    </div>
    <${Told} hovered=${hovered} now=${now} width=${plan.width} />
    <p class="soft keys" id=${keys}>${t("slots.keys")}</p>
    <p class="chosen" role="status">${words && html`<strong>${brief(shown.request_id, 40)}</strong> ${words.who} · ${words.phases} · ${words.end}`}</p>
  </div>`;
}

/** What the bar under the pointer says. Screen readers have the bar that is chosen by keys. */
function Told({ hovered, now, width }) {
  if (!hovered?.bar) return null;
  const words = barWords(hovered.bar, now), right = hovered.x > width / 2;
  const style = { top: `${hovered.y + 14}px`, [right ? "right" : "left"]: `${right ? width - hovered.x + 8 : hovered.x + 8}px` };
  return html`<div class="told" style=${style} aria-hidden="true"><strong>${brief(hovered.bar.request_id, 40)}</strong>
    <span>${words.who}</span><span>${words.phases}</span><span>${words.end}</span></div>`;
}

const visible = (bars, from, to) => bars.filter((bar) => bar.start < to && (bar.end ?? Infinity) > from);

/** The next bar in the same line; without one chosen, the newest. */
function neighbour(bars, plan, chosen, from, to, way) {
  if (!chosen) return visible(bars, from, to).at(-1)?.id ?? null;
  const row = bars.filter((bar) => plan.place(bar) === plan.place(chosen)).sort((a, b) => a.start - b.start);
  return (row[row.indexOf(chosen) + way] ?? chosen).id;
}

/** The bar of the next line that has one, nearest in time. */
function across(bars, plan, chosen, from, to, way) {
  const there = visible(bars, from, to);
  if (!chosen) return there.at(-1)?.id ?? null;
  const middle = Math.max(from, chosen.start);
  for (let row = plan.place(chosen) + way; row >= 0 && row < plan.rows; row += way) {
    const near = there.filter((bar) => plan.place(bar) === row).sort((a, b) => Math.abs(a.start - middle) - Math.abs(b.start - middle))[0];
    if (near) return near.id;
  }
  return chosen.id;
}

/** What patterns and colours mean. */
export function SlotLegend({ by, tenants, marked, shown = Object.keys(PHASE_COLOURS) }) {
  return html`<div class="keys-of">
    <ul class="legend" aria-label=${t("slots.phases")}>${shown.map((phase) => html`<li key=${phase}>
      <${Swatch} phase=${phase} name=${by === "tenant" ? "other" : PHASE_COLOURS[phase]} /> ${named("phase", phase)}</li>`)}
      <li><svg class="pattern" width="20" height="12" aria-hidden="true"><path d="M2 0v12M6 3l6 6M6 9l6-6" class="rough" /></svg> ${t("slots.rough")}</li>
      ${marked && html`<li><span aria-hidden="true">▼</span> ${t("slots.changed")}</li>`}</ul>
    ${by === "tenant" && html`<ul class="legend" aria-label=${t("slots.tenants")}>${tenants.map((name) => html`<li key=${name}>
      <span class=${classes("dot", tenantColour(name))} aria-hidden="true"></span> <span title=${line(name)}>${brief(name, 20)}</span></li>`)}</ul>`}
  </div>`;
}

function Swatch({ phase, name }) {
  const id = useName("swatch"), stripes = phase === "prefill" || phase === "recompute";
  return html`<svg class=${classes("pattern", name, phase)} width="20" height="12" aria-hidden="true">
    ${stripes && html`<defs><pattern id=${id} width="5" height="5" patternUnits="userSpaceOnUse"><path d=${phase === "prefill" ? "M0 5L5 0" : "M0 5L5 0M0 0L5 5"} class="stripe" /></pattern></defs>
      <rect width="20" height="12" fill=${`url(#${id})`} /><path d="M0 .5h20M0 11.5h20" class="stripe" />`}
    ${phase === "decode" && html`<rect width="20" height="12" class="full" />`}
    ${phase === "preempted" && html`<rect x="1" y="4" width="18" height="4" class="hollow dashed" />`}
    ${phase === "paused" && html`<rect x="1" y="2.5" width="18" height="7" class="hollow" />`}
    ${phase === "padding" && html`<rect y="9" width="20" height="3" class="pad" />`}
  </svg>`;
}

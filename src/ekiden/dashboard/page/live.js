// The engine at work: the moving chart of slots, and around it what the newest frame tells; or a period of a run, stopped.
//
// The address says what is shown: `#/live` follows the engine, `#/live?span=30` over so many seconds, and
// `#/live?run=ID&from=1&to=2` is a period, which anybody who may see the server sees again.

import { classes, html, useEffect, useMemo, useRef, useState, useStore } from "./lib.js";
import { STALE, age, connection, stale, useNow } from "./connection.js";
import { config } from "./config.js";
import { ControlsPanel, sorted } from "./controls_panel.js";
import { Curves } from "./curves.js";
import { Alerts, GuardPanel } from "./guard_panel.js";
import { line } from "./format.js";
import { t } from "./i18n.js";
import { barsBetween, held, pointsBetween, reach } from "./model.js";
import { PeriodPanels, usePeriod } from "./period.js";
import { QueuePanel } from "./queue.js";
import { rewrite, route } from "./router.js";
import { SlotChart, SlotLegend } from "./slots.js";
import { SlotTable } from "./slot_table.js";
import { TenantPanel } from "./tenant_panel.js";
import { meet } from "./tenants.js";
import { EngineTiles, PeriodTiles, Tiles } from "./tiles.js";
import { Toolbar } from "./toolbar.js";

export const SPANS = [10, 30, 60, 120, 300, 900];
/** The shortest period, in seconds. */
const LEAST = 0.2;
/** So many milliseconds after the viewer did something the address follows. */
const SETTLED = 400;

/** As exact as an address has it, so that whoever opens it sees the same. */
const hundredths = (seconds) => Math.round(seconds * 100) / 100;

const parsed = (text) => (text !== undefined && text !== "" && Number.isFinite(Number(text)) ? Number(text) : null);

/** What the address asks for: a period, or to follow. A run without a period is shown whole. */
function wish(query) {
  const from = parsed(query.from), to = parsed(query.to);
  if (query.run || (from !== null && to !== null && to > from)) return { follow: false, run: query.run ?? null, from, to };
  const span = parsed(query.span);
  return { follow: true, span: span && span > 0 ? Math.min(span, SPANS.at(-1)) : innerWidth < 700 ? 30 : 60 };
}

/** The last seconds before a moment; a run that is younger is shown from its beginning. */
const last = (span, to) => [Math.max(0, to - span), Math.max(to, Math.min(span, 5))];

/** The newest moment as the moving chart shows it: it runs from the frame before to the newest one in the time that lay
 * between them, so that it moves evenly and never beyond what is known. */
function edge() {
  const { at, before, gap } = pace, passed = age();
  return passed === null || !gap ? at : before + (at - before) * Math.min(1, passed / gap);
}

const pace = { at: 0, before: 0, gap: 0, run: null };
held.watch(({ at, run }) => {
  const gap = at - pace.at, same = run === pace.run;
  Object.assign(pace, { before: same && gap < STALE ? pace.at : at, gap: same ? Math.min(gap, STALE) : 0, at, run });
});

export function View({ query }) {
  const { frame } = useStore(connection), known = useStore(held), settings = useStore(config);
  const [shown, set] = useState(() => wish(query)), [by, colourBy] = useState("tenant");
  const show = (next) => set({ ...next, byHand: true });
  const address = useRef(JSON.stringify(query));
  useNow();
  useEffect(() => {
    const asked = JSON.stringify(query);
    if (asked !== address.current) set(wish(query)); // somebody came with another address
    address.current = asked;
  }, [query]);
  useEffect(() => {
    if (!shown.byHand) return undefined;
    const timer = setTimeout(() => {
      const { follow, span, run, from, to } = shown;
      rewrite("live", follow ? { span } : { run, from, to });
      address.current = JSON.stringify(route.get().query);
    }, SETTLED);
    return () => clearTimeout(timer);
  }, [shown]);

  const period = usePeriod(shown, known);
  const part = shown.follow ? followed(shown, known) : period.part;
  const live = shown.follow && frame && "slots" in frame;
  const bars = useMemo(() => part.bars, [part.key]), points = useMemo(() => part.points, [part.key]);
  const names = useMemo(() => [...new Set(bars.map((bar) => bar.tenant))].sort(), [bars]);
  meet(names);
  useEffect(() => void (shown.follow && reach(known.at - shown.span).catch(() => {})), [shown.follow, shown.span, known.run, known.since > known.at - (shown.span ?? 0)]);

  const bounds = part.bounds, range = () => (shown.follow ? last(shown.span, edge()) : [part.from, part.to]);
  const fixed = (from, to) => {
    const length = Math.min(Math.max(LEAST, to - from), Math.max(LEAST, bounds[1] - bounds[0]));
    const begin = Math.min(Math.max(bounds[0], from), Math.max(bounds[0], bounds[1] - length));
    show({ follow: false, run: part.run, from: hundredths(begin), to: hundredths(begin + length) });
  };
  const acts = {
    follow: (span = shown.span ?? SPANS.find((each) => each >= part.to - part.from) ?? SPANS.at(-1)) => show({ follow: true, span }),
    period: (from, to) => fixed(from, to),
    pan: (seconds) => fixed(range()[0] + seconds, range()[1] + seconds),
    zoom: (factor, at) => {
      const [from, to] = range();
      if (shown.follow) return acts.follow(Math.min(SPANS.at(-1), Math.max(1, Math.round(shown.span * factor))));
      const middle = at ?? (from + to) / 2;
      return fixed(middle - (middle - from) * factor, middle + (to - middle) * factor);
    },
    pause: () => (shown.follow ? fixed(...range()) : part.recording && acts.follow()),
    key: (name) => ({ pause: acts.pause, first: () => fixed(bounds[0], bounds[0] + range()[1] - range()[0]), last: () => part.recording && acts.follow() })[name](),
  };
  const began = part.started ?? (part.run === known.run ? frame?.started : null) ?? null;
  const slots = live ? frame.slots.length : part.slots ?? settings?.slots ?? 1;
  const marks = live ? sorted(frame.controls).set.map((one) => ({ at: frame.at - one.seconds })) : part.marks;
  return html`<h1 class="unseen">${t("nav.live")}</h1>
    <div class=${classes("live", shown.follow && stale() && "old")}>
      ${frame && "signals" in frame && part.run === frame.run_id && html`<${Alerts} frame=${frame} />`}
      ${!shown.follow && html`<${PeriodTiles} points=${points} bars=${bars} slots=${slots} />`}
      ${live ? html`<${Tiles} frame=${frame} />` : shown.follow && frame && html`<${EngineTiles} engine=${frame.engine} />`}
      <section class=${classes("panel chart-of-slots", shown.follow && !live && "old")} aria-labelledby="slots-title">
        <div class="head"><h2 id="slots-title">${t("slots.title")}</h2>
          <${Toolbar} shown=${shown} part=${part} began=${began} range=${range} acts=${acts} by=${by} colourBy=${colourBy} spans=${SPANS} /></div>
        ${!part.recording && html`<p class="open">${t("live.recorded", { run: line(part.run) })}</p>`}
        ${period.fault && html`<p class="bad" role="alert">${period.fault}</p>`}
        <${SlotChart} bars=${bars} slots=${slots} range=${range} moving=${shown.follow && !stale()} now=${part.now} marks=${marks} gaps=${part.gaps} by=${by}
          run=${part.run} onPeriod=${acts.period} onPan=${acts.pan} onZoom=${acts.zoom} onKey=${acts.key} />
        <${SlotLegend} by=${by} tenants=${names} marked=${marks.length > 0} />
        ${!part.whole && html`<p class="open">${t("live.cut")}</p>`}
        <${SlotTable} slots=${live ? frame.slots : null} bars=${bars} now=${part.now} run=${part.run} />
      </section>
      ${live && html`<div class="panels"><${TenantPanel} frame=${frame} /><${QueuePanel} frame=${frame} /></div>`}
      <${Curves} points=${points} range=${[part.from, part.to]} onPeriod=${acts.period} />
      ${live && html`<div class="panels"><${GuardPanel} frame=${frame} /><${ControlsPanel} frame=${frame} /></div>`}
      ${!shown.follow && period.found && html`<${PeriodPanels} period=${period.found} late=${period.late} />`}
    </div>`;
}

/** The newest part of the run that is being written. */
function followed({ span }, known) {
  const [from, to] = last(span, known.at);
  return {
    key: `${known.changed} ${span}`, run: known.run, from, to, now: to, bounds: [0, to], recording: true, slots: null, whole: true, started: null,
    bars: barsBetween(from - 3, to), points: pointsBetween(from - 3, to), gaps: [], marks: [],
  };
}

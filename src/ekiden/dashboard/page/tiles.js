// The figures of now, large: one tile each, with what it means on hover and on focus.

import { html } from "./lib.js";
import { Help } from "./help.js";
import { named, t } from "./i18n.js";
import { NONE, count, counts, number, seconds, share } from "./format.js";

function Tile({ help, title, value, unit, children }) {
  return html`<div class="tile"><dt><${Help} of=${help}>${title}<//></dt>
    <dd><b>${value}</b>${unit && html` <span class="unit">${unit}</span>`}${children && html`<small>${children}</small>`}</dd></div>`;
}

/** Three quantiles; the first one large. */
function Spread({ help, title, spread }) {
  return html`<${Tile} help=${help} title=${title} value=${seconds(spread.p50)}>
    ${spread.count ? t("tile.tail", { p95: seconds(spread.p95), p99: seconds(spread.p99) }) : t("tile.nothing", { seconds: NONE })}<//>`;
}

/** What the engine publishes of itself, where no ledger tells more. */
export function EngineTiles({ engine }) {
  return html`<dl class="tiles">
    <${Tile} help="running" title=${t("tile.running")} value=${count(engine.running)}>${t("tile.aside", { paused: count(engine.paused), preempted: count(engine.preempted) })}<//>
    <${Tile} help="waiting" title=${t("tile.waiting")} value=${count(engine.waiting)} />
    <${Tile} help="kv" title=${t("tile.kv")} value=${share(engine.kv_blocks_total ? engine.kv_blocks_used / engine.kv_blocks_total : null)} />
    <${Tile} title=${t("tile.made")} value=${count(engine.generation_tokens_total)} />
    <${Tile} title=${t("tile.restarts")} value=${count(engine.restarts)} />
  </dl>`;
}

/** Of the newest frame. */
export function Tiles({ frame }) {
  const { memory, pace, queue } = frame;
  const window = t("tile.window", { seconds: seconds(frame.window_seconds) });
  return html`<dl class="tiles" aria-label=${window}>
    <${Tile} help="running" title=${t("tile.running")} value=${count(frame.running)} unit=${`/ ${count(frame.slots.length)}`}>
      ${t("tile.aside", { paused: count(frame.paused), preempted: count(memory.preempted) })}<//>
    <${Tile} help="waiting" title=${t("tile.waiting")} value=${count(queue.waiting)}>
      ${queue.waiting ? t("tile.oldest", { seconds: seconds(queue.oldest_seconds), tokens: count(queue.prompt_tokens) }) : t("tile.nobody")}<//>
    <${Tile} help="output_rate" title=${t("tile.output_rate")} value=${number(pace.output_tokens_per_second)} unit=${t("tile.tokens")}>
      ${t("tile.prompt_rate", { n: number(pace.prompt_tokens_per_second) })}<//>
    <${Spread} help="ttft" title=${t("tile.ttft")} spread=${pace.ttft} />
    <${Spread} help="itl" title=${t("tile.itl")} spread=${pace.itl} />
    <${Spread} help="step" title=${t("tile.step")} spread=${pace.step} />
    <${Tile} help="kv" title=${t("tile.kv")} value=${share(memory.total ? memory.used / memory.total : null)}>
      ${t("tile.blocks", { used: count(memory.used), total: count(memory.total), size: count(memory.block_size) })}<//>
    <${Tile} help="moved" title=${t("tile.preemptions")} value=${count(memory.preemptions)}>
      ${t("tile.moved", { moved: count(memory.moved), swapped: count(memory.preempted_blocks) })}<//>
    <${Tile} help="ended" title=${t("tile.ended")} value=${count(Object.values(frame.ended).reduce((sum, each) => sum + each, 0))}>
      ${counts(frame.ended, (name) => named("end", name))}<//>
    <${Tile} help="refused" title=${t("tile.refused")} value=${count(Object.values(frame.refused).reduce((sum, each) => sum + each, 0))}>
      ${counts(frame.refused, (name) => named("refusal", name))}<//>
  </dl>`;
}

const there = (points, name) => points.map((point) => point[name]).filter((value) => value !== null && value !== undefined);
const most = (values) => (values.length ? Math.max(...values) : null);

/** The mean over time: a point counts for as long as it is. */
function mean(points, name) {
  const known = points.filter((point) => (point[name] ?? null) !== null), time = known.reduce((sum, point) => sum + point.seconds, 0);
  return time ? known.reduce((sum, point) => sum + point[name] * point.seconds, 0) / time : null;
}

/** Of a period, in the places of those of now: from its points, each of which sums up some time. */
export function PeriodTiles({ points, bars, slots }) {
  const requests = new Set(bars.map((bar) => bar.request_id)), tenants = new Set(bars.map((bar) => bar.tenant));
  const ends = {};
  for (const bar of bars) if (bar.end !== null && bar.state !== "left") ends[bar.state] = (ends[bar.state] ?? 0) + 1;
  const highest = (name) => t("tile.highest", { value: seconds(most(there(points, name))) });
  return html`<dl class="tiles" aria-label=${t("tile.period")}>
    <${Tile} help="period_running" title=${t("tile.running")} value=${number(mean(points, "running"))} unit=${`/ ${count(slots)}`}>${t("tile.mean")}<//>
    <${Tile} help="period_waiting" title=${t("tile.waiting")} value=${number(mean(points, "waiting"))}>${t("tile.mean_most", { most: count(most(there(points, "waiting"))) })}<//>
    <${Tile} help="output_rate" title=${t("tile.output_rate")} value=${number(mean(points, "tokens_per_second"))} unit=${t("tile.tokens")}>${t("tile.prompt_rate", { n: number(mean(points, "prompt_tokens_per_second")) })}<//>
    <${Tile} help="period_quantile" title=${t("tile.ttft")} value=${seconds(mean(points, "ttft_p50"))}>${highest("ttft_p95")}<//>
    <${Tile} help="period_quantile" title=${t("tile.itl")} value=${seconds(mean(points, "itl_p50"))}>${highest("itl_p99")}<//>
    <${Tile} help="curve_step" title=${t("tile.step")} value=${seconds(mean(points, "step_seconds"))}>${t("tile.predicted", { value: seconds(mean(points, "step_predicted_p50")) })}<//>
    <${Tile} help="curve_kv" title=${t("tile.kv")} value=${share(most(there(points, "kv_used")))}>${t("tile.most")}<//>
    <${Tile} title=${t("tile.requests")} value=${count(requests.size)}>${t("tile.in_slots")}<//>
    <${Tile} title=${t("tile.tenants")} value=${count(tenants.size)}>${t("tile.in_slots")}<//>
    <${Tile} title=${t("tile.ended")} value=${count(Object.values(ends).reduce((sum, each) => sum + each, 0))}>${counts(ends, (name) => named("end", name))}<//>
  </dl>`;
}

// The curves of a period: what each second of it measured.

import { html, useMemo } from "./lib.js";
import { Chart, Figures } from "./chart.js";
import { t } from "./i18n.js";
import { brief, count, number, seconds, share } from "./format.js";
import { tenantColour } from "./tenants.js";

const MOST_TENANTS = 6;

/** The points as columns, one array a field. */
function columns(points) {
  const of = (name) => points.map((point) => point[name] ?? null);
  const totals = {};
  for (const point of points) for (const [name, rate] of Object.entries(point.tenants)) totals[name] = (totals[name] ?? 0) + rate;
  const tenants = Object.keys(totals).sort((a, b) => totals[b] - totals[a]).slice(0, MOST_TENANTS).sort();
  return {
    t: of("t"), output: of("tokens_per_second"), prompt: of("prompt_tokens_per_second"), running: of("running"), waiting: of("waiting"),
    kv: of("kv_used"), ttft50: of("ttft_p50"), ttft95: of("ttft_p95"), itl50: of("itl_p50"), itl99: of("itl_p99"),
    step: of("step_seconds"), low: of("step_predicted_p50"), high: of("step_predicted_p90"),
    tenants: tenants.map((name) => ({ name, values: points.map((point) => point.tenants[name] ?? 0) })),
  };
}

/** All of them over `range`. */
export function Curves({ points, range, onPeriod }) {
  const c = useMemo(() => columns(points), [points]);
  const same = { times: c.t, range, onPeriod };
  const line = (name, values, colour, more = {}) => ({ name: t(`curve.${name}`), values, colour, ...more });
  const charts = [
    { key: "tokens", write: number, lines: [line("output", c.output, "c0", { fill: true }), line("prompt", c.prompt, "c1")] },
    { key: "requests", write: count, lines: [line("running", c.running, "c2"), line("waiting", c.waiting, "c1")] },
    { key: "kv", write: share, top: 1, lines: [line("used", c.kv, "c0", { fill: true })] },
    { key: "ttft", write: seconds, lines: [line("p50", c.ttft50, "c0", { dots: true }), line("p95", c.ttft95, "c1", { dots: true })] },
    { key: "itl", write: seconds, lines: [line("p50", c.itl50, "c0"), line("p99", c.itl99, "c1")] },
    { key: "step", write: seconds, band: [2, 1], lines: [line("measured", c.step, "c0"), line("predicted50", c.low, "c1"), line("predicted90", c.high, "c1", { dash: 2 })] },
    { key: "tenants", wide: true, write: number, lines: c.tenants.map(({ name, values }) => ({ name: brief(name, 18), values, colour: tenantColour(name) })) },
  ];
  return html`<div class="charts">${charts.filter(({ lines }) => lines.length).map(({ key, ...chart }) => html`<${Chart} key=${key} help=${`curve_${key}`} title=${t(`curves.${key}`)} ...${same} ...${chart} />`)}</div>
    <${Figures} title=${t("curves.table")} times=${c.t} columns=${charts.flatMap((chart) => chart.lines.map((each) => ({ name: `${t(`curves.${chart.key}`)}: ${each.name}`, values: each.values, write: chart.write })))} />`;
}

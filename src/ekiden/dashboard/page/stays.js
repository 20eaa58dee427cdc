// Who held which slot while one request was in the engine: its own bars stand out, those of others lead to them.

import { classes, html } from "./lib.js";
import { named, t } from "./i18n.js";
import { brief, line, moment, seconds } from "./format.js";
import { href } from "./router.js";
import { tenantColour } from "./tenants.js";

const ROW = 22, LABEL = 64, WIDTH = 1000, FOOT = 24;
const STEPS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1800, 3600];

/** `story`: the answer of `data/request`. */
export function Stays({ story, now }) {
  const { bars, neighbours, waited, explanation, run_id: run } = story;
  const from = waited.start, until = Math.max(from + explanation.e2e_seconds, ...bars.map((bar) => bar.end ?? 0), from + 0.001);
  const slots = Math.max(story.slots, ...[...bars, ...neighbours].map((bar) => (bar.slot ?? -1) + 1));
  const x = (at) => LABEL + ((Math.min(Math.max(at ?? now ?? until, from), until) - from) / (until - from)) * WIDTH;
  const step = STEPS.find((each) => (until - from) / each <= 10) ?? (until - from) / 10;
  const ticks = Array.from({ length: Math.floor((until - from) / step) + 1 }, (_, index) => index * step);
  const height = (slots + 1) * ROW + FOOT, queued = waited.end ?? until;
  return html`<div class="stays scroll" tabindex="0" role="region" aria-label=${t("request.stays")}>
    <svg viewBox=${`0 0 ${LABEL + WIDTH + 10} ${height}`} role="group" aria-label=${t("request.stays")}>
      <text x="0" y="15">${t("request.queue")}</text>
      ${queued > from && html`<g><title>${t("request.waited", { seconds: seconds(queued - from) })}</title><rect class="waits own" x=${x(from)} y="3" width=${Math.max(1.5, x(queued) - x(from))} height=${ROW - 6} /></g>`}
      ${Array.from({ length: slots }, (_, slot) => html`<g key=${slot}><text x="0" y=${(slot + 1) * ROW + 15}>${t("request.slot", { slot })}</text>
        <rect class="ground" x=${LABEL} y=${(slot + 1) * ROW + 2} width=${WIDTH} height=${ROW - 4} /></g>`)}
      ${ticks.map((at) => html`<g key=${at}><line class="tick" x1=${x(from + at)} x2=${x(from + at)} y1="0" y2=${height - FOOT + 4} />
        ${at < (until - from) * 0.95 && html`<text x=${x(from + at) + 3} y=${height - 6}>${moment(at, step < 1 ? 2 : 0)}</text>`}</g>`)}
      ${neighbours.map((bar) => html`<${One} key=${bar.id} bar=${bar} x=${x} run=${run} />`)}
      ${bars.map((bar) => html`<${One} key=${bar.id} bar=${bar} x=${x} run=${run} own />`)}
    </svg></div>`;
}

function One({ bar, x, run, own }) {
  if (bar.slot === null) return null;
  const top = (bar.slot + 1) * ROW + (own ? 1 : 4), height = ROW - (own ? 2 : 8), left = x(bar.start), right = x(bar.end);
  const about = t("request.bar", { id: brief(bar.request_id), tenant: line(bar.tenant), slot: bar.slot, seconds: seconds((bar.end ?? bar.start) - bar.start), state: named("end", bar.state) });
  const drawn = html`<g class=${classes("one", own && "own", tenantColour(bar.tenant))}><title>${about}</title>
    ${bar.segments.map(([phase, start, end]) => html`<rect key=${start} class=${`is-${phase}`} x=${x(start)} y=${phase === "prefill" || phase === "recompute" ? top : top + height * 0.2}
      width=${Math.max(1, x(end ?? bar.end) - x(start))} height=${phase === "prefill" || phase === "recompute" ? height : height * 0.6} />`)}
    <rect class="edge" x=${left} y=${top} width=${Math.max(1.5, right - left)} height=${height} /></g>`;
  return own ? drawn : html`<a href=${href(["request", bar.request_id], { run })} aria-label=${about}>${drawn}</a>`;
}

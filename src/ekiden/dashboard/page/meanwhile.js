// For whom the slots worked while a request waited, and what a person could do about it.

import { html, useStore } from "./lib.js";
import { t } from "./i18n.js";
import { line, share } from "./format.js";
import { ControlAct } from "./acts_of.js";
import { config } from "./config.js";
import { tenantColour } from "./tenants.js";

/** From this share on a tenant has most of the slots. */
const MOST = 0.5, SHOWN = 4;

/** The tenants by the share of the slots' time that they had while the request waited, largest first: `[name, share]`. */
export function holders({ waited, neighbours, explanation }) {
  const from = waited.start, until = waited.end ?? from + explanation.e2e_seconds, times = new Map();
  for (const bar of neighbours) {
    const time = Math.min(bar.end ?? until, until) - Math.max(bar.start, from);
    if (bar.slot !== null && time > 0) times.set(bar.tenant, (times.get(bar.tenant) ?? 0) + time);
  }
  const whole = [...times.values()].reduce((sum, time) => sum + time, 0);
  return [...times].map(([tenant, time]) => [tenant, time / whole]).sort((a, b) => b[1] - a[1]);
}

/** `wish(settings)` has the what-if simulate them. */
export function Meanwhile({ story, wish }) {
  const known = useStore(config), found = holders(story), { tenant, causes } = story.explanation;
  const waited = causes.some(({ cause }) => cause.startsWith("waiting_"));
  if (!found.length || !waited) return null;
  const [most, part] = found[0], order = story.decisions.find(({ facts }) => facts.order)?.facts.order ?? known?.controls.scheduling_policy;
  const crowded = most !== tenant && part > MOST && order === "fcfs";
  return html`<p>${t("request.holders")} ${found.slice(0, SHOWN).map(([name, each]) => html`<span key=${name} class=${`holder ${tenantColour(name)}`}><i class="swatch" aria-hidden="true"></i> <b><bdi>${line(name)}</bdi></b> ${share(each)}</span> `)}</p>
    ${crowded && html`<p class="advice"><strong>${t("request.advice")}</strong> ${t("request.crowded", { tenant: line(most), share: share(part) })}
</p>
      <div class="acts"><button type="button" onClick=${() => wish({ scheduling_policy: "fair" })}>${t("request.simulate_fair")}</button>
        <${ControlAct} name="scheduling_policy" label=${t("request.change_order")} wish="fair" /></div>`}`;
}

// Who gets how much, and how far that is from the bound of fairness.

import { html } from "./lib.js";
import { Help } from "./help.js";
import { named, parts, t } from "./i18n.js";
import { brief, count, number, seconds, share } from "./format.js";
import { Share, TenantName } from "./queue.js";
import { signalText } from "./guard_panel.js";
import { href } from "./router.js";
import { Table } from "./table.js";

/** Columns that are there only where a tenant has something else than this in them. */
const SELDOM = { away: 0, refused: 0, weight: 1 };

/** The tenants of the newest frame. */
export function TenantPanel({ frame }) {
  const rows = frame.other_tenants ? [...frame.tenants, frame.other_tenants] : frame.tenants;
  const total = frame.pace.output_tokens + frame.pace.prompt_tokens, got = (one) => one.output_tokens + one.prompt_tokens;
  const most = Math.max(1, ...rows.map(got)), seldom = Object.keys(SELDOM).filter((name) => rows.some((one) => one[name] !== SELDOM[name]));
  return html`<section class="panel tenants" aria-labelledby="tenants-title">
    <h2 id="tenants-title"><${Help} of="tenants">${t("tenants.title")}<//> <span class="soft">${t("tile.window", { seconds: seconds(frame.window_seconds) })}</span></h2>
    <${Fairness} frame=${frame} />
    <${Table} head=${["tenant: ttft waiting oldest running share output prompt ended", ...seldom].join(" ")} by="tenants-title">${rows.map((one) => html`<tr key=${one.tenant}><th scope="row" class="words">${one === frame.other_tenants ? brief(one.tenant) : html`<${TenantName} name=${one.tenant} />`}</th>
        <td><b>${seconds(one.ttft_p50)}</b></td><td>${count(one.waiting)}</td><td>${seconds(one.oldest_seconds)}</td><td>${count(one.running)}</td>
        <td><${Share} of=${got(one)} most=${most} /> ${share(total ? got(one) / total : 0)}</td><td>${count(one.output_tokens)}</td><td>${count(one.prompt_tokens)}</td><td>${count(one.ended)}</td>
        ${seldom.map((name) => html`<td key=${name} class=${name === "refused" && one.refused ? "bad" : ""}>${number(one[name])}</td>`)}</tr>`)}
      ${rows.length === 0 && html`<tr><td colspan="8" class="words soft">${parts("tenants.nobody", { try: html`<a href=${href("try")}>${t("nav.try")}</a>` })}</td></tr>`}<//>
  </section>`;
}

/** The largest difference in service between two waiting tenants, as a share of what a fair order allows. */
function Fairness({ frame }) {
  const gap = frame.signals.find((signal) => signal.name === "fairness_gap");
  if (!gap) return null;
  const told = gap.value === null ? t("tenants.no_gap") : t("tenants.gap", { share: share(gap.value) });
  return html`<div class="fairness"><${Help} text=${signalText("fairness_gap", gap.formula)}>${t("tenants.fairness")}<//>
    <meter min="0" max="1.5" low="0.8" high="1" optimum="0" value=${gap.value ?? 0} aria-label=${t("tenants.fairness")}>${told}</meter>
    <span class=${gap.value > 1 ? "bad" : ""}>${told}</span> <span class="soft">${t("tenants.order", { order: named("order", frame.order) })}</span></div>`;
}

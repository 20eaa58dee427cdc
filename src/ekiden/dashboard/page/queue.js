// Who waits, and for what.

import { classes, html } from "./lib.js";
import { Help } from "./help.js";
import { named, t } from "./i18n.js";
import { brief, count, line, seconds } from "./format.js";
import { RequestLink } from "./names.js";
import { tenantColour } from "./tenants.js";
import { Table } from "./table.js";

/** A tenant's name with its colour. */
export function TenantName({ name }) {
  return html`<span class="tenant"><span class=${classes("dot", tenantColour(name))} aria-hidden="true"></span> <span title=${line(name)}>${brief(name, 20)}</span></span>`;
}

/** A number among others, as a bar with its words. */
export function Share({ of, most }) {
  return html`<span class="share" aria-hidden="true"><span style=${{ width: `${most > 0 ? Math.min(100, (100 * of) / most) : 0}%` }}></span></span>`;
}

/** The queue of the newest frame. */
export function QueuePanel({ frame }) {
  const { queue, away } = frame, causes = Object.entries(queue.by_cause);
  const most = Math.max(1, ...causes.map(([, of]) => of));
  return html`<section class="panel queue" aria-labelledby="queue-title">
    <h2 id="queue-title"><${Help} of="queue">${t("queue.title")}<//> <span class="soft">${count(queue.waiting)}</span></h2>
    ${causes.length > 0 && html`<ul class="causes">${causes.map(([cause, of]) => html`<li key=${cause}><${Share} of=${of} most=${most} /> <b>${count(of)}</b> ${t("told.waits", { what: named("cause", cause) })}</li>`)}</ul>`}
    ${queue.first.length > 0 ? html`<${Table} head="request: tenant: waited waits_for: prompt" by="queue-title">${queue.first.map((one) => html`<tr key=${one.request_id}>
        <th scope="row" class="words"><${RequestLink} id=${one.request_id} run=${frame.run_id} /></th>
        <td class="words"><${TenantName} name=${one.tenant} /></td><td>${seconds(one.seconds)}</td>
        <td class="words">${named("cause", one.cause)}${one.behind && html` <${RequestLink} id=${one.behind} run=${frame.run_id} />`}
          ${one.passed_over && html` <span class="chip open">${t("queue.passed_over")}</span>`}</td><td>${count(one.prompt_tokens)}</td></tr>`)}<//>
      ${queue.waiting > queue.first.length && html`<p class="soft">${t("queue.more", { count: queue.waiting - queue.first.length, n: count(queue.waiting - queue.first.length) })}</p>`}`
    : html`<p class="soft">${t("queue.empty")}</p>`}
    ${away.length > 0 && html`<h3><${Help} of="away">${t("queue.away")}<//></h3><ul class="plain">${away.map((one) => html`<li key=${one.request_id}>
      <${RequestLink} id=${one.request_id} run=${frame.run_id} /> <${TenantName} name=${one.tenant} />
      ${one.why.length ? one.why.map((why) => named("pause", why)).join(t("unit.comma")) : t("queue.comes_back")} <span class="soft">${t("queue.made", { n: count(one.output_tokens) })}</span></li>`)}</ul>`}
  </section>`;
}

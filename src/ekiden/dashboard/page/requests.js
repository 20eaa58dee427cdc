// The requests of a period, of all tenants or of one: the slowest, the refused, the newest; or one by its id.

import { html, useState, useStore } from "./lib.js";
import { t } from "./i18n.js";
import { clock, count, line, seconds } from "./format.js";
import { Asking, useAsked } from "./asked.js";
import { connection } from "./connection.js";
import { Help } from "./help.js";
import { causeWords, endWords, Name, RequestLink } from "./names.js";
import { go } from "./router.js";
import { RunChoice } from "./runs.js";

const BY = ["slowest", "refused", "latest"];
const PERIODS = [60, 300, 900, 3600], FEW = 25, MOST = 100;

export function View({ query }) {
  const by = BY.includes(query.by) ? query.by : "slowest", now = useStore(connection).frame?.at;
  const [limit, setLimit] = useState(FEW);
  const address = { by, run: query.run, from: query.from, to: query.to, tenant: query.tenant, last: query.last };
  const change = (changed) => go("requests", { ...address, ...changed });
  const last = Number(query.last) || null;
  const asked = useAsked("requests", {
    by, run: query.run, tenant: query.tenant, to: query.to, limit,
    from: query.from ?? (last && now ? Math.max(0, Math.floor((now - last) / 5) * 5) : null),
  });
  const told = asked.value, tenants = Object.keys(told?.tenants ?? {});
  const find = (event) => {
    event.preventDefault();
    const id = new FormData(event.target).get("id").trim();
    if (id) go(["request", id]);
  };
  return html`<div><h1>${t("requests.title")}</h1>
    <form class="row" role="search" onSubmit=${find}><label>${t("requests.find")}<input name="id" autocomplete="off" spellcheck=${false} required /></label><button type="submit">${t("requests.open")}</button></form>
    <div class="row" role="group" aria-label=${t("requests.which")}>
      <span class="tabs">${BY.map((each) => html`<button key=${each} type="button" aria-pressed=${each === by} onClick=${() => change({ by: each })}>${t(`requests.by.${each}`)}</button>`)}</span>
      <label>${t("requests.period")}<select value=${query.from || query.to ? "given" : String(last ?? "")} onChange=${(event) => event.target.value === "given" || change({ last: event.target.value, from: null, to: null })}>
        ${(query.from || query.to) && html`<option value="given">${t("requests.given", { from: query.from ?? "0", to: query.to ?? "" })}</option>`}
        <option value="">${t("requests.whole")}</option>${PERIODS.map((each) => html`<option key=${each} value=${each}>${t("requests.last", { seconds: seconds(each) })}</option>`)}</select></label>
      <label>${t("requests.tenant")}<select value=${query.tenant ?? ""} onChange=${(event) => change({ tenant: event.target.value })}><option value="">${t("requests.all")}</option>
        ${[...new Set([...tenants, query.tenant].filter(Boolean))].map((each) => html`<option key=${each} value=${each}>${line(each)}${told?.tenants[each] !== undefined && ` (${count(told.tenants[each])})`}</option>`)}</select></label>
      <${RunChoice} value=${query.run} onChange=${(run) => change({ run, from: null, to: null })} />
      <button type="button" onClick=${asked.reload}>${t("requests.reload")}</button>
    </div>
    <${Asking} asked=${asked} />
    ${told && html`<${Lines} told=${told} />`}
    ${told && limit < MOST && told.matching > told.requests.length && html`<p><button type="button" onClick=${() => setLimit(MOST)}>${t("requests.more", { n: count(Math.min(MOST, told.matching)) })}</button></p>`}</div>`;
}

function Lines({ told }) {
  if (!told.requests.length) return html`<p class="soft" role="status">${t("requests.none")}</p>`;
  return html`<p class="soft" role="status">${t("requests.shown", { shown: count(told.requests.length), all: count(told.matching) })}</p>
    <div class="scroll" tabindex="0" role="region" aria-label=${t("requests.title")}><table>
    <thead><tr><th scope="col" class="words">${t("requests.request")}</th><th scope="col" class="words">${t("fact.tenant")}</th><th scope="col">${t("fact.arrived")}</th>
      ${[["queue", "queue_seconds"], ["ttft", "ttft"], ["e2e", "e2e"]].map(([name, help]) => html`<th key=${name} scope="col"><${Help} of=${help}>${t(`fact.${name}`)}<//></th>`)}
      <th scope="col">${t("requests.tokens")}</th><th scope="col">${t("requests.cached")}</th><th scope="col" class="words">${t("requests.end")}</th><th scope="col" class="words"><${Help} of="main_cause">${t("requests.main")}<//></th></tr></thead>
    <tbody>${told.requests.map((each) => html`<tr key=${each.request_id}><th scope="row" class="words"><${RequestLink} id=${each.request_id} run=${told.run_id} /></th>
      <td class="words"><${Name} of=${each.tenant} most=${24} /></td><td>${clock(told.started + each.arrived)}</td><td>${seconds(each.queue_seconds)}</td><td>${seconds(each.ttft)}</td><td>${seconds(each.e2e)}</td>
      <td>${count(each.tokens)}</td><td>${count(each.cached)}</td><td class="words">${endWords(each)}</td>
      <td class="words long">${each.main_cause && html`${causeWords(each.main_cause, each.main_words)} <small>${seconds(each.main_seconds)}</small>`}</td></tr>`)}</tbody></table></div>`;
}

// The guard: every rule with what it sees, its ladder, what was decided, and all signals of harm.

import { html, useStore } from "./lib.js";
import { connection, stale, useNow } from "./connection.js";
import { Help } from "./help.js";
import { named, t } from "./i18n.js";
import { clock, line } from "./format.js";
import { Approvals, GuardActs, RuleActs } from "./acts_of.js";
import { GuardLine, Rule, signalText, signalValue } from "./guard_panel.js";
import { Table } from "./table.js";

export function View() {
  const { frame } = useStore(connection);
  useNow();
  if (!frame) return html`<h1>${t("guard.title")}</h1>`;
  const guard = frame.guard, signals = frame.signals ?? [];
  return html`<h1><${Help} of="guard">${t("guard.title")}<//></h1>
    <div class=${stale() ? "old" : ""}>
      <${GuardLine} guard=${guard} />
      ${guard && html`<${GuardActs} paused=${guard.paused !== null} /><${Approvals} />`}
      ${guard && html`<p class="soft">${t("guard.pages", { channels: guard.pages.channels.length ? guard.pages.channels.join(t("unit.comma")) : t("unit.none"), sent: guard.pages.sent, given_up: guard.pages.given_up })}</p>`}
      ${guard?.rules.length > 0 && html`<section aria-labelledby="rules-title"><h2 id="rules-title">${t("guard.rules")}</h2>
        <ul class="rules">${guard.rules.map((rule) => html`<${Rule} key=${rule.rule} rule=${rule} signal=${signals.find((each) => each.name === rule.signal)}><${RuleActs} rule=${rule} /><//>`)}</ul></section>`}
      ${guard && html`<${Decisions} decisions=${guard.decisions} />`}
      <${Signals} signals=${signals} />
    </div>`;
}

function Decisions({ decisions }) {
  return html`<section aria-labelledby="decisions-title"><h2 id="decisions-title">${t("guard.decisions")}</h2>
    ${decisions.length === 0 ? html`<p class="soft">${t("guard.no_decisions")}</p>` : html`<${Table} head="when: rule: what: who: why:" by="decisions-title">${decisions.map((one) => html`<tr key=${one.number}><td class="words">${clock(one.at)}</td><td class="words">${line(one.rule) || "–"}</td><td class="words" lang="en">${line(one.what)}</td>
        <td class="words">${one.person ? html`<strong>${line(one.who)}</strong>` : line(one.who)}</td><td class="words" lang="en">${line(one.why)}</td></tr>`)}<//>`}</section>`;
}

function Signals({ signals }) {
  if (!signals.length) return null;
  return html`<section aria-labelledby="signals-title"><h2 id="signals-title"><${Help} of="signals">${t("guard.signals")}<//></h2>
    <${Table} head="signal: now about: evidence:" by="signals-title">${signals.map((one) => html`<tr key=${one.name}><th scope="row" class="words"><${Help} text=${signalText(one.name, one.formula)}>${named("signal", one.name)}<//></th>
        <td>${signalValue(one.value, one.unit)}</td><td class="words">${line(one.subject) || "–"}</td><td class="words" lang="en">${line(one.evidence)}</td></tr>`)}<//></section>`;
}

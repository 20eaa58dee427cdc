// Where a request's time went: one line a cause, in the order in which each first came, and each bar begins where the one
// before it ended. So they add up to the whole, and the last line says so.

import { classes, html } from "./lib.js";
import { language, named, t } from "./i18n.js";
import { count, line, seconds, share } from "./format.js";
import { Help } from "./help.js";
import { causeWords, OWN, RequestLink } from "./names.js";

const STAGES = ["intake", "refill", "formation", "advance", "retirement"];

/** The causes in the order of the waterfall, each with the seconds before it. */
export function stacked(causes) {
  const order = [...causes].sort((a, b) => a.turns[0] - b.turns[0] || STAGES.indexOf(a.stage) - STAGES.indexOf(b.stage));
  let before = 0;
  return order.map((cause) => {
    const from = before;
    before += cause.seconds;
    return { ...cause, from };
  });
}

export function Waterfall({ told, run }) {
  const causes = stacked(told.causes), total = told.e2e_seconds || 1;
  const sum = causes.reduce((sum, cause) => sum + cause.seconds, 0);
  const percent = (value) => `${(100 * value).toFixed(3)}%`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${t("request.causes")}><table class="waterfall">
    <caption class="unseen">${t("request.causes")}</caption>
    <thead><tr><th scope="col" class="words">${t("request.cause")}</th><th scope="col" class="words wide"><span class="unseen">${t("request.place")}</span></th>
      <th scope="col"><${Help} of="cause_seconds">${t("request.time")}<//></th><th scope="col">${t("request.share")}</th></tr></thead>
    <tbody>${causes.map((cause) => html`<tr key=${cause.cause}>
      <th scope="row" class="words"><details><summary>${causeWords(cause.cause, cause.words)}</summary><${Why} cause=${cause} run=${run} /></details></th>
      <td class="wide"><svg width="100%" height="18" aria-hidden="true"><rect class="ground" width="100%" height="18" />
        <rect class=${classes("part", `of-${cause.stage}`, OWN.has(cause.cause) && "own")} x=${percent(cause.from / total)} y="2" width=${percent(Math.max(cause.seconds / total, 0.003))} height="14" />
        ${!OWN.has(cause.cause) && html`<rect class="waits" x=${percent(cause.from / total)} y="2" width=${percent(Math.max(cause.seconds / total, 0.003))} height="14" />`}</svg></td>
      <td>${seconds(cause.seconds)}</td><td>${share(cause.share)}</td></tr>`)}</tbody>
    <tfoot><tr><th scope="row" class="words">${t("request.whole")}</th><td class="wide"></td><td><b>${seconds(sum)}</b></td><td>${share(sum / total)}</td></tr></tfoot>
  </table></div>`;
}

/** The decision behind a cause: who decided it and when, what was in force, and what would have been otherwise. */
function Why({ cause, run }) {
  const { control, decision, details, named: others } = cause;
  return html`<dl class="facts">
    <dt>${t("request.decided")}</dt>
    <dd>${t("request.decided_by", { stage: named("stage", cause.stage), first: count(cause.turns[0]), last: count(cause.turns[1]) })}</dd>
    ${others.length > 0 && html`<dt>${t("request.others")}</dt><dd>${others.map((id) => html`<span key=${id}><${Other} id=${id} run=${run} /> </span>`)}</dd>`}
    ${decision.runner_up && html`<dt>${t("request.runner_up")}</dt><dd><${Other} id=${decision.runner_up} run=${run} /></dd>`}
    ${control && html`<dt>${t("request.control")}</dt><dd><code>${line(control.name)} = ${line(control.value)}</code> ${setBy(control)}</dd>`}
    ${Object.entries(details ?? {}).map(([name, value]) => html`<dt key=${name}>${line(name.replaceAll("_", " "))}</dt><dd>${seconds(value)}</dd>`)}
    ${cause.otherwise && html`<dt>${t("request.otherwise")}</dt><dd>${language.get() === "en" ? `${cause.otherwise} (${seconds(cause.saved_seconds)})` : t("told.otherwise", { seconds: seconds(cause.saved_seconds) })}</dd>`}
  </dl>`;
}

/** Where an id is not told (of another tenant), the server says so in words. */
const Other = ({ id, run }) => (/\s/.test(id) ? html`<span>${line(id)}</span>` : html`<${RequestLink} id=${id} run=${run} />`);

/** Who put a control in force, and why, in words. */
export function setBy({ set_by, who, why }) {
  const by = who ? t("request.set_by_who", { kind: named("set_by", set_by), who: line(who) }) : t("request.set_by", { kind: named("set_by", set_by) });
  return why ? `${by} ${t("request.because", { why: line(why) })}` : by;
}

// Releases, with what their pairs show and a person's yes or no to them; and evaluations, with their reports.

import { post } from "./api.js";
import { html, useEffect, useStore } from "./lib.js";
import { LANGUAGES, language, named, parts, t } from "./i18n.js";
import { clock, count, line, number } from "./format.js";
import { Act, changed, ForActors, reason } from "./acts.js";
import { Asking, useAsked } from "./asked.js";
import { Help } from "./help.js";
import { English } from "./names.js";

const AGAIN = 10_000;

export function View() {
  const releases = useAsked("releases", {}, { every: AGAIN }), evaluations = useAsked("evaluations"), acted = useStore(changed);
  useEffect(() => acted && releases.reload(), [acted]);
  const told = releases.value?.releases, tried = evaluations.value?.evaluations;
  return html`<div><h1>${t("releases.title")}</h1><p class="soft">${t("releases.about")}</p>
    <${Asking} asked=${releases} />${told?.length === 0 && html`<p>${parts("releases.none", { command: html`<code>ekiden release start PLAN</code>` })}</p>`}
    ${told?.map((each) => html`<${Release} key=${each.name} told=${each} />`)}
    <section><h2>${t("releases.evaluations")}</h2><${Asking} asked=${evaluations} />${tried?.length === 0 && html`<p>${parts("releases.no_evaluations", { command: html`<code>ekiden evaluate</code>` })}</p>`}
    ${tried?.map((each) => html`<${Evaluation} key=${each.name} told=${each} />`)}</section></div>`;
}

function Evaluation({ told }) {
  const here = language.get();
  return html`<article class="panel"><h3><bdi>${line(told.name)}</bdi> <span class="chip">${named("releases.phase", told.verdict)}</span> <span class="chip">${named("releases.label", told.label)}</span>
    ${told.changed && html` <span class="chip bad">${t("releases.tampered")}</span>`}</h3>
    <p>${line(told.question)}</p><p lang=${here in told.summary ? here : "en"}>${line(told.summary[here] ?? told.summary.en ?? "")}</p>
    <p><span class="soft">${clock(told.written)}</span> ${Object.entries(told.reports).map(([name, address]) => html`<a key=${name} href=${address} hreflang=${name} target="_blank" rel="noopener">${t("releases.report")} (${LANGUAGES[name] ?? name})</a> `)}</p></article>`;
}

function Release({ told }) {
  if (!told.readable) return html`<section class="panel"><h2><bdi>${line(told.name)}</bdi></h2><p class="bad" lang="en">${told.why}</p></section>`;
  const { plan, analysisRun: analysis } = told, settings = (values) => Object.entries(values).map(([name, value]) => html`<code key=${name}>${line(name)} = ${line(JSON.stringify(value))} </code>`);
  const row = (name, value) => html`<dt>${t(`releases.${name}`)}</dt><dd>${value}</dd>`;
  return html`<section class="panel"><h2><bdi>${line(plan.name)}</bdi> <span class="chip">${named("releases.phase", told.phase)}</span></h2>
    <p><${English}>${told.message}<//></p>
    <dl class="facts">
      ${row("step", `${count(told.currentStepIndex + 1)} / ${count(told.steps.length)}: ${line(told.steps[told.currentStepIndex])}`)}
      ${row("pairs", t("releases.of", { n: count(told.pairs), all: count(plan.canary.pairs) }))}
      ${row("weight", `${count(told.setWeight)} %`)}${row("candidate", settings(plan.candidate))}${row("before", settings(told.before))}
      ${row("by", html`<bdi>${line(told.startedBy || "–")}</bdi>: ${line(plan.why)}`)}
      ${row("approvals", told.approvals.length ? told.approvals.map((each) => html`<span key=${each.who}><b><bdi>${line(each.who)}</bdi></b>: <bdi>${line(each.why)}</bdi><br /></span>`) : t("releases.none_yet"))}
    </dl>
    ${analysis.metricResults.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label=${t("releases.metrics")}><table><caption>${t("releases.metrics")}</caption>
      <thead><tr><th scope="col" class="words">${t("releases.metric")}</th><th scope="col" class="words">${t("releases.verdict")}</th><th scope="col">p</th><th scope="col" class="words">${t("releases.words")}</th></tr></thead>
      <tbody>${analysis.metricResults.map((each) => html`<tr key=${each.name}><th scope="row" class="words"><${Help} text=${each.formula}>${line(each.name)}<//></th><td class="words">${named("releases.phase", each.phase)}</td>
        <td>${number(each.pValue)}</td><td class="words long"><${English}>${each.message}<//></td></tr>`)}</tbody></table></div>`}
    <${Acts} told=${told} /></section>`;
}

function Acts({ told }) {
  const { plan, approvals, phase } = told, needed = plan.approvals.needed, { lacking } = told;
  const unsure = told.pauseConditions[0]?.reason === "InconclusiveAnalysisRun";
  const send = (action) => (values) => post("admin/releases", { action, name: told.name, reason: values.reason, ...(values.despite === "yes" ? { despite_inconclusive: true } : {}) });
  const despite = { name: "despite", label: t("act.approve_release.despite"), kind: "choice", value: "no", options: [["no", t("act.approve_release.no")], ["yes", t("act.approve_release.yes")]] };
  if (phase === "Degraded") return null;
  return html`<${ForActors}>
    ${phase === "Paused" && lacking > 0 && html`<${Act} title=${t("act.approve_release.title")} what=${t("act.approve_release.what", { name: line(plan.name), lacking: count(lacking), needed: count(needed) })}
      fields=${unsure ? [despite, reason()] : [reason()]} send=${send("approve")} told=${(after) => t("act.approve_release.told", { n: count(after.approvals.length), needed: count(needed) })} />`}
    ${phase === "Paused" && lacking === 0 && html`<${Act} title=${t("act.promote_release.title")} what=${t("act.promote_release.what", { name: line(plan.name) })} fields=${[reason()]} send=${send("promote")} told=${(after) => named("releases.phase", after.phase)} />`}
    <${Act} title=${t("act.abort_release.title")} danger final what=${t("act.abort_release.what", { name: line(plan.name) })} fields=${[reason()]} send=${send("abort")} told=${(after) => named("releases.phase", after.phase)} /><//>`;
}

// One request: where its time went and why, who its neighbours were, which decisions were about it and what they passed
// over, and what other settings would have changed.

import { html, useEffect, useState, useStore } from "./lib.js";
import { has, language, named, t } from "./i18n.js";
import { clock, count, line, NONE, seconds } from "./format.js";
import { Asking, useAsked } from "./asked.js";
import { RequestActs } from "./acts_of.js";
import { Help } from "./help.js";
import { config } from "./config.js";
import { endWords, English, headline, Name, RequestLink } from "./names.js";
import { href } from "./router.js";
import { Meanwhile } from "./meanwhile.js";
import { TenantName } from "./queue.js";
import { Stays } from "./stays.js";
import { meet } from "./tenants.js";
import { Waterfall } from "./waterfall.js";
import { WhatIf } from "./what_if.js";

/** How often a request that goes on is asked about, in milliseconds. */
const AGAIN = 2_000;

export function View({ rest, query }) {
  const id = rest.join("/"), [goesOn, setGoesOn] = useState(true), [chosen, choose] = useState(0);
  const asked = useAsked(id ? "request" : null, { id, run: query.run }, { every: goesOn ? AGAIN : null });
  const stories = asked.value?.stories ?? [];
  const open = !asked.value ? !asked.fault : stories.some((story) => story.explanation.status === "in_flight");
  useEffect(() => setGoesOn(open), [open]);
  useEffect(() => choose(0), [id]);
  const story = stories[Math.min(chosen, stories.length - 1)];
  return html`<div><h1>${t("request.title")} <code class="id"><bdi>${line(id)}</bdi></code></h1>
    <${Asking} asked=${asked} />
    ${stories.length > 1 && html`<p class="tabs" role="group" aria-label=${t("request.answers")}>${stories.map((each, index) => html`<button key=${index} type="button"
      aria-pressed=${index === chosen} onClick=${() => choose(index)}>${line(each.explanation.request_id)}</button>`)}</p>`}
    ${story && html`<${Story} key=${story.explanation.request_id} story=${story} />`}</div>`;
}

function Story({ story }) {
  const told = story.explanation, run = story.run_id, [wished, wish] = useState(null);
  const tenants = [...new Set([...story.bars, ...story.neighbours].map((bar) => bar.tenant))].sort();
  meet(tenants); // the colours that the live view gives them
  return html`<p class="lead" role="status">${headline(told)}</p>
    ${told.status === "refused" && language.get() !== "en" && html`<p lang="en">${told.headline}</p>`}
    ${told.status !== "refused" && html`<${Meanwhile} story=${story} wish=${wish} />`}
    ${told.status === "in_flight" && html`<${RequestActs} id=${told.request_id} paused=${isPaused(story)} />`}
    <section><h2>${t("request.facts")}</h2><${Facts} story=${story} /></section>
    <section><h2>${t("request.causes")}</h2>${told.causes.length ? html`<${Waterfall} told=${told} run=${run} />` : html`<p class="soft">${t("request.no_causes")}</p>`}</section>
    ${told.status !== "refused" && html`<section><h2>${t("request.stays")}</h2><${Stays} story=${story} /><${Legend} tenants=${tenants} /></section>`}
    ${story.answers.length > 0 && html`<section><h2>${t("request.questions")}</h2>
      <dl class="questions">${story.answers.flatMap((each) => [html`<dt>${named("question", each.question)}</dt>`, html`<dd><${English}>${each.words}<//></dd>`])}</dl></section>`}
    <section><h2>${t("request.decisions")}</h2><${Decisions} story=${story} /></section>
    <section><h2>${t("request.life")}</h2><${Life} life=${told.life} /></section>
    <section><h2>${t("what_if.title")}</h2><${WhatIf} run=${run} id=${told.request_id} wished=${wished} /></section>`;
}

/** Whether the newest thing that happened to its pauses is that there is one. */
function isPaused({ explanation }) {
  return explanation.life.findLast(({ event }) => event === "PAUSED")?.value > 0;
}

function Facts({ story }) {
  const told = story.explanation, row = (name, value, help = null) => html`<div><dt>${help ? html`<${Help} of=${help}>${t(`fact.${name}`)}<//>` : t(`fact.${name}`)}</dt><dd>${value}</dd></div>`;
  return html`<dl class="cards">
    ${row("state", html`<b>${endWords({ refusal: told.status === "refused" ? told.reason : null, end: told.status === "finished" ? told.reason : null })}</b>`)}
    ${row("tenant", html`<${Name} of=${told.tenant} />`)}
    ${row("arrived", clock(story.started + story.line.arrived))}
    ${row("queue", seconds(told.queue_seconds), "queue_seconds")}
    ${row("ttft", seconds(told.ttft_seconds), "ttft")}
    ${row("e2e", seconds(told.e2e_seconds), "e2e")}
    ${row("prompt", t("fact.of_cached", { tokens: count(told.prompt_tokens), cached: count(told.cached_tokens) }))}
    ${row("output", t("fact.of_most", { tokens: count(told.output_tokens), most: count(told.max_tokens) }))}
    ${told.expected_output && row("expected", t("fact.range", { low: count(told.expected_output[0]), middle: count(told.expected_output[1]), high: count(told.expected_output[2]) }), "expected")}
    ${told.preemptions > 0 && row("preemptions", count(told.preemptions))}
    ${told.external_id && row("external", html`<${Name} of=${told.external_id} />`)}
    ${row("run", html`<a href=${href("live", { run: story.run_id, from: Math.max(0, story.line.arrived - 1).toFixed(1), to: (story.line.arrived + told.e2e_seconds + 1).toFixed(1) })}>${line(story.run_id)}</a>`)}
    ${told.carried_over?.run_id && row("before", html`<${RequestLink} id=${told.request_id} run=${told.carried_over.run_id} />`)}
  </dl>`;
}

/** What the drawing's shapes and colours stand for. */
function Legend({ tenants }) {
  const phases = useStore(config)?.phases ?? ["prefill", "decode", "recompute", "preempted", "padding"];
  return html`<ul class="legend">${phases.map((phase) => html`<li key=${phase}><svg class="stays-mark other" width="26" height="14" aria-hidden="true"><rect class=${`is-${phase}`} x="1"
    y=${phase === "prefill" || phase === "recompute" ? 1 : 3} width="24" height=${phase === "prefill" || phase === "recompute" ? 12 : 8} /></svg> ${named("phase", phase)}</li>`)}</ul>
    <ul class="legend" aria-label=${t("slots.tenants")}>${tenants.map((name) => html`<li key=${name}><${TenantName} name=${name} /></li>`)}</ul>`;
}

function Decisions({ story }) {
  if (!story.decisions.length) return html`<p class="soft">${t("request.no_decisions")}</p>`;
  const others = (ids) => (ids.length ? ids.map((id) => html`<${RequestLink} key=${id} id=${id} run=${story.run_id} /> `) : NONE);
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${t("request.decisions")}><table>
    <thead><tr><th scope="col">${t("request.turn")}</th><th scope="col">${t("request.at")}</th><th scope="col" class="words">${t("request.stage")}</th><th scope="col" class="words">${t("request.decision")}</th>
      <th scope="col" class="words">${t("request.chosen")}</th><th scope="col" class="words"><${Help} of="passed_over">${t("request.passed_over")}<//></th></tr></thead>
    <tbody>${story.decisions.map((each, index) => html`<tr key=${index}><th scope="row">${count(each.turn)}</th><td>${seconds(each.at - story.line.arrived)}</td>
      <td class="words stage">${named("stage", each.stage)}</td><td class="words long"><${English}>${each.words}<//></td><td class="words">${others(each.chosen)}</td><td class="words">${others(each.passed_over)}</td></tr>`)}</tbody>
  </table></div>`;
}

/** What happened to it, step by step. */
function Life({ life }) {
  const words = (event) => (has(`life.${event.event}`) ? t(`life.${event.event}`, { n: count(event.value) }) : event.words);
  return html`<details><summary>${t("request.events", { n: count(life.length) })}</summary>
    <div class="scroll" tabindex="0" role="region" aria-label=${t("request.life")}><table><thead><tr><th scope="col">${t("request.at")}</th><th scope="col">${t("request.turn")}</th><th scope="col" class="words">${t("request.event")}</th></tr></thead>
    <tbody>${life.map((event, index) => html`<tr key=${index}><th scope="row">${seconds(event.at_seconds)}</th><td>${count(event.turn)}</td><td class="words">${words(event)}</td></tr>`)}</tbody></table></div></details>`;
}

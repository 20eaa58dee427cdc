// What the guard sees and holds: its rules with their signals, thresholds and ladders.

import { config } from "./config.js";
import { classes, html, useStore } from "./lib.js";
import { Help } from "./help.js";
import { has, named, t } from "./i18n.js";
import { NONE, line, number, seconds, share } from "./format.js";
import { href } from "./router.js";
import { Table } from "./table.js";

/** A signal's meaning: its formula in the viewer's language, else as the server words it. */
export const signalText = (name, formula) => (has(`formula.${name}`) ? t(`formula.${name}`) : formula);

/** A signal's value in its unit. */
export function signalValue(value, unit) {
  if (value === null || value === undefined) return NONE;
  if (unit === "s") return seconds(value);
  if (unit === "share") return share(value);
  if (!unit) return number(value);
  const written = unit.startsWith("share of") ? share(value) : number(value);
  return has(`units.${unit}`) ? t(`units.${unit}`, { n: written }) : `${written} ${unit}`;
}

/** The rungs that are in force, or would be if the guard acted. */
function raised({ mode, rules }) {
  const told = rules.filter((rule) => rule.rung > 0).map((rule) => `${line(rule.rule)} (${rule.in_force.map((action) => action.replaceAll("_", " ")).join(t("unit.comma"))})`);
  return told.length ? t(mode === "watch" ? "guard.would_be" : "guard.are", { rules: told.join(t("unit.comma")) }) : "";
}

/** One line: whether the guard acts, and what is in force. */
export function GuardLine({ guard }) {
  const there = useStore(config)?.guard;
  if (!guard) return html`<p class="soft">${t(there && there !== "off" ? "guard.unheard" : "guard.absent")}</p>`;
  return html`<p><span class=${classes("chip", guard.state === "failing" ? "bad" : guard.state === "paused" ? "open" : "")}>${named("guard_mode", guard.mode)}</span>
    ${guard.state !== "ok" && guard.state !== "off" && html` <span class="chip open">${named("guard_state", guard.state)}</span>`}
    ${guard.failure && html` <span class="bad">${line(guard.failure)}</span>`}
    ${" "}${guard.paused ? t("guard.paused_by", { who: line(guard.paused.who), why: line(guard.paused.why) }) : raised(guard) || t("guard.nothing")}</p>`;
}

/** Where a value stands between nothing and its threshold; the mark is the threshold. */
function Gauge({ rule, low }) {
  const value = rule.value, end = Math.max(rule.threshold * 1.6, 1e-9);
  if (value === null) return html`<span class="gauge empty" aria-hidden="true"></span>`;
  const over = low ? value < rule.threshold : value >= rule.threshold;
  return html`<span class=${classes("gauge", over && "over")} aria-hidden="true">
    <span style=${{ width: `${Math.max(0, Math.min(100, (100 * value) / end))}%` }}></span><i style=${{ left: `${(100 * rule.threshold) / end}%` }}></i></span>`;
}

/** The rungs of a rule's ladder; those in force are filled and said. */
export function Ladder({ rule }) {
  return html`<ol class="ladder" aria-label=${t("guard.ladder", { n: rule.rung, of: rule.actions.length })}>
    ${rule.actions.map((action, index) => html`<li class=${classes(index < rule.rung && "in-force")} key=${`${action}${index}`}>
      <${Help} text=${named("action", action)}>${action.replaceAll("_", " ")}<//>${index < rule.rung && html`<span class="unseen"> ${t("guard.in_force")}</span>`}</li>`)}</ol>`;
}

/** Everything about one rule but what persons may do. `children` are put at its end. */
export function Rule({ rule, signal, children }) {
  const unit = signal?.unit ?? "", low = signal?.direction === "low";
  return html`<li class=${classes("rule", rule.rung > 0 && "raised")}>
    <p class="name"><strong>${line(rule.rule)}</strong> <span class="soft">${t("guard.owner", { owner: line(rule.owner) })}</span>
      ${rule.waits_for_person && html` <span class="chip open">${t("guard.waits")}</span>`}
      ${rule.acknowledged_by && html` <span class="chip">${t("guard.acknowledged", { who: line(rule.acknowledged_by) })}</span>`}
      ${rule.overridden_by && html` <span class="chip open">${t("guard.overridden", { who: line(rule.overridden_by), seconds: seconds(rule.override_ends_in_seconds) })}</span>`}</p>
    <p><${Help} text=${signalText(rule.signal, signal?.formula)}>${named("signal", rule.signal)}<//>
      ${" "}<${Gauge} rule=${rule} low=${low} /> <b>${signalValue(rule.value, unit)}</b>
      ${" "}<span class="soft">${t(low ? "guard.below" : "guard.above", { threshold: signalValue(rule.threshold, unit), clear: signalValue(rule.clear_threshold, unit) })}</span></p>
    ${rule.evidence && html`<p class="soft" lang="en">${line(rule.evidence)}</p>`}
    <${Ladder} rule=${rule} />
    ${rule.given_up.length > 0 && html`<p class="soft">${t("guard.given_up", { names: rule.given_up.join(t("unit.comma")) })}</p>`}
    ${children}
  </li>`;
}

/** What the guard would have a person know at once: what is out of bounds, what was seen, and what helps. */
export function Alerts({ frame }) {
  const found = (frame.guard?.rules ?? []).filter((rule) => rule.rung > 0 || rule.waits_for_person);
  if (!found.length) return null;
  return html`<ul class="alerts" aria-label=${t("guard.alerts")}>${found.map((rule) => {
    const signal = frame.signals.find((each) => each.name === rule.signal);
    return html`<li key=${rule.rule}><a href=${href("guard")}><strong>${named("signal", rule.signal)}</strong></a>${t("unit.colon")}<b>${signalValue(rule.value, signal?.unit ?? "")}</b>${t("unit.semicolon")}<span lang="en">${line(rule.evidence)}</span>. <span class="soft">${t(frame.guard.mode === "watch" ? "guard.advice" : "guard.does", { actions: rule.in_force.map((action) => named("action", action)).join(t("unit.semicolon")) })}</span></li>`;
  })}</ul>`;
}

/** In the live view: what is raised in full, the others by their values. */
export function GuardPanel({ frame }) {
  const guard = frame.guard, rules = guard?.rules ?? [], of = (rule) => frame.signals.find((each) => each.name === rule.signal);
  const raised = rules.filter((rule) => rule.rung > 0 || rule.waits_for_person), quiet = rules.filter((rule) => !raised.includes(rule));
  return html`<section class="panel guard" aria-labelledby="guard-title">
    <h2 id="guard-title"><${Help} of="guard">${t("guard.title")}<//> <a class="more" href=${href("guard")}>${t("guard.all")}</a></h2>
    <${GuardLine} guard=${guard} />
    ${raised.length > 0 && html`<ul class="rules">${raised.map((rule) => html`<${Rule} key=${rule.rule} rule=${rule} signal=${of(rule)} />`)}</ul>`}
    ${quiet.length > 0 && html`<${Table} head="signal: now acts_at" by="guard-title">${quiet.map((rule) => html`<tr key=${rule.rule}><th scope="row" class="words"><${Help} text=${signalText(rule.signal, of(rule)?.formula)}>${named("signal", rule.signal)}<//></th>
        <td><${Gauge} rule=${rule} low=${of(rule)?.direction === "low"} /> ${signalValue(rule.value, of(rule)?.unit ?? "")}</td><td>${signalValue(rule.threshold, of(rule)?.unit ?? "")}</td></tr>`)}<//>`}
  </section>`;
}

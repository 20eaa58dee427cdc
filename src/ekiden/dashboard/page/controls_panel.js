// The rules in force, who set them, why, and until when.

import { html } from "./lib.js";
import { config } from "./config.js";
import { Help } from "./help.js";
import { has, named, t } from "./i18n.js";
import { clock, line, moment, seconds } from "./format.js";
import { href } from "./router.js";
import { Table } from "./table.js";

/** Those that a person or the guard set, and those of the configuration. */
export function sorted(controls) {
  const rules = controls.filter((one) => one.name !== "guard"); // that one says what the guard does; its own view has it
  return { set: rules.filter((one) => one.set_by !== "configuration"), configured: rules.filter((one) => one.set_by === "configuration") };
}

/** What a control does: in the viewer's language, else as the server words it. */
export const controlText = (name) => (has(`control.${name}`) ? t(`control.${name}`) : config.get()?.meanings[name] ?? "");

/** A control's name, with what it does where that is known. */
export function ControlName({ name }) {
  const text = controlText(name);
  return text ? html`<${Help} text=${text}><code>${line(name)}</code><//>` : html`<code>${line(name)}</code>`;
}

const value = (one) => (one.value === "None" ? t("controls.off") : line(one.value).replace(/\.0$/, ""));

/** What was set, with its story. `act(control)` may add something for each. */
export function SetControls({ controls, act }) {
  if (!controls.length) return html`<p class="soft">${t("controls.none_set")}</p>`;
  return html`<ul class="plain set">${controls.map((one) => html`<li key=${one.name}><${ControlName} name=${one.name} /> <b>${value(one)}</b>
    ${" "}<span class="chip">${named("set_by", one.set_by)}</span> ${t("controls.by", { who: line(one.who) || named("set_by", one.set_by), ago: seconds(one.seconds) })}
    ${one.expires_in_seconds !== null && html` <span class="open">${t("controls.until", { seconds: seconds(one.expires_in_seconds) })}</span>`}
    ${one.why && html` <q>${line(one.why)}</q>`} ${act?.(one)}</li>`)}</ul>`;
}

/** The configured ones, as a list of names and values. */
export function Configured({ controls, act }) {
  return html`<dl class="facts controls">${controls.map((one) => html`<div key=${one.name}><dt><${ControlName} name=${one.name} /></dt><dd>${value(one)} ${act?.(one)}</dd></div>`)}</dl>`;
}

/** In the live view. */
export function ControlsPanel({ frame }) {
  const { set, configured } = sorted(frame.controls);
  return html`<section class="panel" aria-labelledby="controls-title">
    <h2 id="controls-title"><${Help} of="controls">${t("controls.title")}<//> <a class="more" href=${href("controls")}>${t("controls.all")}</a></h2>
    <${SetControls} controls=${set} />
    <details><summary>${t("controls.configured", { count: configured.length, n: configured.length })}</summary><${Configured} controls=${configured} /></details>
  </section>`;
}

/** Changes in time: what was set, by whom and why. `started`: Unix time of the run's beginning; `short`: without
 * the name and the value before. */
export function Changes({ changes, started, caption, short }) {
  return html`<${Table} head=${short ? "when: after: who: why:" : "when: control: before: after: who: why:"} label=${caption}>
    ${changes.map((one, index) => html`<tr key=${`${one.at}${one.name}${index}`}><td class="words">${moment(one.at, 1)} <span class="soft">${clock(started + one.at)}</span></td>${!short && html`<td class="words"><code>${line(one.name)}</code></td><td class="words">${line(one.old ?? "–")}</td>`}
      <td class="words"><b>${line(one.value)}</b></td><td class="words">${named("set_by", one.set_by)} ${line(one.who)}</td><td class="words">${line(one.why)}</td></tr>`)}<//>`;
}

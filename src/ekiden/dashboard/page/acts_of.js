// The acts: on a request, the server's door, its controls, the guard and what waits for a person.

import { post, told } from "./api.js";
import { html, useEffect, useStore } from "./lib.js";
import { parts, t } from "./i18n.js";
import { line } from "./format.js";
import { Act, askAbout, changed, expires, expiry, ForActors, reason } from "./acts.js";
import { Asking, useAsked } from "./asked.js";
import { config } from "./config.js";
import { controlText } from "./controls_panel.js";
import { RequestLink } from "./names.js";
import { href } from "./router.js";

/** Pause, resume and end one request. */
export function RequestActs({ id, paused = false }) {
  const link = html`<${RequestLink} id=${id} most=${24} />`;
  const send = (action) => (values) => post(`admin/${action}`, { request_id: id, ...(values.reason ? { reason: values.reason } : {}) });
  return html`<${ForActors}>
    ${paused ? html`<${Act} title=${t("act.resume.title")} what=${parts("act.resume.what", { id: link })} send=${send("resume")} told=${() => t("act.resume.told")} />`
      : html`<${Act} title=${t("act.pause.title")} what=${parts("act.pause.what", { id: link })} send=${send("pause")} told=${() => t("act.pause.told")} />`}
    <${Act} title=${t("act.abort.title")} danger final what=${parts("act.abort.what", { id: link })} fields=${[reason(false)]} send=${send("abort")} told=${() => t("act.abort.told")} /><//>`;
}

/** Close the server to newcomers, or open it. */
export function DrainActs({ draining }) {
  const name = draining ? "open" : "drain";
  return html`<${ForActors}><${Act} title=${t(`act.${name}.title`)} what=${t(`act.${name}.what`)} fields=${[reason(false)]}
    send=${(values) => post("admin/drain", { draining: !draining, reason: values.reason })} told=${(answer) => waits(answer) ?? t(`act.${name}.told`, { n: answer.in_flight })} /><//>`;
}

/** Those that say what software does, and the one that has a button of its own. */
const OTHERS = new Set(["guard", "release", "draining", "epoch"]);

/** Changes one control, from the value that it has when the button is pressed. `label`: what stands on it; `wish`: the
 * value that is proposed, if not the one it has. */
export function ControlAct({ name, label = null, wish = null }) {
  const known = useStore(config);
  if (!known || OTHERS.has(name) || !(name in known.controls)) return null;
  const title = t("act.change.title"), pressed = async () => {
    try {
      askAbout({ title, ...changeOf(name, (await told("admin/policy")).controls[name].value, known, wish) });
    } catch (fault) {
      askAbout({ title, what: fault.message });
    }
  };
  return html`<${ForActors} quiet><button type="button" aria-label=${label ? undefined : `${title}: ${name}`} onClick=${pressed}>${label ?? title}</button><//>`;
}

/** What is asked about a control of this `value`. */
function changeOf(name, value, known, wish) {
  const options = { batching: known.batching, scheduling_policy: known.orders }[name];
  const plain = value === null ? "" : typeof value === "object" ? JSON.stringify(value, null, 1) : String(value);
  const field = typeof value === "boolean" ? { kind: "choice", options: [["true", t("act.yes")], ["false", t("act.no")]] }
    : options ? { kind: "choice", options: options.map((each) => [each, each]) }
    : typeof value === "object" && value !== null ? { kind: "long" } : { kind: "text" };
  const hint = [controlText(name), value === null && t("act.empty_is_none")].filter(Boolean).join(" ") || undefined, now = field.kind === "long" ? "…" : plain || t("controls.off");
  const send = (values) => post("admin/policy", { set: { [name]: read(values.value, value) }, reason: values.reason, ...expires(values) });
  return {
    what: parts("act.change.what", { name: html`<code>${name}</code>`, now: html`<b>${line(now)}</b>` }),
    fields: [{ name: "value", label: t("act.value"), value: wish ?? plain, hint, ...field }, expiry(), reason()], send, next: href("live"),
    told: (answer) => waits(answer) ?? t("act.change.told", { name, value: JSON.stringify(answer.controls[name].value) }),
  };
}

/** The text of a field as a value of the control's kind; the server says what cannot be. */
function read(text, before) {
  if (typeof before === "string") return text;
  if (text.trim() === "") return null;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** What a person may do about one of the guard's rules. `rule`: as `admin/guard` tells it. */
export function RuleActs({ rule }) {
  const name = html`<code>${line(rule.rule)}</code>`;
  const act = (action, fields, more = () => ({})) => html`<${Act} title=${t(`act.${action}.title`)} what=${parts(`act.${action}.what`, { rule: name })} fields=${fields}
    send=${(values) => post("admin/guard", { action, rule: rule.rule, reason: values.reason, ...more(values) })} told=${guardTold} />`;
  return html`<${ForActors} quiet>${rule.waits_for_person && act("acknowledge", [reason()])}
    ${rule.overridden_by ? act("end_override", [reason()]) : act("override", [expiry(false), reason()], expires)}<//>`;
}

/** Pauses all of the guard's rules, or lets them work again. */
export function GuardActs({ paused }) {
  const action = paused ? "resume" : "pause";
  return html`<${ForActors}><${Act} title=${t(`act.guard_${action}.title`)} what=${t(`act.guard_${action}.what`)} fields=${paused ? [reason()] : [expiry(), reason()]}
    send=${(values) => post("admin/guard", { action, reason: values.reason, ...(paused ? {} : expires(values)) })} told=${guardTold} /><//>`;
}

/** That a second person must agree; null where that is not so. */
const waits = ({ approval }) => (approval?.state === "open" ? t("act.waits", { id: approval.id }) : null);

const guardTold = (answer) => waits(answer) ?? t("act.done");

/** A yes or a no to what waits for a person. */
export function ApprovalActs({ approval }) {
  const act = (action) => html`<${Act} title=${t(`act.${action}.title`)} final=${action === "refuse"} danger=${action === "refuse"} what=${t(`act.${action}.what`, { kind: line(approval.kind), subject: line(approval.subject), why: line(approval.why) })}
    fields=${[reason()]} send=${(values) => post("admin/approvals", { action, id: approval.id, reason: values.reason })} told=${(answer) => t(`approval.${answer.state}`)} />`;
  return html`<${ForActors} quiet>${act("approve")}${approval.kind !== "acknowledge" && act("refuse")}<//>`;
}

/** What waits for a person, for those who may say yes or no. */
export function Approvals() {
  const may = useStore(config)?.may_act, acted = useStore(changed);
  const asked = useAsked(may ? "admin/approvals" : null, {}, { every: 5_000, ask: told });
  useEffect(() => acted && asked.reload(), [acted]);
  if (!may) return null;
  const open = asked.value?.approvals.filter((each) => each.state === "open") ?? [];
  return html`<section aria-labelledby="approvals-title"><h2 id="approvals-title">${t("approval.title")}</h2><${Asking} asked=${asked} />
    ${asked.value && !open.length && html`<p class="soft">${t("approval.none")}</p>`}
    <ul class="rules">${open.map((each) => html`<li class="rule" key=${each.id}><p><strong>${line(each.kind)} ${line(each.subject)}</strong> <span class="chip open">${t("approval.lacking", { n: each.lacking })}</span></p>
      <p class="soft">${t("approval.asked", { who: line(each.asked_by), why: line(each.why) })}</p>
      ${Object.entries(each.values ?? {}).map(([name, value]) => html`<p key=${name}><code>${line(`${name}: ${JSON.stringify(value)}`)}</code></p>`)}<${ApprovalActs} approval=${each} /></li>`)}</ul></section>`;
}

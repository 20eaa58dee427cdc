// What a holder of an admin's key may do. Every act is a POST, names the person by the key, asks once more where nothing
// brings it back, shows what came of it, and is in the ledger.

import { classes, html, store, useEffect, useRef, useState, useStore } from "./lib.js";
import { parts, t } from "./i18n.js";
import { line, seconds } from "./format.js";
import { config } from "./config.js";
import { access, ask as askForKey } from "./key.js";

/** The act that is asked about; null for none. */
const asked = store(null);

/**
 * Asks about an act. `title`; `what`: a sentence of what will happen; `fields`: `[{name, label, kind, value, options,
 * required, hint}]`, of which `kind` is text, number, choice or long; `final`: nothing brings it back; `send(values)`: the
 * POST (without it there is nothing to do but read); `told(answer)`: what came of it, in words; `next`: the address of
 * where its effect is seen.
 */
export const askAbout = (act) => asked.set({ key: Symbol("act"), ...act });

/** The dialog of acts; the page has one. */
export function ActDialog() {
  const act = useStore(asked), dialog = useRef();
  useEffect(() => {
    if (act && !dialog.current.open) dialog.current.showModal();
    else if (!act && dialog.current.open) dialog.current.close();
  }, [act]);
  return html`<dialog ref=${dialog} class="act" aria-labelledby="act-title" onClose=${() => asked.set(null)}>
    ${act && html`<${Asked} key=${act.key} act=${act} close=${() => dialog.current.close()} />`}</dialog>`;
}

function Asked({ act, close }) {
  const who = useStore(config)?.who, form = useRef(), [state, setState] = useState({});
  const [sure, setSure] = useState(false);
  // To the first field, there again when something was wrong with it, and to the way out in the end.
  useEffect(() => state.busy || form.current.querySelector(state.done ? ".buttons button:last-child" : "input, select, textarea, button").focus(), [state]);
  const submit = async (event) => {
    event.preventDefault();
    if (state.busy || state.done) return;
    if (act.final && !sure) {
      setSure(true);
      return;
    }
    setState({ busy: true });
    try {
      const answer = await act.send(Object.fromEntries(new FormData(form.current)));
      setState({ done: act.told?.(answer) ?? t("act.done") });
      changed.set((number) => number + 1);
    } catch (fault) {
      setSure(false);
      setState({ fault: fault.message });
    }
  };
  return html`<form ref=${form} onSubmit=${submit} autocomplete="off"><h2 id="act-title">${act.title}</h2>
    ${!state.done && html`<p>${act.what}</p>`}
    ${!state.done && (act.fields ?? []).map((field) => html`<${Field} key=${field.name} field=${field} />`)}
    <p class="soft">${who ? parts("act.as", { who: html`<b><bdi>${line(who)}</bdi></b>` }) : t("act.nameless")}</p>
    <div role="alert">${state.fault && html`<p class="bad">${state.fault}</p>`}${sure && !state.done && html`<p class="bad"><b>${t("act.final")}</b></p>`}</div>
    <div role="status">${state.done && html`<p class="good"><b>${state.done}</b></p><p class="soft">${t("act.recorded")}${act.next && html` <a href=${act.next} onClick=${close}>${t("act.see")}</a>`}</p>`}</div>
    <p class="buttons">${act.send && !state.done && html`<button type="submit" class=${act.final ? "danger" : "main"} disabled=${state.busy}>${sure ? t("act.really", { title: act.title }) : act.title}</button>`}
      <button type="button" onClick=${close}>${t(state.done ? "act.close" : "act.cancel")}</button></p></form>`;
}

/** What is typed is the field's own: to draw it again changes nothing. */
function Field({ field }) {
  const { name, label, kind = "text", value = "", options = [], required = false, hint } = field;
  const given = { name, required, "aria-describedby": hint && `act-${name}` };
  const input = kind === "choice" ? html`<select ...${given}>${options.map(([each, words]) => html`<option key=${each} value=${each} selected=${each === value}>${words}</option>`)}</select>`
    : kind === "long" ? html`<textarea ...${given} rows="5" spellcheck=${false} defaultValue=${value}></textarea>`
    : html`<input ...${given} type=${kind} step="any" defaultValue=${value} maxlength=${kind === "text" ? 500 : undefined} />`;
  return html`<label>${label}${input}</label>${hint && html`<small id=${`act-${name}`}>${hint}</small>`}`;
}

/** Counts what was done from this page, so that what shows its effect asks again. */
export const changed = store(0);

/** The children for who may act; what is needed to act for who could; nothing where nobody can. `quiet`: only the first. */
export function ForActors({ children, quiet = false }) {
  const known = useStore(config);
  useStore(access);
  if (!known) return null;
  if (known.may_act) return html`<div class="acts">${children}</div>`;
  if (quiet) return null;
  return html`<p class="soft">${known.can_act ? html`${t("act.needs_key")} <button type="button" onClick=${() => askForKey()}>${t("key.give")}</button>` : t("act.no_keys")}</p>`;
}

export const reason = (required = true) => ({ name: "reason", label: t(required ? "act.reason" : "act.reason_optional"), required });

export const EXPIRIES = [60, 600, 3600, 8 * 3600, 86_400];

/** How long something is to hold. `open`: it may hold until it is changed again. */
export const expiry = (open = true) => ({
  name: "expires", label: t("act.expires"), kind: "choice", value: open ? "" : String(EXPIRIES[1]),
  options: [...(open ? [["", t("act.for_good")]] : []), ...EXPIRIES.map((each) => [String(each), t("act.for", { seconds: seconds(each) })])],
});

export const expires = (values) => (values.expires ? { expires_in_seconds: Number(values.expires) } : {});

export const Act = ({ title, danger = false, ...act }) => html`<button type="button" class=${classes(danger && "danger")} onClick=${() => askAbout({ title, ...act })}>${title}</button>`;

// What would have been: the recorded load served again by the simulator, under other settings.

import { html, useEffect, useRef, useState, useStore } from "./lib.js";
import { t } from "./i18n.js";
import { change, count, seconds, share } from "./format.js";
import { get } from "./api.js";
import { config } from "./config.js";
import { Help } from "./help.js";

const FIGURES = ["ttft_p50", "ttft_p99", "e2e_p50", "e2e_p99", "duration"], COUNTS = ["finished", "refused", "cut"];
const NUMBERS = ["max_num_seqs", "max_num_batched_tokens", "max_concurrent_prefills", "num_blocks"];

/** `wished`: settings that another part of the view asks for; a new object is another wish. */
export function WhatIf({ run, id, wished }) {
  const known = useStore(config), [state, setState] = useState({}), running = useRef(null), form = useRef(), answer = useRef();
  useEffect(() => () => running.current?.abort(), []);
  useEffect(() => void (state.value && answer.current.scrollIntoView({ block: "nearest" })), [state.value]);
  useEffect(() => {
    if (!wished) return;
    form.current.reset();
    for (const [name, value] of Object.entries(wished)) form.current.elements[name].value = value;
    form.current.requestSubmit();
    form.current.scrollIntoView({ block: "center" });
  }, [wished]);
  const submit = (event) => {
    event.preventDefault();
    const given = Object.fromEntries([...new FormData(form.current)].filter(([, value]) => value !== ""));
    if (!Object.keys(given).length) return setState({ fault: { message: t("what_if.nothing") } });
    running.current?.abort();
    const own = (running.current = new AbortController());
    setState({ busy: true });
    return get("what-if", { run, id, ...given }, { signal: own.signal }).then(
      (value) => setState({ value }),
      (fault) => fault.name === "AbortError" || setState({ fault }),
    );
  };
  const choice = (name, options) => html`<label>${t(`what_if.${name}`)}<select name=${name}><option value="">${t("what_if.as_it_was")}</option>
    ${options.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>`;
  return html`<p class="soft">${t("what_if.about")}</p>
    <form class="row" ref=${form} onSubmit=${submit}>
      ${choice("scheduling_policy", known?.orders ?? [])}${choice("batching", known?.batching ?? [])}
      ${NUMBERS.map((name) => html`<label key=${name}>${t(`what_if.${name}`)}<input name=${name} type="number" min="1" step="1" placeholder=${t("what_if.as_it_was")} /></label>`)}
      <button type="submit" class="main" disabled=${state.busy}>${t(state.busy ? "what_if.busy" : "what_if.go")}</button>
    </form>
    <div role="status" ref=${answer}>${state.fault && html`<p class="bad">${state.fault.message}</p>`}${state.value && html`<${Result} told=${state.value} />`}</div>`;
}

function Result({ told }) {
  const own = (followed, name) => html`<tr key=${name} class="own"><th scope="row" class="words">${t(`what_if.own.${name}`)}</th>
    ${["recorded", "same", "other"].map((side) => html`<td key=${side}>${seconds(followed[side]?.[name])}</td>`)}
    <td>${followed.same?.[name] && followed.other?.[name] ? change(followed.other[name] / followed.same[name] - 1) : ""}</td></tr>`;
  const row = (name, write) => html`<tr key=${name}><th scope="row" class="words">${t(`what_if.figure.${name}`)}</th>
    ${["recorded", "same", "other"].map((side) => html`<td key=${side}>${write(told[side][name])}</td>`)}
    <td>${told.same[name] ? change(told.other[name] / told.same[name] - 1) : ""}</td></tr>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${t("what_if.title")}><table>
    <thead><tr><th></th><th scope="col">${t("what_if.recorded")}</th><th scope="col"><${Help} of="what_if_same">${t("what_if.same")}<//></th><th scope="col">${t("what_if.other")}</th>
      <th scope="col"><${Help} of="what_if_change">${t("what_if.change")}<//></th></tr></thead>
    <tbody>${told.followed && ["ttft", "e2e"].map((name) => own(told.followed, name))}${FIGURES.map((name) => row(name, seconds))}${COUNTS.map((name) => row(name, count))}</tbody></table></div>
    <p class="soft">${t("what_if.error", { error: share(told.error), step: share(told.step_error), n: count(told.requests) })}${told.unknown_lengths > 0 && ` ${t("what_if.unknown", { n: count(told.unknown_lengths) })}`}</p>`;
}

// The recorded runs, for a choice of one.

import { html } from "./lib.js";
import { t } from "./i18n.js";
import { clock, line, seconds } from "./format.js";
import { useAsked } from "./asked.js";

/** The answer of `data/runs`: its `runs`, newest first. */
export const useRuns = () => useAsked("runs");

/** A run in one line. */
export const runWords = (run) => [clock(run.started), run.recording ? t("runs.recording") : seconds(run.seconds), line(run.batching ?? ""), line(run.order ?? ""), line(run.run_id)].filter(Boolean).join(" · ");

/** A choice of a run. `required`: there is no choice of "the newest". */
export function RunChoice({ label = t("runs.run"), value, onChange, runs = useRuns().value?.runs, required = false }) {
  const readable = (runs ?? []).filter((run) => run.readable);
  const there = !value || readable.some((run) => run.run_id === value);
  return html`<label class="runs">${label}<select value=${value ?? ""} onChange=${(event) => onChange(event.target.value || null)}>
    ${!required && html`<option value="">${t("runs.newest")}</option>`}${required && !value && html`<option value="" disabled>${t("runs.choose")}</option>`}
    ${!there && html`<option value=${value}>${line(value)}</option>`}
    ${readable.map((run) => html`<option key=${run.run_id} value=${run.run_id}>${runWords(run)}</option>`)}</select></label>`;
}

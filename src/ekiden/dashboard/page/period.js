// A period of a run, asked for when it is looked at: its bars and curves, and what was set and decided in it.

import { get } from "./api.js";
import { classes, html, useEffect, useState } from "./lib.js";
import { Changes } from "./controls_panel.js";
import { Help } from "./help.js";
import { t } from "./i18n.js";
import { count, moment, seconds } from "./format.js";
import { barsBetween, pointsBetween } from "./model.js";
import { RequestLink } from "./names.js";
import { TenantName } from "./queue.js";
import { Table } from "./table.js";

const PATIENCE = 180;
const MOST_WAITS = 15;

/** `{part, found, late, fault}` of the period that is shown; what the page holds of it is there at once. `late`: what was
 * found is still of another period. */
export function usePeriod(shown, known) {
  const [found, setFound] = useState(null), [fault, setFault] = useState("");
  const { follow, run, from, to } = shown;
  useEffect(() => {
    if (follow) return undefined;
    const controller = new AbortController();
    const timer = setTimeout(async () => {
      try {
        setFound(await get("period", { run, from, to }, { signal: controller.signal }));
        setFault("");
      } catch (error) {
        if (error.name !== "AbortError") setFault(error.message);
      }
    }, PATIENCE);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [follow, run, from, to]);
  if (follow) return { found: null, late: false, fault: "", part: null };
  const made = part(shown, found, known);
  return { found, late: !made.answered, fault, part: made };
}

function part({ run, from, to }, found, known) {
  const own = run === null || run === known.run, there = found && (run === null || found.run_id === run) ? found : null;
  const since = from ?? there?.start ?? 0, until = to ?? there?.end ?? known.at;
  const answered = there && there.start <= since + 0.01 && there.end >= until - 0.01;
  // What the page holds is as good, and there at once; what was asked for reaches further back.
  const holds = own && since >= known.since && !answered;
  return {
    answered: Boolean(answered), started: there?.started ?? null,
    key: `${run} ${since} ${until} ${holds ? known.changed : there?.start} ${there?.end} ${there?.bars.length}`,
    run: run ?? known.run, from: since, to: until, now: own ? known.at : there?.run_end ?? until,
    bounds: [there?.run_start ?? 0, Math.max(own ? known.at : 0, there?.run_end ?? until)], recording: own,
    slots: there?.slots ?? null, whole: there?.whole ?? true, gaps: there?.gaps ?? [],
    marks: there ? [...there.controls, ...there.guard] : [],
    bars: holds ? barsBetween(since, until) : there?.bars ?? [], points: holds ? pointsBetween(since, until) : there?.series ?? [],
  };
}

/** What else was in the period. */
export function PeriodPanels({ period, late }) {
  const waits = period.queue.map((one) => ({ ...one, took: (one.end ?? period.end) - one.start })).sort((a, b) => b.took - a.took);
  return html`<div class=${classes("panels", late && "old")} aria-busy=${late}>
    <section class="panel" aria-labelledby="waits-title"><h2 id="waits-title"><${Help} of="waits">${t("period.waits")}<//> <span class="soft">${count(waits.length)}</span></h2>
      ${waits.length === 0 ? html`<p class="soft">${t("period.no_waits")}</p>` : html`<${Table} head="request: tenant: arrived waited" by="waits-title">${waits.slice(0, MOST_WAITS).map((one) => html`<tr key=${one.request_id}><th scope="row" class="words"><${RequestLink} id=${one.request_id} run=${period.run_id} /></th><td class="words"><${TenantName} name=${one.tenant} /></td><td>${moment(one.start, 1)}</td><td>${seconds(one.took)}${one.end === null ? "…" : ""}</td></tr>`)}<//>`}</section>
    ${[["controls", period.controls], ["guard", period.guard]].map(([name, changes]) => html`<section class="panel" key=${name} aria-label=${t(`period.${name}`)}><h2>${t(`period.${name}`)} <span class="soft">${count(changes.length)}</span></h2>
      ${changes.length ? html`<${Changes} changes=${changes} short=${name === "guard"} started=${period.started} caption=${t(`period.${name}`)} />` : html`<p class="soft">${t("period.none")}</p>`}</section>`)}
  </div>`;
}

// The controls: what is in force now, and what was changed in this run, by whom and why.

import { get } from "./api.js";
import { html, useEffect, useState, useStore } from "./lib.js";
import { config } from "./config.js";
import { connection, stale, useNow } from "./connection.js";
import { Help } from "./help.js";
import { t } from "./i18n.js";
import { ControlAct, DrainActs } from "./acts_of.js";
import { Changes, Configured, SetControls, sorted } from "./controls_panel.js";

export function View() {
  const { frame } = useStore(connection), known = useStore(config), all = frame?.controls?.length ? [...frame.controls, ...switchedOff(frame.controls, known)] : unrecorded(known);
  useNow();
  const { set, configured } = sorted(all);
  const act = (one) => html`<${ControlAct} name=${one.name} />`, draining = all.some((one) => one.name === "draining" && one.value === "on");
  return html`<h1><${Help} of="controls">${t("controls.title")}<//></h1>
    <${DrainActs} draining=${draining} />
    <div class=${stale() ? "old" : ""}>
      <section aria-labelledby="set-title"><h2 id="set-title">${t("controls.set")}</h2><${SetControls} controls=${set} act=${act} /></section>
      <section aria-labelledby="configured-title"><h2 id="configured-title">${t("controls.from_configuration")}</h2><${Configured} controls=${configured} act=${act} /></section>
    </div>
    ${frame?.run_id && html`<${History} run=${frame.run_id} epoch=${frame.epoch} />`}`;
}

/** Before an engine's first turn nothing is recorded, and all is as configured. */
const unrecorded = (known) => Object.entries(known?.controls ?? {})
  .filter(([name, value]) => !["epoch", "draining"].includes(name) && value !== "" && typeof value !== "object" || value === null)
  .map(([name, value]) => ({ name, value: { true: "on", false: "off", null: "None" }[value] ?? String(value), set_by: "configuration", who: "", why: "", seconds: 0, expires_in_seconds: null }));

/** A frame has no controls that are off. */
function switchedOff(there, known) {
  const names = new Set(there.map((one) => one.name));
  return unrecorded(known).filter((one) => !names.has(one.name)).map((one) => ({ ...one, value: "off" }));
}

/** All changes of the run; asked for again when there is another one. */
function History({ run, epoch }) {
  const [found, setFound] = useState(null), [fault, setFault] = useState("");
  useEffect(() => {
    const controller = new AbortController();
    get("changes", { run }, { signal: controller.signal }).then(
      (answer) => (setFound(answer), setFault("")),
      (error) => error.name === "AbortError" || setFault(error.message),
    );
    return () => controller.abort();
  }, [run, epoch]);
  return html`<section aria-labelledby="history-title"><h2 id="history-title">${t("controls.history")}</h2>
    ${fault && html`<p class="bad" role="alert">${fault}</p>`}
    ${found && (found.controls.length ? html`<${Changes} changes=${[...found.controls].reverse()} started=${found.started} caption=${t("controls.history")} />` : html`<p class="soft">${t("controls.unchanged")}</p>`)}</section>`;
}

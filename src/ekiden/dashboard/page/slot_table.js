// What the chart of slots shows, as tables: for screen readers, and for whoever wants the numbers.

import { html, useState } from "./lib.js";
import { named, t } from "./i18n.js";
import { count, moment, seconds } from "./format.js";
import { RequestLink } from "./names.js";
import { TenantName } from "./queue.js";
import { barWords } from "./slots.js";
import { Table } from "./table.js";

const MOST = 200;

/** `slots`: those of the newest frame, or null for a period; `bars`: what the chart draws. */
export function SlotTable({ slots, bars, now, run }) {
  return html`${slots && html`<${Fold} title=${t("slots.table_now")} head="slot state: request: tenant: prompt output since left_out:" rows=${() => slots.map((slot) => html`<tr key=${slot.slot}><th scope="row">${slot.slot}</th><td class="words">${named("slot_state", slot.state)}</td>
        ${slot.request_id === null ? html`<td colspan="6"></td>` : html`<td class="words"><${RequestLink} id=${slot.request_id} run=${run} /></td><td class="words"><${TenantName} name=${slot.tenant} /></td>
        <td>${count(slot.computed_tokens)} / ${count(slot.prompt_tokens)}</td><td>${count(slot.output_tokens)} / ${count(slot.max_tokens)}</td><td>${seconds(slot.seconds)}</td><td class="words">${slot.left_out ? named("left_out", slot.left_out) : ""}</td>`}</tr>`)} />`}
    <${Fold} title=${t("slots.table_bars", { count: bars.length, n: count(bars.length) })} head="request: tenant: slot from to phases: end:" rows=${() => bars.slice(-MOST).reverse().map((bar) => {
        const words = barWords(bar, now);
        return html`<tr key=${bar.id}><th scope="row" class="words"><${RequestLink} id=${bar.request_id} run=${run} /></th><td class="words"><${TenantName} name=${bar.tenant} /></td><td>${bar.slot ?? t("slots.none")}</td>
          <td>${moment(bar.start, 1)}</td><td>${bar.end === null ? "…" : moment(bar.end, 1)}</td><td class="words">${words.phases}</td><td class="words">${words.end}</td></tr>`;
      })} />`;
}

/** A table that is made when it is opened. */
function Fold({ title, head, rows }) {
  const [open, setOpen] = useState(false);
  return html`<details onToggle=${(event) => setOpen(event.target.open)}><summary>${title}</summary>
    ${open && html`<${Table} head=${head} label=${title}>${rows()}<//>`}</details>`;
}

// Tables, which scroll by themselves where they are wider than their place, also by keys.

import { classes, html } from "./lib.js";
import { Help } from "./help.js";
import { has, t } from "./i18n.js";

/**
 * A table. `head`: the columns' names in the words (`col.NAME`) with a space between; one with a colon behind it is of
 * text. A name that has a meaning in the words (`help.NAME`) shows it. `by`: the id of what names the table, or `label`.
 */
export function Table({ head, by, label, children }) {
  return html`<div class="scroll" tabindex="0" role="group" aria-labelledby=${by} aria-label=${label}><table>
    <thead><tr>${head.split(" ").map((each) => {
      const name = each.replace(":", "");
      return html`<th scope="col" key=${name} class=${classes(name !== each && "words")}>${has(`help.col_${name}`) ? html`<${Help} of=${`col_${name}`}>${t(`col.${name}`)}<//>` : t(`col.${name}`)}</th>`;
    })}</tr></thead>
    <tbody>${children}</tbody></table></div>`;
}

// Two runs side by side: who held which slot, on one axis of time, and how their distributions differ.

import { html, useState } from "./lib.js";
import { named, t } from "./i18n.js";
import { change, count, line, number, seconds } from "./format.js";
import { Asking, useAsked } from "./asked.js";
import { Drawing } from "./drawing.js";
import { Help } from "./help.js";
import { go, href } from "./router.js";
import { RunChoice, useRuns } from "./runs.js";

/** The distributions in which more is better; in the others less is. */
const MORE = new Set(["tokens_per_second"]);

export function View({ query }) {
  const runs = useRuns(), readable = (runs.value?.runs ?? []).filter((run) => run.readable);
  const [picked, pick] = useState({});
  const a = picked.a ?? query.a ?? readable[1]?.run_id, b = picked.b ?? query.b ?? readable[0]?.run_id;
  const both = query.a && query.b, asked = useAsked(both ? "compare" : null, { a: query.a, b: query.b });
  const submit = (event) => {
    event.preventDefault();
    if (a && b) go("compare", { a, b });
  };
  return html`<div><h1>${t("compare.title")}</h1><p class="soft">${t("compare.about")}</p>
    <form class="row" onSubmit=${submit}><${RunChoice} label=${t("compare.a")} value=${a} runs=${readable} required onChange=${(run) => pick({ ...picked, a: run })} />
      <${RunChoice} label=${t("compare.b")} value=${b} runs=${readable} required onChange=${(run) => pick({ ...picked, b: run })} />
      <button type="submit" class="main" disabled=${!a || !b}>${t("compare.go")}</button></form>
    <${Asking} asked=${runs} />${runs.value && readable.length < 2 && html`<p role="status">${t("compare.few")}</p>`}
    ${both && html`<${Asking} asked=${asked} />`}${asked.value && html`<${Both} told=${asked.value} />`}
    <p class="soft">${t("compare.see")} <a href=${href("releases")}>${t("nav.releases")}</a></p></div>`;
}

function Both({ told }) {
  const { a, b } = told, sides = [a, b];
  return html`<h2>${t("compare.slots")}</h2><p>${Object.entries(told.tenants).map(([name, fill]) => html`<span key=${name} class="holder"><svg class="swatch" aria-hidden="true"><rect width="100%" height="100%" fill=${fill} /></svg> <bdi>${line(name)}</bdi></span> `)}</p>${told.pictures.map((svg, index) => html`<h3>${t(index ? "compare.b" : "compare.a")}: ${line(sides[index].label)}</h3><${Drawing} key=${sides[index].run_id} svg=${svg} label=${`${t("compare.slots")}: ${line(sides[index].run_id)}`} />`)}
    ${!told.whole && html`<p class="soft">${t("compare.cut", { seconds: seconds(told.end - told.start) })}</p>`}
    <h2>${t("compare.runs")}</h2><${Table} label=${t("compare.runs")} head=${["", "A", "B"]} rows=${[
      [t("runs.run"), ...sides.map((side) => html`<a href=${href("live", { run: side.run_id })}>${line(side.run_id)}</a>`)],
      [t("compare.model"), ...sides.map((side) => line(side.model))],
      [t("compare.seconds"), ...sides.map((side) => seconds(side.seconds))],
      [t("compare.requests"), ...sides.map((side) => count(side.requests))],
      [t("compare.refused"), ...sides.map((side) => count(side.refused))],
      [t("compare.tokens"), ...sides.map((side) => count(side.output_tokens))],
      ...Object.entries(told.differing).map(([name, values]) => [html`<code>${line(name)}</code>`, ...values.map((value) => line(typeof value === "string" ? value : JSON.stringify(value)))]),
    ]} />
    <h2>${t("compare.distributions")}</h2><p class="soft">${t("compare.spreads")}</p><${Spreads} told=${told} /><${Table} label=${t("compare.distributions")} head=${["", "A", "B", t("compare.difference"), t("compare.relative")]} rows=${Object.keys(a.distributions).flatMap((name) => levels(told, name))} />`;
}

/** Each distribution of both runs on one line: from p10 to p95, with the median. The table has the figures. */
function Spreads({ told }) {
  const names = Object.keys(told.a.distributions).filter((name) => told.differences[name]);
  return html`<ul class="spreads" aria-hidden="true">${names.map((name) => {
    const sides = [told.a, told.b].map((side) => side.distributions[name].quantiles), most = Math.max(...sides.map((of) => of.p95)) || 1;
    const x = (value) => `${((100 * value) / most).toFixed(2)}%`;
    return html`<li key=${name}><span>${named("compare.of", name)}</span><svg width="100%" height="34">${sides.map((of, index) => html`<g key=${index} class=${`c${index}`}><rect x=${x(of.p10)} y=${index * 17 + 3} width=${x(of.p95 - of.p10)} height="11" />
      <line x1=${x(of.p50)} x2=${x(of.p50)} y1=${index * 17} y2=${index * 17 + 17} /><text x="0" y=${index * 17 + 13}>${"AB"[index]}</text></g>`)}</svg></li>`;
  })}</ul>`;
}

function levels({ a, b, differences, formulas }, name) {
  const write = MORE.has(name) ? (value) => number(value) : seconds, left = a.distributions[name], right = b.distributions[name];
  return Object.keys(left?.quantiles ?? {}).map((level, index) => {
    const from = left.quantiles[level], to = right?.quantiles[level], difference = differences[name]?.[level];
    const better = difference ? (difference > 0) === MORE.has(name) : null;
    return [
      html`${index ? named("compare.of", name) : html`<${Help} text=${formulas[name]}>${named("compare.of", name)}<//>`} ${level}`, write(from), write(to),
      difference === undefined ? "" : html`${difference > 0 ? "+" : ""}${write(difference)}`,
      from && difference !== undefined ? html`${change(difference / from)} ${better !== null && html`<small class=${better ? "good" : "bad"}>${t(better ? "compare.better" : "compare.worse")}</small>`}` : "",
    ];
  });
}

function Table({ label, head, rows }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table><thead><tr>${head.map((name, index) => (name ? html`<th key=${index} scope="col">${name}</th>` : html`<td key=${index}></td>`))}</tr></thead>
    <tbody>${rows.map((row, index) => html`<tr key=${index}><th scope="row" class="words">${row[0]}</th>${row.slice(1).map((cell, at) => html`<td key=${at}>${cell}</td>`)}</tr>`)}</tbody></table></div>`;
}

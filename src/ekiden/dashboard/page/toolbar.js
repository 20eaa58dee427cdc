// Pause, back and forth through the run, nearer and farther, and what colours mean.

import { html, useState } from "./lib.js";
import { t } from "./i18n.js";
import { clock, moment, seconds } from "./format.js";

export function Toolbar({ shown, part, began, range, acts, by, colourBy, spans }) {
  const [from, to] = range(), length = to - from, least = part.bounds[0], most = Math.max(least, part.bounds[1] - length);
  const place = shown.follow ? most : Math.min(from, most);
  return html`<div class="toolbar">
    <div class="group" role="group" aria-label=${t("bar.time")}>
      ${part.recording ? html`<button type="button" class="pause" aria-pressed=${!shown.follow} onClick=${acts.pause}>${t(shown.follow ? "bar.pause" : "bar.go_on")}</button>` : html`<button type="button" onClick=${() => acts.follow()}>${t("bar.to_live")}</button>`}
      <button type="button" onClick=${() => acts.pan(-length / 2)} disabled=${from <= least} aria-label=${t("bar.back")} title=${t("bar.back")}>◀</button>
      <button type="button" onClick=${() => acts.pan(length / 2)} disabled=${shown.follow || from >= most} aria-label=${t("bar.forth")} title=${t("bar.forth")}>▶</button>
      <button type="button" onClick=${() => acts.zoom(0.5)} aria-label=${t("bar.nearer")} title=${t("bar.nearer")}>+</button>
      <button type="button" onClick=${() => acts.zoom(2)} aria-label=${t("bar.farther")} title=${t("bar.farther")}>−</button>
      <label class="choice"><span class="unseen">${t("bar.span")}</span><select onChange=${(event) => event.target.value && acts.follow(Number(event.target.value))}>
        ${!(shown.follow && spans.includes(shown.span)) && html`<option value="" selected>${seconds(length)}</option>`}
        ${spans.map((span) => html`<option value=${span} selected=${shown.follow && span === shown.span}>${t("bar.last", { seconds: seconds(span) })}</option>`)}</select></label>
    </div>
    <label class="slide"><span class="unseen">${t("bar.place")}</span><input type="range" min=${least} max=${most} step="any" value=${place}
      aria-valuetext=${t("bar.between", { from: moment(from), to: moment(to) })}
      onInput=${(event) => acts.period(Number(event.target.value), Number(event.target.value) + length)}
      onKeyDown=${(event) => slide(event, acts, length)} /></label>
    <span class="when">${shown.follow ? t("bar.following", { to: moment(part.to) }) : html`<b>${t("bar.between", { from: moment(from, 1), to: moment(to, 1) })}</b>${began !== null && html` (${clock(began + from)})`}`}</span>
    <div class="group" role="group" aria-label=${t("bar.colours")}>${["tenant", "phase"].map((name) => html`<button type="button" key=${name} aria-pressed=${by === name} onClick=${() => colourBy(name)}>${t(`bar.by_${name}`)}</button>`)}</div>
    ${!shown.follow && html`<${Copy} />`}
  </div>`;
}

/** An arrow moves by a tenth of what is shown, not by a share of the run, which may be days. */
function slide(event, acts, length) {
  const way = { ArrowLeft: -0.1, ArrowDown: -0.1, ArrowRight: 0.1, ArrowUp: 0.1 }[event.key];
  if (way === undefined) return;
  event.preventDefault();
  acts.pan(way * length);
}

/** Copies the address of what is shown. */
function Copy() {
  const [done, setDone] = useState(false);
  if (!navigator.clipboard) return null; // not over plain HTTP from elsewhere; the address bar has it too
  const copy = () => setTimeout(() => navigator.clipboard.writeText(location.href).then(() => setDone(true), () => {}), 450);
  return html`<button type="button" onClick=${copy} title=${t("bar.copy")} aria-label=${t("bar.copy")}><svg width="16" height="16" viewBox="0 0 16 16" class="icon" aria-hidden="true"><path d=${done ? "M2 8l4 4 8-9" : "M5 4V2h9v9h-2M2 5h9v9H2z"} /></svg></button><span class="unseen" role="status">${done ? t("bar.copied") : ""}</span>`;
}

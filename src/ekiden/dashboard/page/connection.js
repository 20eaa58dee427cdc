// What the page knows, and as of when. An age is counted from when a frame ARRIVED, by the page's own clocks, so that a
// clock that is wrong here or there makes nothing look newer than it is. Two of them are asked and the longer time
// counts: performance.now() may stand still while a machine sleeps, and the time of day may be put back.

import { data } from "./api.js";
import { classes, html, store, useEffect, useInterval, useState, useStore } from "./lib.js";
import { has, t } from "./i18n.js";
import { clock, seconds } from "./format.js";
import { access, ask } from "./key.js";
import { stream } from "./stream.js";

/** From this age on figures are greyed, in seconds. */
export const STALE = 3;

/** `phase` of the stream (stream.js), its `fault` and `retryAt`; `frame`: the newest one, or null; `arrived`: when that
 * was, by both clocks. */
export const connection = store({ phase: "opening", fault: null, retryAt: null, frame: null, arrived: null });

const both = () => ({ steady: performance.now(), day: Date.now() });

/** Seconds since the newest frame arrived; null before the first. */
export function age() {
  const { arrived } = connection.get();
  if (arrived === null) return null;
  const now = both();
  return Math.max(now.steady - arrived.steady, now.day - arrived.day, 0) / 1000;
}

/** Whether figures of the newest frame are to be shown as old. */
export const stale = () => {
  const seconds = age();
  return seconds === null || seconds > STALE;
};

const takers = new Set();
let opened = null;

/** Opens the one stream of the page, of the run that is being written or of a recorded one. */
export function connect() {
  opened ??= stream(() => data("stream"), {
    onEvent({ event, data: frame }) {
      if (event !== "frame") return;
      connection.set((now) => ({ ...now, frame, arrived: both() }));
      for (const taker of takers) taker(frame);
    },
    onPhase: (next) => connection.set((now) => ({ ...now, fault: null, retryAt: null, ...next })),
  });
}

/** Calls `taker` with each frame, none left out; returns its undoing. */
export function onFrame(taker) {
  takers.add(taker);
  return () => takers.delete(taker);
}

/** The newest frame's state in one word: the engine's, or that of the connection where it is older. */
export function standing() {
  const { phase, frame } = connection.get();
  if (phase === "locked" || phase === "unseen") return phase;
  if (frame === null) return phase === "waiting" ? "lost" : "opening";
  if (stale()) return phase === "open" ? "silent" : "lost";
  return frame.state;
}

/** Draws the view again twice a second, for ages; less often where nobody looks. */
export function useNow() {
  const [, draw] = useState(0);
  useInterval(() => document.hidden || draw((number) => number + 1), 500);
}

/** The line that says whether the figures are live, and if not, of when they are and why. */
export function ConnectionLine() {
  const now = useStore(connection);
  useStore(access);
  useNow();
  const state = standing(), passed = age();
  const when = now.frame && stale() && t("state.as_of", { ago: seconds(Math.floor(passed)), clock: clock(now.frame.as_of) });
  const left = now.phase === "waiting" && now.retryAt && Math.max(0, Math.ceil((now.retryAt - performance.now()) / 1000));
  return html`<div class=${classes("connection", `is-${state}`)} role="region" aria-label=${t("state.label")}>
    <span class="sign" aria-hidden="true"></span>
    <strong>${t(`state.${state}.name`)}</strong>
    ${when && html` <span>${when}</span>`}
    <span>${has(`state.${state}.why`) ? t(`state.${state}.why`) : ""}</span>
    ${now.fault?.message && state !== "ok" && state !== "locked" && html` <span>${now.fault.message}</span>`}
    ${left && state !== "ok" && html` <span>${t("state.retry", { seconds: seconds(left) })}</span>`}
    ${state === "locked" && html` <button type="button" onClick=${() => ask(now.fault?.message)}>${t("key.give")}</button>`}
    <${Spoken} state=${state} />
  </div>`;
}

/** The state for screen readers: said when it changes, not when the seconds do. */
function Spoken({ state }) {
  const [said, say] = useState("");
  useEffect(() => {
    const timer = setTimeout(() => say(t(`state.${state}.name`)), 800); // what passes is not worth a word
    return () => clearTimeout(timer);
  }, [state]);
  return html`<span class="unseen" role="status">${said}</span>`;
}

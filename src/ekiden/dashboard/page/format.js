// Numbers, times and shares in the language of the page. Whatever is missing is a dash.

import { language, t } from "./i18n.js";

export const NONE = "–";

const formats = new Map();

function written(value, options) {
  const key = language.get() + JSON.stringify(options);
  if (!formats.has(key)) formats.set(key, new Intl.NumberFormat(language.get(), options));
  return formats.get(key).format(value);
}

const missing = (value) => value === null || value === undefined || Number.isNaN(value);

/** A whole number with its thousands apart. */
export const count = (value) => (missing(value) ? NONE : written(value, { maximumFractionDigits: 0 }));

/** A number of `digits` significant digits. */
export const number = (value, digits = 3) =>
  missing(value) ? NONE : written(value, Math.abs(value) >= 1000 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: digits });

/** A share of one in percent. */
export const share = (value) =>
  missing(value) ? NONE : written(value, { style: "percent", maximumFractionDigits: Math.abs(value) < 0.1 && value !== 0 ? 1 : 0 });

/** A signed share, for differences. */
export const change = (value) =>
  missing(value) ? NONE : written(value, { style: "percent", maximumFractionDigits: 1, signDisplay: "exceptZero" });

/** Seconds in the unit that reads best: 0.8 ms, 12.3 ms, 1.24 s, 2 min 5 s, 3 h 10 min. */
export function seconds(value) {
  if (missing(value)) return NONE;
  const size = Math.abs(value);
  if (size === 0) return t("unit.seconds", { n: 0 });
  if (size < 1) return t("unit.milliseconds", { n: number(value * 1000) });
  if (size < 99.95) return t("unit.seconds", { n: number(value) });
  const whole = Math.round(size), minutes = Math.floor(whole / 60) % 60, hours = Math.floor(whole / 3600);
  const sign = value < 0 ? "-" : "";
  if (hours) return sign + t("unit.hours", { h: count(hours), m: minutes });
  return sign + t("unit.minutes", { m: minutes, s: whole % 60 });
}

/** A moment of a run: 0:05, 12:34.5, 1:02:03. `digits` are those of the seconds after the point. */
export function moment(value, digits = 0) {
  if (missing(value)) return NONE;
  const rounded = Math.round(Math.abs(value) * 10 ** digits) / 10 ** digits;
  const hours = Math.floor(rounded / 3600), minutes = Math.floor(rounded / 60) % 60;
  const rest = (rounded % 60).toFixed(digits).padStart(digits ? 3 + digits : 2, "0");
  const head = hours ? `${hours}:${String(minutes).padStart(2, "0")}` : String(minutes);
  return `${value < 0 ? "-" : ""}${head}:${rest}`;
}

/** The time of day of Unix seconds; with the date where that is not today. */
export function clock(unix) {
  if (missing(unix)) return NONE;
  const when = new Date(unix * 1000);
  const options = { hour: "2-digit", minute: "2-digit", second: "2-digit" };
  if (when.toDateString() !== new Date().toDateString()) Object.assign(options, { year: "numeric", month: "short", day: "numeric" });
  return new Intl.DateTimeFormat(language.get(), options).format(when);
}

/** Text of others as one line: what would turn its direction or break it is shown as a sign. */
export const line = (text) => String(text ?? "").replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, "�");

/** As `line`, cut in the middle where it is longer than `most`: ids differ at both ends. */
export function brief(text, most = 24) {
  const signs = [...line(text)];
  if (signs.length <= most) return signs.join("");
  const tail = Math.floor((most - 1) / 3);
  return `${signs.slice(0, most - 1 - tail).join("")}…${tail ? signs.slice(-tail).join("") : ""}`;
}

/** Names with their counts, in words: `12 stop, 3 length`. `name` says how a name reads. */
export const counts = (object, name = String) =>
  Object.entries(object ?? {}).map(([each, of]) => `${count(of)} ${name(each)}`).join(t("unit.comma")) || t("unit.none");

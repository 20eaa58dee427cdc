// The words of the page, by the browser's language and a switch. `words.json` has them side by side, in the order of
// LANGUAGES; what is the same in all stands once.

import { store } from "./lib.js";
import { keep, kept } from "./kept.js";

export const LANGUAGES = { en: "English", ja: "日本語" };

/** The language in use; setting it goes through `speak`. */
export const language = store("en");

let words = null, place = 0;

/** The viewer's choice, else the first of the browser's languages that the page speaks, else English. */
export function preferred() {
  const wanted = [kept("language"), ...navigator.languages.map((each) => each.split("-")[0])];
  return wanted.find((each) => each in LANGUAGES) ?? "en";
}

/** Switches to a language, once the words are there. */
export async function speak(name, { remember = false } = {}) {
  if (words === null) {
    const answer = await fetch(new URL("words.json", import.meta.url));
    if (!answer.ok) throw new Error(`words.json: ${answer.status}`);
    words = await answer.json();
  }
  place = Object.keys(LANGUAGES).indexOf(name);
  if (remember) keep("language", name);
  document.documentElement.lang = name;
  language.set(name);
}

function found(key) {
  let value = words;
  for (const part of key.split(".")) value = value?.[part];
  return here(value);
}

/** In the language in use. */
const here = (value) => (Array.isArray(value) ? value[place] : value);

/** Whether there are words for a key. */
export const has = (key) => typeof found(key) === "string";

/** The words for a key, with `{name}` filled in. Where `count` is given, `KEY.one` or `KEY.other` by the language. */
export function t(key, values = {}) {
  let text = found(key);
  if (text !== null && typeof text === "object" && "count" in values) {
    text = here(text[new Intl.PluralRules(language.get()).select(values.count)] ?? text.other);
  }
  if (typeof text !== "string") return key;
  return text.replace(/\{(\w+)\}/g, (whole, name) => String(values[name] ?? whole));
}

/** As `t`, with elements in the places of names: a list of text and elements. */
export function parts(key, values) {
  const text = found(key);
  return (typeof text === "string" ? text : key)
    .split(/(\{\w+\})/)
    .map((part) => values[part.slice(1, -1)] ?? part);
}

/** The words for one of the server's own names (`waiting_for_slot`), else the name, readable. */
export const named = (group, name) => (has(`${group}.${name}`) ? t(`${group}.${name}`) : String(name).replaceAll("_", " "));

// Names that others chose, and the server's own names, as the page writes them.

import { html } from "./lib.js";
import { language, named, t } from "./i18n.js";
import { brief, line, seconds } from "./format.js";
import { href } from "./router.js";

/** A request's id as a link to what happened to it. `run`: where it is recorded; none for the newest run that has it. */
export function RequestLink({ id, run, most = 16 }) {
  return html`<a class="id" href=${href(["request", id], { run })} title=${line(id)}><bdi>${brief(id, most)}</bdi></a>`;
}

/** A name that somebody outside chose. */
export const Name = ({ of, most = 32 }) => html`<bdi title=${line(of)}>${brief(of, most)}</bdi>`;

/** Where time went to, in words: the server's own (`told`) in English. */
export function causeWords(cause, told) {
  if (language.get() === "en" && told) return told;
  const what = named("cause", cause);
  return WAITS.test(cause) ? t("told.waits", { what }) : what;
}

const WAITS = /^(step_boundary|waiting_(?!to))/;

/** How a request ended, or how it stands. */
export const endWords = (line_) => (line_.refusal ? named("refusal", line_.refusal) : line_.end ? named("end", line_.end) : t("end.in_flight"));

/** A sentence that the server has in English only. */
export const English = ({ children }) => (language.get() === "en" ? children : html`<span lang="en">${children}</span>`);

/** What explain says first: its own sentence in English, and the same facts in other languages. */
export function headline(told) {
  if (language.get() === "en") return told.headline;
  if (told.status === "refused") return t("told.refused", { reason: named("refusal", told.reason) });
  const [first] = told.causes, other = told.causes.find((share) => !OWN.has(share.cause) && share !== first && share.seconds >= 0.001);
  const say = (key, share) => share && t(key, { seconds: seconds(share.seconds), percent: Math.round(share.share * 100), cause: causeWords(share.cause) });
  const end = named("end", told.status === "in_flight" ? "in_flight" : told.reason);
  return [t("told.ended", { end, total: seconds(told.e2e_seconds), tokens: told.output_tokens }), say("told.most", first), OWN.has(first?.cause) && say("told.other", other)].filter(Boolean).join("");
}

/** What a request does for itself. */
export const OWN = new Set(["own_prefill", "own_decode"]);

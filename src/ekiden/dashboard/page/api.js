// Asking the server: the key in a header, and errors in words. What changes something is a POST, always.

import { t } from "./i18n.js";
import { access, headers, refused } from "./key.js";

const DASHBOARD = new URL("./", import.meta.url);
const ROOT = new URL("../", import.meta.url);

/** What went wrong with one question. `status` 0: no answer came. `code` is the server's name for it. */
export class Fault extends Error {
  constructor(message, { status = 0, code = null, retryAfter = null } = {}) {
    super(message);
    Object.assign(this, { status, code, retryAfter });
  }
}

/** The whole address of the page's data, such as `data("runs")` or `data("period", {from: 1})`. */
export function data(name, query = {}) {
  const address = new URL(`data/${name}`, DASHBOARD);
  for (const [key, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") address.searchParams.set(key, value);
  }
  return address;
}

/** The page's data: `await get("runs")`. Raises a Fault. */
export const get = (name, query, options = {}) => asked(data(name, query), { signal: options.signal });

/** What one of the server's own doors tells, such as `await told("admin/policy")`. Raises a Fault. */
export const told = (path, query, options = {}) => asked(new URL(path, ROOT), { signal: options.signal });

/** One of the server's own doors, such as `await post("admin/pause", {request_id})`. Raises a Fault. */
export const post = (path, body, options = {}) =>
  asked(new URL(path, ROOT), {
    method: "POST",
    body: JSON.stringify(body),
    headers: { "content-type": "application/json" },
    signal: options.signal,
  });

/** The answer itself, for a stream; raises a Fault where it is none. A key in `options.headers` goes before the page's
 * own; `quiet`: a refusal of the key is only told, as the page's key may be right for all else. */
export async function open(address, { quiet = false, ...options } = {}) {
  let answer;
  const { turn } = access.get();
  try {
    answer = await fetch(new URL(address, ROOT), {
      ...options, headers: { ...headers(), ...options.headers }, cache: "no-store", credentials: "omit", redirect: "error",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Fault(t("fault.no_answer"));
  }
  // What is said of an earlier key, or of none, is not of the one that was given meanwhile.
  if (!answer.ok) throw await fault(answer, () => !quiet && access.get().turn === turn);
  return answer;
}

async function asked(address, options) {
  const answer = await open(address, options);
  try {
    return await answer.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Fault(t("fault.unreadable"), { status: answer.status });
  }
}

async function fault(answer, tells) {
  let told = {};
  try {
    told = (await answer.json()).error ?? {};
  } catch {
    // no words with it
  }
  const message = told.message ?? t(`fault.${answer.status >= 500 ? "server" : "client"}`, { status: answer.status });
  const key = answer.status === 401 || (answer.status === 403 && told.code === "insufficient_scope");
  if (key && tells()) refused(answer.status, message);
  return new Fault(message, { status: answer.status, code: told.code ?? null, retryAfter: answer.headers.get("retry-after") });
}

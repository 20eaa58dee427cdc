// A question to the server as a view has it: the answer, what went wrong, or neither yet.

import { get } from "./api.js";
import { html, useEffect, useState, useStore } from "./lib.js";
import { t } from "./i18n.js";
import { access } from "./key.js";

/**
 * Asks for `name` with `query`, again when they change, when the key does, and every `every` milliseconds where that is
 * given. Returns `{value, fault, busy, reload}`. The answer to another question is never shown as that to this one. No
 * `name`: nothing is asked.
 */
export function useAsked(name, query = {}, { every = null, ask = get } = {}) {
  const question = name && `${name}?${JSON.stringify(query)}`;
  const { turn } = useStore(access);
  const [state, setState] = useState({ question: null, value: null, fault: null, busy: true });
  const [times, setTimes] = useState(0);
  const reload = () => setTimes((number) => number + 1);
  useEffect(() => {
    if (!name) return undefined;
    const controller = new AbortController();
    setState((now) => ({ question, value: now.question === question ? now.value : null, fault: null, busy: true }));
    ask(name, query, { signal: controller.signal }).then(
      (value) => controller.signal.aborted || setState({ question, value, fault: null, busy: false }),
      (fault) => controller.signal.aborted || setState((now) => ({ ...now, fault, busy: false })),
    );
    return () => controller.abort();
  }, [question, turn, times]);
  useEffect(() => {
    if (!every) return undefined;
    const timer = setInterval(() => document.hidden || reload(), every);
    return () => clearInterval(timer);
  }, [every]);
  const ours = state.question === question;
  return { value: ours ? state.value : null, fault: ours ? state.fault : null, busy: !ours || state.busy, reload };
}

/** What there is to say while there is no answer, or when a newer one could not be had. */
export function Asking({ asked }) {
  return html`<div class="asking">${asked.fault && html`<p class="bad" role="alert">${asked.fault.message} <button type="button" onClick=${asked.reload}>${t("asked.again")}</button></p>`}
    ${!asked.fault && !asked.value && asked.busy && html`<p class="soft" role="status">${t("asked.waiting")}</p>`}</div>`;
}

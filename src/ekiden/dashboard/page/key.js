// The key: asked for once, kept in this module's memory, sent as a header. It is in no storage and in no address, and is
// gone when the page is closed or loaded again.

import { html, store, useLayoutEffect, useRef, useState, useStore } from "./lib.js";
import { parts, t } from "./i18n.js";

let key = "";

/** `given`: whether there is a key. `asked`: the dialog is open. `why`: what the server said of the last try. `turn`
 * counts the keys, so that what waits for one begins again. */
export const access = store({ given: false, asked: false, why: "", status: 0, turn: 0 });

/** The headers that carry the key. */
export const headers = () => (key ? { authorization: `Bearer ${key}` } : {});

/** Opens the dialog. */
export const ask = (why = "") => access.set((now) => ({ ...now, asked: true, why }));

/** The server did not let us in (401, 403). The dialog comes up by itself once: who closes it is not asked again. */
export function refused(status, message) {
  access.set((now) => ({
    ...now,
    status,
    why: key ? message : "",
    asked: now.asked || now.status === 0 || Boolean(key && now.status === 200),
  }));
}

/** Calls `watcher` when there is another key, or none any more; returns its undoing. */
export function onKey(watcher) {
  let known = access.get().turn;
  return access.watch(({ turn }) => {
    if (turn === known) return;
    known = turn;
    watcher();
  });
}

function give(value) {
  key = value.trim();
  access.set((now) => ({ given: Boolean(key), asked: false, why: "", status: key ? 200 : 0, turn: now.turn + 1 }));
}

/** Forgets the key; what it opened is closed with it. */
export const forget = () => give("");

/** The dialog that asks for the key. */
export function KeyDialog() {
  const state = useStore(access), dialog = useRef(), field = useRef();
  const [seen, setSeen] = useState(false);
  useLayoutEffect(() => {
    const element = dialog.current;
    if (state.asked && !element.open) {
      setSeen(false);
      element.showModal();
      field.current.value = "";
      field.current.focus();
    } else if (!state.asked && element.open) element.close();
  }, [state.asked]);
  const submit = (event) => {
    event.preventDefault();
    if (field.current.value.trim()) give(field.current.value);
    field.current.value = "";
  };
  const closed = () => access.get().asked && access.set((now) => ({ ...now, asked: false }));
  return html`<dialog ref=${dialog} class="key" aria-labelledby="key-title" onClose=${closed}>
    <form onSubmit=${submit} autocomplete="off">
      <h2 id="key-title">${t("key.title")}</h2>
      <p>${parts("key.what", { command: html`<code>ekiden keys new NAME --scope admin</code>` })}</p>
      ${state.why && html`<p class="bad" role="alert">${state.why}</p>`}
      <label>${t("key.field")}
        <input ref=${field} type=${seen ? "text" : "password"} name="ekiden-key" autocomplete="off" spellcheck=${false}
          autocapitalize="off" required aria-describedby="key-memory" /></label>
      <label class="check"><input type="checkbox" checked=${seen} onChange=${(event) => setSeen(event.target.checked)} />
        ${t("key.show")}</label>
      <p class="soft" id="key-memory">${t("key.memory")}</p>
      <p class="buttons"><button type="submit" class="main">${t("key.use")}</button>
        <button type="button" onClick=${closed}>${t("key.later")}</button></p>
    </form>
  </dialog>`;
}

/** The button of the header that gives or forgets the key. */
export function KeyButton() {
  const { given } = useStore(access);
  return html`<button type="button" onClick=${given ? forget : () => ask()}>${t(given ? "key.forget" : "key.give")}</button>`;
}

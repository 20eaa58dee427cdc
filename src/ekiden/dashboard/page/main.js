// The page's frame: header, navigation, state of the connection, and the view that the address names. An error in a view
// is told in its place; the others go on.

import { ActDialog } from "./acts.js";
import { config, configure } from "./config.js";
import { classes, html, render, useEffect, useErrorBoundary, useRef, useState, useStore } from "./lib.js";
import { LANGUAGES, has, language, preferred, speak, t } from "./i18n.js";
import { brief } from "./format.js";
import { KeyButton, KeyDialog, access, onKey } from "./key.js";
import { ConnectionLine, connect, connection } from "./connection.js";
import { href, route } from "./router.js";
import { SHOWN, VIEWS } from "./views.js";
import { THEMES, theme } from "./theme.js";

function Choice({ label, value, options, onChange }) {
  return html`<label class="choice"><span class="unseen">${label}</span>
    <select value=${value} onChange=${(event) => onChange(event.target.value)} title=${label}>
      ${options.map(([name, words, lang]) => html`<option value=${name} lang=${lang} selected=${name === value}>${words}</option>`)}
    </select></label>`;
}

function Header({ current }) {
  const now = useStore(connection), known = useStore(config), chosen = useStore(theme), { given } = useStore(access);
  const model = now.frame?.model ?? known?.model;
  return html`<header class="top">
    <a class="brand" href=${href("live")}><img src="dashboard/mark.svg" alt="" width="24" height="24" /> Ekiden</a>
    <nav aria-label=${t("nav.label")}><ul>
      ${SHOWN.map((name) => html`<li key=${name}><a href=${href(name)} aria-current=${name === current ? "page" : undefined}>${t(`nav.${name}`)}</a></li>`)}
    </ul></nav>
    ${model && html`<span class="model soft" title=${model}>${brief(model, 32)}</span>`}
    <span class="tools">
      <${Choice} label=${t("tools.language")} value=${language.get()} onChange=${(name) => speak(name, { remember: true })}
        options=${Object.entries(LANGUAGES).map(([name, words]) => [name, words, name])} />
      <${Choice} label=${t("tools.theme")} value=${chosen} onChange=${theme.set}
        options=${THEMES.map((name) => [name, t(`theme.${name}`)])} />
      ${known?.who && html`<span class="soft">${t("key.who", { who: brief(known.who, 20) })}</span>`}
      ${(known === null || known.has_keys || given) && html`<${KeyButton} />`}
    </span>
  </header>`;
}

/** Shows a view, or what kept it from being shown. */
function Shown({ address }) {
  const [found, setFound] = useState({ View: null, error: null });
  const [broken, again] = useErrorBoundary((error) => console.error(error));
  useEffect(() => {
    let there = true;
    const load = VIEWS[address.name];
    if (broken) again();
    if (!load) setFound({ View: Missing, error: null });
    else load().then(({ View }) => there && setFound({ View, error: null }), (error) => there && setFound({ View: null, error }));
    return () => (there = false);
  }, [address.name]);
  const error = broken ?? found.error;
  if (error) {
    return html`<div class="broken" role="alert"><h1>${t("broken.title")}</h1><p>${t("broken.what")}</p>
      <pre>${String(error?.message ?? error)}</pre>
      <p><button type="button" onClick=${() => location.reload()}>${t("broken.reload")}</button></p></div>`;
  }
  if (!found.View) return html`<p class="soft">${t("state.loading")}</p>`;
  return html`<${found.View} key=${address.name} rest=${address.rest} query=${address.query} />`;
}

function Missing() {
  return html`<h1>${t("missing.title")}</h1><p><a href=${href("live")}>${t("missing.way")}</a></p>`;
}

function Page() {
  const address = useStore(route), main = useRef(), first = useRef(true);
  useStore(language);
  const here = t(has(`nav.${address.name}`) ? `nav.${address.name}` : "missing.title");
  useEffect(() => {
    document.title = `${here} · Ekiden`;
  }, [here]);
  useEffect(() => {
    if (first.current) first.current = false;
    else main.current.focus(); // screen readers begin with the new view
  }, [address.name, address.rest.join("/")]);
  return html`<a class="skip" href="#main" onClick=${(event) => (event.preventDefault(), main.current.focus())}>${t("nav.skip")}</a>
    <${Header} current=${address.name} />
    <${ConnectionLine} />
    <main id="main" ref=${main} tabindex="-1" class=${classes("view", `view-${address.name in VIEWS ? address.name : "missing"}`)}>
      <${Shown} key=${address.name} address=${address} />
    </main>
    <${KeyDialog} /><${ActDialog} />`;
}

const place = document.getElementById("page");
await speak(preferred());
onKey(configure);
let opened = "opening";
connection.watch(({ phase }) => {
  if (phase === "open" && opened !== "open" && opened !== "opening") configure(); // the server may be another one now
  opened = phase;
});
place.replaceChildren();
render(html`<${Page} />`, place);
configure();
connect();

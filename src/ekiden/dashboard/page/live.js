import { html, useStore } from "./lib.js";
import { connection } from "./connection.js";
import { t } from "./i18n.js";

export function View() {
  const { frame } = useStore(connection);
  return html`<h1>${t("live.title")}</h1><p>${frame?.model}</p>`;
}

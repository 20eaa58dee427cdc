// Addresses of views: `#/NAME/ID?from=1&to=2`. They can be sent to a colleague, and nothing secret is in them.

import { store } from "./lib.js";

const read = () => {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const [name, ...rest] = path.split("/").map(unescaped);
  return { name: name || "live", rest, query: Object.fromEntries(new URLSearchParams(query ?? "")) };
};

function unescaped(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // an address that somebody cut short
  }
}

/** The view that the address names: `{name, rest, query}`. `rest` are the parts of the path behind the name. */
export const route = store(read());

addEventListener("hashchange", () => route.set(read()));

/** The address of a view, for a link. `path`: `"live"` or `["request", id]`. What is null or empty is left out. */
export function href(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `#/${[path].flat().map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

/** Goes to a view, and the one before stays behind the browser's back button. */
export function go(path, query) {
  location.hash = href(path, query);
}

/** The same view with another address: nothing is added to the browser's history. */
export function rewrite(path, query) {
  const address = href(path, query);
  if (address === location.hash) return;
  history.replaceState(null, "", address);
  route.set(read());
}

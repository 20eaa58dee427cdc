// Light, dark, or what the system says. The colours themselves are in style.css.

import { store } from "./lib.js";
import { keep, kept } from "./kept.js";

export const THEMES = ["auto", "light", "dark"];

/** The choice: one of THEMES. */
export const theme = store(THEMES.includes(kept("theme")) ? kept("theme") : "auto");

const dark = matchMedia("(prefers-color-scheme: dark)");

/** Counts the changes of colours, so that what is drawn on a canvas is drawn again. */
export const colours = store(0);

function apply() {
  document.documentElement.dataset.theme = theme.get();
  found.clear();
  colours.set((number) => number + 1);
}

const probe = document.createElement("span");
probe.hidden = true;
document.documentElement.append(probe);
const found = new Map();

/** The value of a colour of style.css, as a canvas takes it. */
export function colour(name) {
  if (!found.has(name)) {
    probe.style.color = `var(--${name})`;
    found.set(name, getComputedStyle(probe).color);
  }
  return found.get(name);
}

/** Whether the viewer asked for less motion. */
export const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

theme.watch((name) => {
  keep("theme", name);
  apply();
});
dark.addEventListener("change", apply);
apply();

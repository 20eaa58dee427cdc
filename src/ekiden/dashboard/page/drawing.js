// An SVG that the server drew (the slot charts of the demo and of reports), as elements of this page. Of its text only
// shapes, words and links to views of this page are taken: nothing in it can run, fetch or leave.

import { h, html, useMemo } from "./lib.js";

const SHAPES = new Set(["svg", "g", "rect", "line", "path", "circle", "text", "tspan", "title", "a"]);
const SHOWN = new Set([
  "viewBox", "role", "aria-label", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "rx", "d", "width", "height", "class", "fill",
  "opacity", "text-anchor", "stroke", "stroke-width", "stroke-dasharray",
]);

function taken(node) {
  if (node.nodeType === Node.TEXT_NODE) return node.data;
  if (node.nodeType !== Node.ELEMENT_NODE || !SHAPES.has(node.localName)) return null;
  const properties = {};
  for (const { name, value } of node.attributes) {
    if (SHOWN.has(name) && !/url\(/i.test(value)) properties[name] = value;
    if (name === "href" && node.localName === "a" && value.startsWith("/#/")) properties.href = value.slice(1);
  }
  if (node.localName === "svg" && node.querySelector("a")) properties.role = "group"; // a picture has nothing to press
  return h(node.localName, properties, ...[...node.childNodes].map(taken));
}

/** The drawing, which scrolls sideways where it does not fit. `label` is its name. */
export function Drawing({ svg, label }) {
  const drawn = useMemo(() => {
    const root = new DOMParser().parseFromString(svg, "image/svg+xml").documentElement;
    return root.localName === "svg" ? taken(root) : null;
  }, [svg]);
  return drawn && html`<div class="slots scroll" tabindex="0" role="region" aria-label=${label}>${drawn}</div>`;
}

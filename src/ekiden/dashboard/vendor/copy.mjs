// Copies the files that the page loads, and their licences, from node_modules to page/vendor. `make vendor` runs it.
// htm's file holds preact too (`preact` itself is installed for its licence).

import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createHash } from "node:crypto";

const FILES = {
  "htm/preact/standalone.module.js": "preact-htm.js",
  "htm/LICENSE": "htm.LICENSE.txt",
  "preact/LICENSE": "preact.LICENSE.txt",
  "uplot/dist/uPlot.iife.min.js": "uplot.js",
  "uplot/dist/uPlot.min.css": "uplot.css",
  "uplot/LICENSE": "uplot.LICENSE.txt",
};

const from = new URL("node_modules/", import.meta.url);
const to = new URL("../page/vendor/", import.meta.url);
mkdirSync(to, { recursive: true });
const digests = {};
for (const [source, name] of Object.entries(FILES)) {
  copyFileSync(new URL(source, from), new URL(name, to));
  digests[name] = createHash("sha256").update(readFileSync(new URL(name, to))).digest("hex");
}
const versions = Object.fromEntries(
  ["htm", "preact", "uplot"].map((name) => [
    name, JSON.parse(readFileSync(new URL(`${name}/package.json`, from), "utf8")).version,
  ]),
);
writeFileSync(new URL("digests.json", import.meta.url), JSON.stringify({ versions, digests }, null, 2) + "\n");

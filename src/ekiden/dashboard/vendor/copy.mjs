// Copies what the page loads of others from node_modules to page/vendor, packed, since nobody reads a minified file; and
// their licences to licences/. `make vendor` runs it. htm's file holds preact too (`preact` is there for its licence).

import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createHash } from "node:crypto";
import { gzipSync } from "node:zlib";

const FILES = {
  "htm/preact/standalone.module.js": "preact-htm.js",
  "uplot/dist/uPlot.iife.min.js": "uplot.js",
  "uplot/dist/uPlot.min.css": "uplot.css",
};
const LICENCES = { htm: "LICENSE", preact: "LICENSE", uplot: "LICENSE" };

const from = new URL("node_modules/", import.meta.url);
const to = new URL("../page/vendor/", import.meta.url), licences = new URL("licences/", import.meta.url);
mkdirSync(to, { recursive: true });
mkdirSync(licences, { recursive: true });
const digests = {}, versions = {};
for (const [source, name] of Object.entries(FILES)) {
  const content = readFileSync(new URL(source, from));
  writeFileSync(new URL(`${name}.gz`, to), gzipSync(content, { level: 9 }));
  digests[name] = createHash("sha256").update(content).digest("hex");
}
for (const [name, file] of Object.entries(LICENCES)) {
  writeFileSync(new URL(`${name}.txt`, licences), readFileSync(new URL(`${name}/${file}`, from)));
  versions[name] = JSON.parse(readFileSync(new URL(`${name}/package.json`, from), "utf8")).version;
}
writeFileSync(new URL("digests.json", import.meta.url), JSON.stringify({ versions, digests }, null, 2) + "\n");

// Unpacks the browser into node_modules/.browser, with the libraries that a machine may lack and fonts of its own, so
// that pages look the same everywhere. Run once, by the Makefile.

import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const modules = join(dirname(fileURLToPath(import.meta.url)), "node_modules");
const target = join(modules, ".browser");
rmSync(target, { recursive: true, force: true });
mkdirSync(target, { recursive: true });
process.env.TMPDIR = target; // where the package unpacks; it reads this when it is loaded

const { inflate } = await import("@sparticuz/chromium");
const packed = join(modules, "@sparticuz/chromium/bin");
await Promise.all(["chromium.br", "fonts.tar.br", "al2023.tar.br"].map((name) => inflate(join(packed, name))));

const folders = [join(target, "fonts"), join(modules, "@embedpdf/fonts-jp/fonts")];
writeFileSync(
  join(target, "fonts.conf"),
  `<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
${folders.map((folder) => `  <dir>${folder}</dir>`).join("\n")}
  <cachedir>${join(target, "font-cache")}</cachedir>
  <alias><family>sans-serif</family><prefer><family>Open Sans</family><family>Noto Sans JP</family></prefer></alias>
  <alias><family>system-ui</family><prefer><family>Open Sans</family><family>Noto Sans JP</family></prefer></alias>
</fontconfig>
`,
);

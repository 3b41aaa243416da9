// Checks that need no browser: types, imports, sizes, lock files and colors.
import { execFileSync } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import zlib from "node:zlib";
import { check, expect, here, note, root, same } from "./harness.mjs";

const LIMIT = 400_000; // bytes, gzipped
const FILES = ["index.html", "page.js", "others.js", "page.css", "icon.svg", "inter.woff2"];

const read = (...parts) => fs.readFileSync(path.join(root, ...parts), "utf8");

// Returns the imports of each module of the page, including type imports.
function importsOf(folder) {
  const files = fs
    .readdirSync(folder, { recursive: true })
    .filter((f) => /\.tsx?$/.test(f) && !f.endsWith(".d.ts"));
  const found = (from, name) => {
    const to = path.join(path.dirname(from), name);
    return files.find((f) => f === `${to}.ts` || f === `${to}.tsx`);
  };
  return new Map(
    files.map((file) => {
      const text = fs.readFileSync(path.join(folder, file), "utf8");
      const names = [...text.matchAll(/(?:from|import\()\s*"(\.[^"]*)"/g)].map((m) => m[1]);
      return [file, names.map((name) => found(file, name)).filter((f) => f !== undefined)];
    }),
  );
}

export async function checkSources(web) {
  await check("the TypeScript sources pass the type check", () => {
    const compiler = path.join(here, "node_modules/typescript/bin/tsc");
    try {
      execFileSync(process.execPath, [compiler, "-p", path.join(root, "web")], {
        encoding: "utf8",
      });
    } catch (error) {
      throw new Error(error.stdout || error.message);
    }
  });

  await check("there are no import cycles, and no part imports a view", () => {
    const imports = importsOf(path.join(root, "web/src"));
    for (const [file, others] of imports)
      for (const other of others)
        expect(
          !other.startsWith("views/") || file === "main.tsx" || file === "views/others.ts",
          `${file} imports ${other}: move shared code out of views/`,
        );
    const done = new Set();
    const visit = (file, chain) => {
      expect(
        !chain.includes(file),
        `import cycle: ${[...chain.slice(chain.indexOf(file)), file].join(" → ")}`,
      );
      if (done.has(file)) return;
      for (const other of imports.get(file) ?? []) visit(other, [...chain, file]);
      done.add(file);
    };
    for (const file of imports.keys()) visit(file, []);
  });

  await check("the page is at most 400 kB gzipped and references no other server", () => {
    const sizes = FILES.map((f) => zlib.gzipSync(fs.readFileSync(path.join(web, f))).length);
    const all = sizes.reduce((a, b) => a + b, 0);
    note(`bundle: ${(all / 1000).toFixed(1)} kB gzipped (limit 400)`);
    expect(all <= LIMIT, `the page has ${all} bytes; the limit is ${LIMIT}`);
    const html = fs.readFileSync(path.join(web, "index.html"), "utf8");
    expect(!/<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=/.test(html), "index.html has an inline script or style");
    for (const f of ["index.html", "page.js", "others.js", "page.css"]) {
      const text = fs.readFileSync(path.join(web, f), "utf8");
      const others = [...text.matchAll(/https?:\/\/[a-z0-9.-]+/gi)]
        .map((m) => m[0])
        .filter((u) => !/^http:\/\/www\.w3\.org$/.test(u)); // XML namespaces are not fetched
      same(others.join(" "), "", `URLs in ${f}`);
    }
  });

  await check("lock files name no registry", () => {
    for (const lock of ["web/package-lock.json", "tests/web/package-lock.json"]) {
      expect(!/"resolved"|https?:\/\/[^"]*\.tgz/.test(read(lock)), lock);
    }
  });

  await check("the page and the command line use the same colors", () => {
    const constants = Object.fromEntries(
      [...read("tessera/core/svg.h").matchAll(/k(\w+) = "(#[0-9a-f]{6})"/g)].map((m) => [
        m[1].toLowerCase(),
        m[2],
      ]),
    );
    const light = read("web/src/palette.css").split(':root[data-theme="dark"]')[0];
    const page = Object.fromEntries(
      [...light.matchAll(/--([a-z]+): (#[0-9a-f]{6})/g)].map((m) => [m[1], m[2]]),
    );
    for (const name of [
      "params",
      "grads",
      "optimizer",
      "activations",
      "rest",
      "forward",
      "backward",
      "weight",
      "step",
      "dp",
      "tp",
      "pp",
      "simulated",
      "law",
      "limit",
    ]) {
      expect(constants[name], `core/svg.h has no ${name}`);
      same(page[name], constants[name], name);
    }
  });
}

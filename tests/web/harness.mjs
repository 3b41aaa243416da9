// Starts the dashboard, the browser and commands for the tests, and reports the results.
import { execFileSync, spawn } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";

export const here = import.meta.dirname ?? path.dirname(new URL(import.meta.url).pathname);
export const root = path.resolve(here, "../..");

export function skip(why) {
  console.log(`skipped: ${why}`);
  process.exit(77);
}

// Notes printed at the end: measured times, and checks that could not run.
export const notes = [];
export const note = (text) => notes.push(text);

const failures = [];
export async function check(name, body) {
  const began = performance.now();
  try {
    await body();
    console.log(`ok   ${name} (${Math.round(performance.now() - began)} ms)`);
  } catch (error) {
    failures.push(name);
    console.log(
      `FAIL ${name}\n     ${String(error?.stack ?? error)
        .split("\n")
        .slice(0, 12)
        .join("\n     ")}`,
    );
  }
}
export const failed = () => failures.length;

export function expect(condition, message) {
  if (!condition) throw new Error(message);
}
export function same(actual, expected, what) {
  expect(
    actual === expected,
    `${what} is ${JSON.stringify(actual)}, expected ${JSON.stringify(expected)}`,
  );
}

// Waits until `ready` returns a true value. The deadline is generous, for slow machines.
export async function until(what, ready, deadline = 30000) {
  const began = performance.now();
  for (;;) {
    const value = await ready();
    if (value) return value;
    expect(performance.now() - began < deadline, `timed out after ${deadline} ms waiting for: ${what}`);
    await new Promise((done) => setTimeout(done, 40));
  }
}

export function findBrowser() {
  for (const name of ["chromium", "chromium-browser", "google-chrome"]) {
    try {
      return execFileSync("sh", ["-c", `command -v ${name}`], { encoding: "utf8" }).trim();
    } catch {
      // try the next name
    }
  }
  return undefined;
}

export function folder() {
  const made = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-page-"));
  process.on("exit", () => fs.rmSync(made, { recursive: true, force: true }));
  return made;
}

const children = new Set();
process.on("exit", () => {
  for (const child of children) child.kill("SIGKILL");
});
export function start(program, args, options = {}) {
  const child = spawn(program, args, { stdio: ["ignore", "pipe", "pipe"], ...options });
  child.text = "";
  child.stdout.on("data", (d) => (child.text += d));
  child.stderr.on("data", (d) => (child.text += d));
  children.add(child);
  child.on("exit", () => children.delete(child));
  return child;
}
export const ended = (child) =>
  child.exitCode !== null || child.signalCode !== null
    ? Promise.resolve()
    : new Promise((done) => child.on("exit", done));

// Returns the process ID of a rank started by a launcher, or undefined if there is none yet.
export function rankOf(launcher, rank) {
  for (const entry of fs.readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
    try {
      const stat = fs.readFileSync(`/proc/${entry}/stat`, "utf8");
      const parent = Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[1]);
      const environment = fs.readFileSync(`/proc/${entry}/environ`, "utf8").split("\0");
      if (parent === launcher && environment.includes(`RANK=${rank}`)) return Number(entry);
    } catch {
      // the process has ended or belongs to another user
    }
  }
  return undefined;
}

// Pauses a process repeatedly, for three quarters of the time. Returns a function that ends this.
export function slowDown(pid) {
  let over = false;
  const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
  const pulse = async () => {
    while (!over) {
      process.kill(pid, "SIGSTOP");
      await sleep(30);
      process.kill(pid, "SIGCONT");
      await sleep(10);
    }
  };
  const done = pulse().catch(() => undefined); // the process has ended
  return () => {
    over = true;
    return done;
  };
}

export class Dashboard {
  constructor(program, more = []) {
    this.program = program;
    this.more = more;
    this.port = 0;
  }
  async start() {
    this.child = start(this.program, ["dashboard", "--port", String(this.port), ...this.more]);
    this.address = await until("the dashboard's address", () => {
      expect(this.child.exitCode === null, `the dashboard ended: ${this.child.text}`);
      return this.child.text.match(/http:\/\/[^\s]+/)?.[0];
    });
    this.address = this.address.replace(/\/$/, "");
    this.port = Number(new URL(this.address).port);
  }
  async stop(signal = "SIGTERM") {
    this.child.kill(signal);
    await ended(this.child);
  }
}

export const json = (program, ...args) =>
  JSON.parse(execFileSync(program, args, { encoding: "utf8", maxBuffer: 1 << 26 }));

import "./font.css";
import "uplot/dist/uPlot.min.css";
import "./palette.css";
import "./page.css";
import "./charts.css";
import { signal } from "@preact/signals";
import { render } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { answers } from "#answers";
import { settled, useAbout } from "./api";
import { address, route, VIEWS } from "./route";
import { printDrawings } from "./parts/save";
import { theme, toggleTheme } from "./theme";
import { MemoryView } from "./views/memory";

type Others = typeof import("./views/others");
const others = signal<Others | undefined>(undefined);
const loadFailed = signal(false);
async function loadOthers(): Promise<void> {
  try {
    others.value = await import("./views/others");
    loadFailed.value = false;
  } catch {
    loadFailed.value = true; // loaded again with the next view
  }
}

function Loading() {
  return (
    <p class="empty-note" role="status">
      {loadFailed.value
        ? answers.unreachable
        : "Loading…"}
    </p>
  );
}

function NeedsProgram({ title, needs }: { title: string; needs: string }) {
  return (
    <>
      <h1>{title}</h1>
      <p class="empty-note" data-needs>
        This view {needs}: open it with <code>tessera dashboard</code> or{" "}
        <code>tessera train --dashboard</code>.
      </p>
    </>
  );
}

function Page() {
  const { view } = route.value;
  const about = useAbout();
  const main = useRef<HTMLElement>(null);
  const first = useRef(true);
  const { name = "", needs } = VIEWS.find((v) => v.id === view) ?? {};
  useEffect(() => {
    document.title = `${name} · Tessera`;
    if (view !== "memory" && loadFailed.value) void loadOthers();
    if (!first.current) {
      scrollTo(0, 0);
      main.current?.focus({ preventScroll: true });
    }
    first.current = false;
  }, [view]);
  const Shown = view === "memory" ? MemoryView : (others.value?.[view] ?? Loading);
  const other = theme.value === "dark" ? "light" : "dark";
  return (
    <>
      <a
        class="skip"
        href={address(view)}
        onClick={(e) => (e.preventDefault(), main.current?.focus())}
      >
        Skip to content
      </a>
      <header class="bar">
        <a class="brand" href="#/memory">
          <img src="./icon.svg" width="22" height="22" alt="" />
          Tessera
        </a>
        <nav aria-label="Views">
          {VIEWS.map((v) => (
            <a key={v.id} href={address(v.id)} aria-current={v.id === view ? "page" : undefined}>
              {v.name}
            </a>
          ))}
          {answers.docs && <a href={answers.docs}>Documentation</a>}
        </nav>
        <button
          type="button"
          class="theme"
          onClick={toggleTheme}
          aria-label={`Switch to ${other} theme`}
        >
          {other === "dark" ? "◐ Dark" : "◑ Light"}
        </button>
      </header>
      <main ref={main} tabIndex={-1} data-view={view}>
        {needs && !answers.live ? <NeedsProgram title={name} needs={needs} /> : <Shown key={view} />}
      </main>
      <footer>
        Tessera {about?.version ?? ""} · all numbers come from the planner, simulator and schedules
        behind the command line · 1 GB = 10⁹ bytes
      </footer>
    </>
  );
}

// Shows the page once its font and the first responses have arrived, which usually takes a few
// milliseconds, so that it is laid out once. Shows it without them after 200 ms.
async function open(root: HTMLElement): Promise<void> {
  root.hidden = true;
  const first = route.value.view === "memory";
  const needed = first ? undefined : loadOthers();
  render(<Page />, root);
  const ready = Promise.all([document.fonts.load("1em 'Inter Variable'"), needed]).then(settled);
  await Promise.race([ready, new Promise((done) => setTimeout(done, 200))]);
  root.hidden = false;
  if (first) setTimeout(() => void loadOthers(), 300);
}
printDrawings();
const root = document.getElementById("page");
if (root) void open(root);

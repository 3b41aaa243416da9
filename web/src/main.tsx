import "./font.css";
import "uplot/dist/uPlot.min.css";
import "./palette.css";
import "./page.css";
import "./pictures.css";
import { signal } from "@preact/signals";
import { render } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { answered, useAbout } from "./api";
import { address, route, VIEWS } from "./route";
import { theme, toggleTheme } from "./theme";
import { MemoryView } from "./views/memory";

type Others = typeof import("./views/others");
const others = signal<Others | undefined>(undefined);
const lost = signal(false);
async function loadOthers(): Promise<void> {
  try {
    others.value = await import("./views/others");
    lost.value = false;
  } catch {
    lost.value = true; // asked again with the next view
  }
}

function Waiting() {
  return (
    <p class="empty-note" role="status">
      {lost.value
        ? "The server does not answer. Is `tessera dashboard` still running?"
        : "Loading…"}
    </p>
  );
}

function Page() {
  const { view } = route.value;
  const about = useAbout();
  const main = useRef<HTMLElement>(null);
  const first = useRef(true);
  const name = VIEWS.find((v) => v.id === view)?.name ?? "";
  useEffect(() => {
    document.title = `${name} · Tessera`;
    if (view !== "memory" && lost.value) void loadOthers();
    if (!first.current) {
      scrollTo(0, 0);
      main.current?.focus({ preventScroll: true });
    }
    first.current = false;
  }, [view]);
  const Shown = view === "memory" ? MemoryView : (others.value?.[view] ?? Waiting);
  const other = theme.value === "dark" ? "light" : "dark";
  return (
    <>
      <a
        class="skip"
        href={address(view)}
        onClick={(e) => (e.preventDefault(), main.current?.focus())}
      >
        Skip to the view
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
        </nav>
        <button
          type="button"
          class="theme"
          onClick={toggleTheme}
          aria-label={`Use ${other} colours`}
        >
          {other === "dark" ? "◐ Dark" : "◑ Light"}
        </button>
      </header>
      <main ref={main} tabIndex={-1} data-view={view}>
        <Shown key={view} />
      </main>
      <footer>
        Tessera {about?.version ?? ""} · every number comes from the same planner, simulator and
        schedules as the command line · GB = 10⁹ bytes
      </footer>
    </>
  );
}

// Laid out and painted once, with the first answers in it and in its own letters: both are a few
// milliseconds away. Who is not answered soon sees the page without them.
async function open(root: HTMLElement): Promise<void> {
  root.hidden = true;
  const first = route.value.view === "memory";
  const needed = first ? undefined : loadOthers();
  render(<Page />, root);
  const there = Promise.all([document.fonts.load("1em 'Inter Variable'"), needed]).then(answered);
  await Promise.race([there, new Promise((done) => setTimeout(done, 200))]);
  root.hidden = false;
  if (first) setTimeout(() => void loadOthers(), 300);
}
const root = document.getElementById("page");
if (root) void open(root);

import "./font.css";
import "uplot/dist/uPlot.min.css";
import "./palette.css";
import "./page.css";
import "./pictures.css";
import { render } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { useAbout } from "./api";
import { address, route, VIEWS, type ViewId } from "./route";
import { theme, toggleTheme } from "./theme";
import { CollectivesView } from "./views/collectives";
import { LiveView } from "./views/live";
import { MemoryView } from "./views/memory";
import { PipelineView } from "./views/pipeline";
import { PlanView } from "./views/plan";
import { ScalingView } from "./views/scaling";
import { SyncView } from "./views/sync";
import { TraceView } from "./views/trace";

const SHOWN: Record<ViewId, () => preact.JSX.Element> = {
  memory: MemoryView,
  scaling: ScalingView,
  collectives: CollectivesView,
  pipeline: PipelineView,
  plan: PlanView,
  live: LiveView,
  sync: SyncView,
  trace: TraceView,
};

function Page() {
  const { view } = route.value;
  const about = useAbout();
  const main = useRef<HTMLElement>(null);
  const first = useRef(true);
  const name = VIEWS.find((v) => v.id === view)?.name ?? "";
  useEffect(() => {
    document.title = `${name} · Tessera`;
    if (!first.current) {
      scrollTo(0, 0);
      main.current?.focus({ preventScroll: true });
    }
    first.current = false;
  }, [view]);
  const Shown = SHOWN[view];
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

const root = document.getElementById("page");
if (root) render(<Page />, root);

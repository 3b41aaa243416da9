// The address is the state: #/view?key=value. What equals its default is left out, so links stay
// short; a view that is left keeps its query for when one comes back.
import { effect, signal } from "@preact/signals";

export const VIEWS = [
  { id: "memory", name: "Memory" },
  { id: "scaling", name: "Scaling" },
  { id: "collectives", name: "Collectives" },
  { id: "pipeline", name: "Pipeline" },
  { id: "plan", name: "Plan" },
  { id: "live", name: "Live run" },
  { id: "sync", name: "Gradient sync" },
  { id: "trace", name: "Trace" },
] as const;
export type ViewId = (typeof VIEWS)[number]["id"];
export type Values = Record<string, string>;

interface Route {
  view: ViewId;
  query: Values;
}

const known = (id: string): id is ViewId => VIEWS.some((v) => v.id === id);

function parse(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const view = known(path) ? path : "memory";
  return { view, query: Object.fromEntries(new URLSearchParams(query)) };
}

export const route = signal<Route>(parse(location.hash));
const kept: Partial<Record<ViewId, Values>> = {};

effect(() => {
  kept[route.value.view] = route.value.query;
});
addEventListener("hashchange", () => {
  route.value = parse(location.hash);
});

export function address(view: ViewId, query: Values = kept[view] ?? {}): string {
  const text = new URLSearchParams(query).toString();
  return text ? `#/${view}?${text}` : `#/${view}`;
}

// Sliders replace the entry: Back leads to the view before, not to the notch before.
export function setQuery(view: ViewId, query: Values): void {
  history.replaceState(null, "", address(view, query));
  route.value = { view, query };
}

export interface Fields<D extends Values> {
  at: D;
  set: (changes: Partial<D>) => void;
  // What binds a control to a field; `also` changes with it.
  field: (name: keyof D & string, also?: Partial<D>) => Bound;
}
export interface Bound {
  name: string;
  value: string;
  onChange: (value: string) => void;
}

export function useFields<D extends Values>(view: ViewId, defaults: D): Fields<D> {
  const query = route.value.view === view ? route.value.query : (kept[view] ?? {});
  const at = { ...defaults };
  for (const key of Object.keys(defaults)) {
    if (query[key] !== undefined) at[key as keyof D] = query[key] as D[keyof D];
  }
  const set = (changes: Partial<D>) => {
    const next: Values = {};
    for (const [key, value] of Object.entries({ ...at, ...changes })) {
      if (value !== defaults[key]) next[key] = value as string;
    }
    setQuery(view, next);
  };
  const field = (name: keyof D & string, also?: Partial<D>): Bound => ({
    name,
    value: at[name] ?? "",
    onChange: (value) => set({ ...also, [name]: value } as Partial<D>),
  });
  return { at, set, field };
}

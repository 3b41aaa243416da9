// The URL holds the state: #/view?key=value. Default values are omitted to keep links short. Each
// view keeps its query while another view is open. A plan opened from another view is one value,
// plan=dp:16;pp:2;…: settings of the planner, which replace the defaults of the view.
import { effect, signal } from "@preact/signals";

// `needs`: what the view does that only `tessera dashboard` can.
export const VIEWS: readonly { id: ViewId; name: string; needs?: string }[] = [
  { id: "memory", name: "Memory" },
  { id: "scaling", name: "Scaling" },
  { id: "collectives", name: "Collectives" },
  { id: "pipeline", name: "Pipeline" },
  { id: "context", name: "Context" },
  { id: "plan", name: "Plan" },
  { id: "live", name: "Live run", needs: "watches training runs on your machine" },
  { id: "sync", name: "Gradient sync", needs: "runs a training step on your machine" },
  { id: "trace", name: "Trace" },
  { id: "questions", name: "Check yourself" },
];
export type ViewId =
  | "memory"
  | "scaling"
  | "collectives"
  | "pipeline"
  | "context"
  | "plan"
  | "live"
  | "sync"
  | "trace"
  | "questions";
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
  // These characters may stay as they are in a fragment, which keeps plans legible.
  const text = new URLSearchParams(query)
    .toString()
    .replace(/%3A/g, ":")
    .replace(/%3B/g, ";")
    .replace(/%2C/g, ",");
  return text ? `#/${view}?${text}` : `#/${view}`;
}

// Replaces the history entry, so that Back returns to the previous view, not the previous value.
export function setQuery(view: ViewId, query: Values): void {
  history.replaceState(null, "", address(view, query));
  route.value = { view, query };
}

export const planText = (settings: Values): string =>
  Object.entries(settings)
    .map(([key, value]) => `${key}:${value.replace(/[%;]/g, encodeURIComponent)}`)
    .join(";");

function planSettings(text: string): Values {
  const settings: Values = {};
  for (const part of text.split(";")) {
    const colon = part.indexOf(":");
    const value = part.slice(colon + 1).replace(/%(25|3B)/g, decodeURIComponent);
    if (colon > 0) settings[part.slice(0, colon)] = value;
  }
  return settings;
}

export interface OpenPlan {
  others: Values; // settings that the view has no field for; requests include them
  settings: Values; // all, with the changes made in this view; empty: no plan is open
  remove: (key: string) => void;
  close: () => void;
}

export interface Fields<D extends Values> {
  at: D;
  plan: OpenPlan;
  set: (changes: Partial<D>) => void;
  // Returns the props that bind a control to a field. `also` lists changes made along with it.
  field: (name: keyof D & string, also?: Partial<D>) => FieldProps;
}
export interface FieldProps {
  name: string;
  value: string;
  onChange: (value: string) => void;
}

// Fields of every view that has a model, with their defaults: see furtherSettings(). Empty until the
// server has described them.
export const modelFields = signal<Values>({});

// Settings of a plan that views have controls for. A plan lists those that differ from the defaults.
const PLAN_SETTINGS = ["seq", "recompute", "sequence_parallel", "dp_replicate", "cp", "cp_kind", "ep", "optimizer_state", "offload"];

// `fromPlan` returns the fields that follow from a plan under another name.
export function useFields<D extends Values>(
  view: ViewId,
  own: D,
  fromPlan?: (settings: Values) => Partial<D>,
): Fields<D> {
  const defaults: D = "model" in own ? { ...modelFields.value, ...own } : own;
  const query = route.value.view === view ? route.value.query : (kept[view] ?? {});
  const settings = planSettings(query.plan ?? "");
  const base: Values = { ...defaults };
  const others: Values = {};
  for (const [key, value] of Object.entries(settings)) {
    (key in defaults ? base : others)[key] = value;
  }
  if (query.plan) Object.assign(base, fromPlan?.(settings));
  const at = { ...base } as D;
  for (const key of Object.keys(defaults)) {
    if (query[key] !== undefined) at[key as keyof D] = query[key] as D[keyof D];
  }
  const set = (changes: Partial<D>) => {
    const next: Values = query.plan ? { plan: query.plan } : {};
    for (const [key, value] of Object.entries({ ...at, ...changes })) {
      if (value !== base[key]) next[key] = value as string;
    }
    setQuery(view, next);
  };
  const current = { ...settings };
  for (const key of Object.keys(settings)) current[key] = at[key] ?? current[key] ?? "";
  if (query.plan) for (const key of [...PLAN_SETTINGS, ...Object.keys(modelFields.value)]) if (query[key]) current[key] = query[key];
  const plan: OpenPlan = {
    others,
    settings: current,
    remove: (key) => {
      const { [key]: _removed, ...left } = settings;
      setQuery(view, { ...query, plan: planText(left) });
    },
    close: () => {
      const { plan: _plan, ...left } = query;
      setQuery(view, left);
    },
  };
  const field = (name: keyof D & string, also?: Partial<D>): FieldProps => ({
    name,
    value: at[name] ?? "",
    onChange: (value) => set({ ...also, [name]: value } as Partial<D>),
  });
  return { at, plan, set, field };
}

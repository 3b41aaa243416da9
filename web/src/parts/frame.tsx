// Layout of every view: title, controls, equivalent command, suggestions, and cards with charts.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Progress } from "../answers";
import type { ErrorInfo } from "../api";
import { FieldError } from "./controls";
import { Save } from "./save";

export function Copy({
  text,
  label,
  of,
  small = false,
}: {
  text: string;
  label: string;
  of?: string | undefined; // distinguishes buttons with the same label, for screen readers
  small?: boolean;
}) {
  const [done, setDone] = useState("");
  const timer = useRef(0);
  useEffect(() => () => clearTimeout(timer.current), []);
  const copy = async () => {
    let result = "Copied";
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      result = copyBySelection(text) ? "Copied" : "Copy failed";
    }
    setDone(result);
    clearTimeout(timer.current);
    timer.current = window.setTimeout(() => setDone(""), 1600);
  };
  return (
    <button
      type="button"
      class={small ? "small" : ""}
      data-copies={text}
      aria-label={of ? `${label}: ${of}` : undefined}
      onClick={() => void copy()}
    >
      {done || label}
      <span class="unseen" role="status">
        {done}
      </span>
    </button>
  );
}

// Fallback without the Clipboard API, which needs https or localhost.
function copyBySelection(text: string): boolean {
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "unseen";
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}

interface ViewProps {
  title: string;
  lead: string;
  controls: ComponentChildren;
  command?: string | undefined;
  tries: ComponentChildren; // suggested changes of the controls
  notices: ComponentChildren; // their visible effects, explained
  error?: ErrorInfo | undefined;
  stale?: boolean; // whether all cards are older than the settings; default: whether error is set
  busy?: boolean;
  progress?: Progress | undefined; // of a long calculation
  children: ComponentChildren;
}

// Largest height of a pinned card, as a fraction of the window.
const PINNED_MOST = 0.64;

export function View(props: ViewProps) {
  const { error, stale = !!error } = props;
  const whole = useRef<HTMLDivElement>(null);
  // Errors without a matching control are shown above the charts.
  const [placed, setPlaced] = useState(false);
  useEffect(() => {
    setPlaced(!!error?.field && !!whole.current?.querySelector("[data-field] .reason"));
  }, [error]);
  // On narrow pages the pinned card stays visible next to the controls, unless it is too high. Its
  // height is that of the grid's row above them. A new response may replace the card.
  useEffect(() => {
    const card = whole.current?.querySelector<HTMLElement>(".pinned");
    const page = document.documentElement;
    const measure = () => {
      const high = card?.offsetHeight ?? 0;
      page.style.setProperty("--pinned", `${high}px`);
      page.classList.toggle("pins", high > 0 && high < PINNED_MOST * innerHeight);
    };
    const watcher = new ResizeObserver(measure);
    if (card) watcher.observe(card);
    else measure();
    return () => watcher.disconnect();
  });
  return (
    <FieldError.Provider value={error}>
      <div class="head">
        <div>
          <h1>{props.title}</h1>
          <p class="lead">{props.lead}</p>
        </div>
        <div class="buttons">
          <Copy text={location.href} label="Copy link" />
          {props.command && <Copy text={props.command} label="Copy command" />}
        </div>
      </div>
      {error && !placed && (
        <p class="banner" role="alert">
          {error.message}
        </p>
      )}
      <div class="view" ref={whole}>
        <div class="side">
          <section class="card controls" aria-label="Settings">
            {props.controls}
          </section>
          <section class="card tries" aria-label="Suggestions">
            <h2>Try</h2>
            {props.tries}
            <h2>Observe</h2>
            {props.notices}
          </section>
        </div>
        <div class={`stage${props.busy ? " busy" : ""}${stale ? " stale" : ""}`}>
          {props.busy && props.progress && (
            <progress
              class="progress"
              aria-label="Progress of the calculation"
              value={props.progress.done}
              max={props.progress.total}
            />
          )}
          {props.children}
          {props.command && <Command text={props.command} />}
        </div>
      </div>
    </FieldError.Provider>
  );
}

export function Command({ text }: { text: string }) {
  return (
    <section class="card command" aria-label="Equivalent command">
      <code data-command>{text}</code>
      <Copy small text={text} label="Copy" />
    </section>
  );
}

interface CardProps {
  title?: ComponentChildren;
  name?: string; // of files that are saved, if the title is not a text
  note?: ComponentChildren;
  pinned?: boolean; // stays visible next to the controls on narrow pages; one card of a view
  stale?: boolean; // drawn for older settings, because the present ones were rejected
  children: ComponentChildren;
}
export function Card(props: CardProps) {
  const { title, note, children, pinned = false, stale = false } = props;
  const name = props.name ?? (typeof title === "string" ? title : undefined);
  return (
    <section class={`card${pinned ? " pinned" : ""}${stale ? " stale" : ""}`}>
      {title && (
        <header>
          <h2>{title}</h2>
          {note && <p class="note">{note}</p>}
          {name && <Save title={name} />}
        </header>
      )}
      {children}
    </section>
  );
}

export function Legend({ items }: { items: readonly (readonly [string, string])[] }) {
  return (
    <ul class="legend">
      {items.map(([color, what]) => (
        <li key={what}>
          <i class={`c-${color}`} aria-hidden="true" />
          {what}
        </li>
      ))}
    </ul>
  );
}

export interface Figure {
  label: string;
  value: ComponentChildren;
  note?: ComponentChildren;
  tone?: "good" | "bad" | undefined;
  key?: string;
}
export function Figures({ items }: { items: Figure[] }) {
  return (
    <dl class="figures">
      {items.map((f) => (
        <div key={f.key ?? f.label} class={f.tone ?? ""}>
          <dt>{f.label}</dt>
          <dd data-figure={f.key ?? f.label}>{f.value}</dd>
          {f.note && <dd class="note">{f.note}</dd>}
        </div>
      ))}
    </dl>
  );
}

export function useWidth<E extends HTMLElement>(): [{ current: E | null }, number] {
  const ref = useRef<E>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const element = ref.current;
    if (!element) return;
    const measure = () => setWidth(Math.floor(element.clientWidth));
    const watcher = new ResizeObserver(measure);
    watcher.observe(element);
    measure();
    return () => watcher.disconnect();
  }, []);
  return [ref, width];
}

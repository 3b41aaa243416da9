// What every view is made of: its title, controls, command, the text that says what to try, and
// the cards with its pictures.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Refusal } from "../api";
import { Refused } from "./controls";

export function Copy({
  text,
  label,
  small = false,
}: {
  text: string;
  label: string;
  small?: boolean;
}) {
  const [done, setDone] = useState("");
  const timer = useRef(0);
  useEffect(() => () => clearTimeout(timer.current), []);
  const copy = async () => {
    let said = "Copied";
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      said = copyByHand(text) ? "Copied" : "Copying is not allowed here";
    }
    setDone(said);
    clearTimeout(timer.current);
    timer.current = window.setTimeout(() => setDone(""), 1600);
  };
  return (
    <button
      type="button"
      class={small ? "small" : ""}
      data-copies={text}
      onClick={() => void copy()}
    >
      {done || label}
      <span class="unseen" role="status">
        {done}
      </span>
    </button>
  );
}

// For addresses other than localhost without https, where there is no clipboard.
function copyByHand(text: string): boolean {
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
  tries: ComponentChildren; // what to do with the controls,
  notices: ComponentChildren; // and what to see then
  error?: Refusal | undefined;
  busy?: boolean;
  children: ComponentChildren;
}

export function View(props: ViewProps) {
  const { error } = props;
  const whole = useRef<HTMLDivElement>(null);
  // A reason whose control is not on this page stands above the pictures. Controls may be among
  // these, too.
  const [placed, setPlaced] = useState(false);
  useEffect(() => {
    setPlaced(!!error?.field && !!whole.current?.querySelector("[data-field] .reason"));
  }, [error]);
  return (
    <Refused.Provider value={error}>
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
      <div class="view" ref={whole}>
        <div class="side">
          <section class="card controls" aria-label="Settings">
            {props.controls}
          </section>
          <section class="card tries" aria-label="What to try">
            <h2>Try</h2>
            {props.tries}
            <h2>Notice</h2>
            {props.notices}
          </section>
        </div>
        <div class={`stage${props.busy ? " busy" : ""}`}>
          {error && !placed && (
            <p class="banner" role="alert">
              {error.message}
            </p>
          )}
          {props.children}
          {props.command && <Command text={props.command} />}
        </div>
      </div>
    </Refused.Provider>
  );
}

export function Command({ text }: { text: string }) {
  return (
    <section class="card command" aria-label="The same on the command line">
      <code data-command>{text}</code>
      <Copy small text={text} label="Copy" />
    </section>
  );
}

interface CardProps {
  title?: ComponentChildren;
  note?: ComponentChildren;
  class?: string;
  children: ComponentChildren;
}
export function Card({ title, note, children, ...rest }: CardProps) {
  return (
    <section class={`card ${rest.class ?? ""}`}>
      {title && (
        <header>
          <h2>{title}</h2>
          {note && <p class="note">{note}</p>}
        </header>
      )}
      {children}
    </section>
  );
}

export function Legend({ items }: { items: readonly (readonly [string, string])[] }) {
  return (
    <ul class="legend">
      {items.map(([colour, what]) => (
        <li key={what}>
          <i class={`c-${colour}`} aria-hidden="true" />
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
    const look = () => setWidth(Math.floor(element.clientWidth));
    const watcher = new ResizeObserver(look);
    watcher.observe(element);
    look();
    return () => watcher.disconnect();
  }, []);
  return [ref, width];
}

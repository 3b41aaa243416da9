// The controls. Each has its name, its value as text, and the server's reason beside it when that
// value was refused.
import type { ComponentChildren } from "preact";
import { createContext } from "preact";
import { useContext, useEffect, useId, useState } from "preact/hooks";
import type { Refusal } from "../api";
import { plain, typed as typedAs } from "../format";
import type { Bound } from "../route";

export const Refused = createContext<Refusal | undefined>(undefined);

// Names under which a control's refusal may come: its own and what stands for it.
function useReason(names: string[]): string | undefined {
  const refusal = useContext(Refused);
  return refusal?.field && names.includes(refusal.field) ? refusal.message : undefined;
}

function Reason({ id, text }: { id: string; text: string | undefined }) {
  return text ? (
    <p class="reason" id={id} role="alert">
      {text}
    </p>
  ) : null;
}

export interface Common extends Bound {
  label: string;
  also?: string[];
  hint?: ComponentChildren;
  disabled?: boolean;
}

// Beside what is no single control.
export function ReasonOf({ names }: { names: string[] }) {
  return <Reason id={useId()} text={useReason(names)} />;
}

// A slider over a list of stops, and a field for any other value.
export function Slider(
  props: Common & { stops: readonly (number | string)[]; show?: (value: string) => string },
) {
  const { label, name, value, onChange, stops, show, disabled = false } = props;
  const id = useId();
  const reason = useReason([name, ...(props.also ?? [])]);
  const [typed, setTyped] = useState<string>();
  useEffect(() => setTyped(undefined), [value]);
  const at = nearest(stops, value);
  const commit = (text: string) => {
    setTyped(undefined);
    if (text.trim() !== "" && text.trim() !== shown(value, show)) onChange(text.trim());
  };
  return (
    <div class={`control${reason ? " refused" : ""}`} data-field={name}>
      <label for={id}>{label}</label>
      <input
        class="exact"
        type="text"
        inputMode="text"
        aria-label={`${label}, exact value`}
        aria-invalid={reason ? true : undefined}
        aria-describedby={reason ? `${id}-why` : undefined}
        value={typed ?? shown(value, show)}
        disabled={disabled}
        onInput={(e) => setTyped(e.currentTarget.value)}
        onBlur={(e) => commit(e.currentTarget.value)}
        onKeyDown={(e) => {
          if (e.key === "Enter") commit(e.currentTarget.value);
        }}
      />
      <input
        id={id}
        type="range"
        min={0}
        max={stops.length - 1}
        step={1}
        value={at}
        disabled={disabled}
        aria-valuetext={shown(value, show)}
        aria-describedby={reason ? `${id}-why` : undefined}
        onInput={(e) => onChange(String(stops[Number(e.currentTarget.value)]))}
      />
      {props.hint && <p class="hint">{props.hint}</p>}
      <Reason id={`${id}-why`} text={reason} />
    </div>
  );
}

// A share, shown and typed in percent.
export function Percent({ onChange, ...rest }: Common & { stops: readonly number[] }) {
  return (
    <Slider
      {...rest}
      show={typedAs((v) => `${plain(v * 100)}%`)}
      onChange={(v) => onChange(v.endsWith("%") ? String(Number(v.slice(0, -1)) / 100) : v)}
    />
  );
}

const shown = (value: string, show?: (v: string) => string) => (show ? show(value) : value);

function nearest(stops: readonly (number | string)[], value: string): number {
  const exact = stops.findIndex((s) => String(s) === value);
  if (exact >= 0) return exact;
  const wanted = Number(value);
  if (!Number.isFinite(wanted)) return 0;
  let best = 0;
  stops.forEach((s, i) => {
    if (Math.abs(Number(s) - wanted) < Math.abs(Number(stops[best]) - wanted)) best = i;
  });
  return best;
}

export function Choice(props: Common & { options: readonly (string | [string, string])[] }) {
  const { label, name, value, onChange, options } = props;
  const id = useId();
  const reason = useReason([name, ...(props.also ?? [])]);
  const rows = options.map((o) => (typeof o === "string" ? ([o, o] as const) : o));
  const listed = rows.some(([v]) => v === value);
  return (
    <div class={`control${reason ? " refused" : ""}`} data-field={name}>
      <label for={id}>{label}</label>
      <select
        id={id}
        value={value}
        disabled={props.disabled}
        aria-invalid={reason ? true : undefined}
        aria-describedby={reason ? `${id}-why` : undefined}
        onChange={(e) => onChange(e.currentTarget.value)}
      >
        {!listed && <option value={value}>{value}</option>}
        {rows.map(([v, text]) => (
          <option key={v} value={v}>
            {text}
          </option>
        ))}
      </select>
      {props.hint && <p class="hint">{props.hint}</p>}
      <Reason id={`${id}-why`} text={reason} />
    </div>
  );
}

// A few choices side by side.
export function Segments(props: Common & { options: readonly (string | [string, string])[] }) {
  const { label, name, value, onChange, options } = props;
  const id = useId();
  const reason = useReason([name, ...(props.also ?? [])]);
  return (
    <fieldset
      class={`control segments${reason ? " refused" : ""}`}
      data-field={name}
      aria-describedby={reason ? `${id}-why` : undefined}
    >
      <legend>{label}</legend>
      <div class="row">
        {options.map((o) => {
          const [v, text] = typeof o === "string" ? [o, o] : o;
          return (
            <label key={v} class={v === value ? "on" : ""}>
              <input
                type="radio"
                name={id}
                value={v}
                checked={v === value}
                disabled={props.disabled}
                onChange={() => onChange(v)}
              />
              {text}
            </label>
          );
        })}
      </div>
      {props.hint && <p class="hint">{props.hint}</p>}
      <Reason id={`${id}-why`} text={reason} />
    </fieldset>
  );
}

export function Toggle(props: Common) {
  const id = useId();
  const reason = useReason([props.name, ...(props.also ?? [])]);
  return (
    <div class={`control toggle${reason ? " refused" : ""}`} data-field={props.name}>
      <input
        id={id}
        type="checkbox"
        role="switch"
        checked={props.value === "true"}
        disabled={props.disabled}
        aria-invalid={reason ? true : undefined}
        aria-describedby={reason ? `${id}-why` : undefined}
        onChange={(e) => props.onChange(String(e.currentTarget.checked))}
      />
      <label for={id}>{props.label}</label>
      {props.hint && <p class="hint">{props.hint}</p>}
      <Reason id={`${id}-why`} text={reason} />
    </div>
  );
}

// 1, 2, 4 … up to most.
export function doublings(least: number, most: number): number[] {
  const out: number[] = [];
  for (let v = least; v <= most; v *= 2) out.push(v);
  return out;
}
export const range = (least: number, most: number, step = 1): number[] =>
  Array.from({ length: Math.floor((most - least) / step) + 1 }, (_, i) => least + i * step);

// Form controls. Each has a name, a value as text, and the server's error message if it rejected
// the value.
import type { ComponentChildren } from "preact";
import { createContext } from "preact";
import { useContext, useId, useLayoutEffect, useState } from "preact/hooks";
import type { ErrorInfo } from "../api";
import { PERCENT, type Unit } from "../format";
import type { FieldProps } from "../route";

export const FieldError = createContext<ErrorInfo | undefined>(undefined);

// Returns the error message for a control. `names` are its own field name and its aliases.
function useFieldError(names: string[]): string | undefined {
  const error = useContext(FieldError);
  return error?.field && names.includes(error.field) ? error.message : undefined;
}

function FieldMessage({ id, text }: { id: string; text: string | undefined }) {
  return text ? (
    <p class="reason" id={id} role="alert">
      {text}
    </p>
  ) : null;
}

export interface ControlProps extends FieldProps {
  label: string;
  also?: string[];
  hint?: ComponentChildren;
  disabled?: boolean;
}

// Error message for a group of controls.
export function GroupMessage({ names }: { names: string[] }) {
  return <FieldMessage id={useId()} text={useFieldError(names)} />;
}

// Slider over a list of stops, with a text field for any other value.
export function Slider(
  props: ControlProps & { stops: readonly (number | string)[]; unit?: Unit },
) {
  const { label, name, value, onChange, stops, unit, disabled = false } = props;
  const id = useId();
  const refused = useFieldError([name, ...(props.also ?? [])]);
  // Text without a number was mistyped: the example shows the form.
  const reason =
    refused && unit && isNaN(Number(value)) ? `${refused} (example: ${unit.example})` : refused;
  const text = unit ? unit.show(value) : value;
  const [typed, setTyped] = useState<string>();
  // Before the paint: a later reset would discard text that was typed in between.
  useLayoutEffect(() => setTyped(undefined), [value]);
  const at = nearest(stops, value);
  const commit = (entered: string) => {
    setTyped(undefined);
    const next = entered.trim();
    // An unchanged text keeps all digits of the value. An empty one selects the default, if any.
    if (next !== text && (next !== "" || stops.includes("")))
      onChange(unit ? unit.read(next) : next);
  };
  return (
    <div class={`control${reason ? " invalid" : ""}`} data-field={name}>
      <label for={id}>{label}</label>
      <input
        class="exact"
        type="text"
        inputMode="text"
        aria-label={`${label}, exact value`}
        aria-invalid={reason ? true : undefined}
        aria-describedby={reason ? `${id}-why` : undefined}
        value={typed ?? text}
        size={Math.max(9, text.length)}
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
        aria-valuetext={text}
        aria-describedby={reason ? `${id}-why` : undefined}
        onInput={(e) => onChange(String(stops[Number(e.currentTarget.value)]))}
      />
      {props.hint && <p class="hint">{props.hint}</p>}
      <FieldMessage id={`${id}-why`} text={reason} />
    </div>
  );
}

export function Percent(props: ControlProps & { stops: readonly number[] }) {
  return <Slider {...props} unit={PERCENT} />;
}

function nearest(stops: readonly (number | string)[], value: string): number {
  const exact = stops.findIndex((s) => String(s) === value);
  if (exact >= 0) return exact;
  const target = Number(value);
  if (!Number.isFinite(target)) return 0;
  let best = 0;
  stops.forEach((s, i) => {
    if (Math.abs(Number(s) - target) < Math.abs(Number(stops[best]) - target)) best = i;
  });
  return best;
}

export function Choice(props: ControlProps & { options: readonly (string | [string, string])[] }) {
  const { label, name, value, onChange, options } = props;
  const id = useId();
  const reason = useFieldError([name, ...(props.also ?? [])]);
  const rows = options.map((o) => (typeof o === "string" ? ([o, o] as const) : o));
  const listed = rows.some(([v]) => v === value);
  return (
    <div class={`control${reason ? " invalid" : ""}`} data-field={name}>
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
      <FieldMessage id={`${id}-why`} text={reason} />
    </div>
  );
}

// Radio buttons in one row.
export function Segments(
  props: ControlProps & { options: readonly (string | [string, string])[] },
) {
  const { label, name, value, onChange, options } = props;
  const id = useId();
  const values = options.map((o) => (typeof o === "string" ? o : o[0]));
  const refused = useFieldError([name, ...(props.also ?? [])]);
  const unknown = values.includes(value) ? undefined : `got ${value}; must be one of ${values.join(", ")}`;
  const reason = refused ?? unknown;
  return (
    <fieldset
      class={`control segments${reason ? " invalid" : ""}`}
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
      <FieldMessage id={`${id}-why`} text={reason} />
    </fieldset>
  );
}

export function Toggle(props: ControlProps) {
  const id = useId();
  const refused = useFieldError([props.name, ...(props.also ?? [])]);
  const known = props.value === "true" || props.value === "false";
  const reason = refused ?? (known ? undefined : `got ${props.value}; must be true or false`);
  return (
    <div class={`control toggle${reason ? " invalid" : ""}`} data-field={props.name}>
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
      <FieldMessage id={`${id}-why`} text={reason} />
    </div>
  );
}

// Text of several lines, committed when it loses the focus or is pasted.
export function TextArea(props: ControlProps & { placeholder: string }) {
  const { label, name, value, onChange } = props;
  const id = useId();
  const reason = useFieldError([name, ...(props.also ?? [])]);
  return (
    <div class={`control${reason ? " invalid" : ""}`} data-field={name}>
      <label for={id}>{label}</label>
      <textarea
        id={id}
        rows={5}
        spellcheck={false}
        placeholder={props.placeholder}
        value={value}
        aria-invalid={reason ? true : undefined}
        aria-describedby={reason ? `${id}-why` : undefined}
        onChange={(e) => onChange(e.currentTarget.value)}
        onPaste={(e) => {
          const area = e.currentTarget;
          setTimeout(() => onChange(area.value)); // after the text is inserted
        }}
      />
      {props.hint && <p class="hint">{props.hint}</p>}
      <FieldMessage id={`${id}-why`} text={reason} />
    </div>
  );
}

// Returns least, 2 · least, 4 · least, … up to most.
export function doublings(least: number, most: number): number[] {
  const out: number[] = [];
  for (let v = least; v <= most; v *= 2) out.push(v);
  return out;
}
export const range = (least: number, most: number, step = 1): number[] =>
  Array.from({ length: Math.floor((most - least) / step) + 1 }, (_, i) => least + i * step);

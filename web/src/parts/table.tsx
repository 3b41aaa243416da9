// Tables that scroll horizontally on narrow pages.
import type { ComponentChildren } from "preact";

export function Scroll({ label, children }: { label: string; children: ComponentChildren }) {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={label}>
      {children}
    </div>
  );
}

interface Props {
  label: string;
  heads: readonly string[];
  class?: string;
  children: ComponentChildren;
}
export function Table({ label, heads, children, ...rest }: Props) {
  return (
    <Scroll label={label}>
      <table class={rest.class}>
        <thead>
          <tr>
            {heads.map((h) => (
              <th key={h}>{h}</th>
            ))}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </Scroll>
  );
}

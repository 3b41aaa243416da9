// Light or dark theme: the system's, unless chosen on the page.
import { effect, signal } from "@preact/signals";

export type Theme = "light" | "dark";
const system = matchMedia("(prefers-color-scheme: dark)");
const stored = (): Theme | undefined => {
  try {
    const value = localStorage.getItem("theme");
    return value === "light" || value === "dark" ? value : undefined;
  } catch {
    return undefined;
  }
};

const chosen = signal<Theme | undefined>(stored());
const preferred = signal<Theme>(system.matches ? "dark" : "light");
system.addEventListener("change", () => {
  preferred.value = system.matches ? "dark" : "light";
});
export const theme = signal<Theme>("light");
effect(() => {
  theme.value = chosen.value ?? preferred.value;
  document.documentElement.dataset.theme = theme.value;
});

export function toggleTheme(): void {
  chosen.value = theme.value === "dark" ? "light" : "dark";
  try {
    localStorage.setItem("theme", chosen.value);
  } catch {
    // without storage (private windows) the choice lasts until the page is closed
  }
}

// Returns a palette color, for drawing on a canvas.
export const color = (name: string): string =>
  getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

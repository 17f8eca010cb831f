/** What belongs to this browser alone: theme, density, saved views, single keys. Never what a page shows. */

import { useSet } from "./parts/html.js";

const PREFS = "taskharbor";
const prefListeners = new Set();
let values = { theme: "system", density: "normal", keys: true, views: [] };

try { values = { ...values, ...JSON.parse(localStorage.getItem(PREFS) ?? "{}") }; } catch { /* no storage: this visit only */ }
show();

export const prefs = {
  get: (name) => values[name],
  set(name, value) {
    values = { ...values, [name]: value };
    try { localStorage.setItem(PREFS, JSON.stringify(values)); } catch { /* as above */ }
    show();
    prefListeners.forEach((listener) => listener());
  },
};

export function usePref(name) {
  useSet(prefListeners);
  return [values[name], (value) => prefs.set(name, value)];
}

const THEMES = ["system", "light", "dark"];
export const THEME_WORDS = { system: "follow the system", light: "light", dark: "dark" };
export const nextTheme = () => prefs.set("theme", THEMES[(THEMES.indexOf(values.theme) + 1) % THEMES.length]);
export const nextDensity = () => prefs.set("density", values.density === "compact" ? "normal" : "compact");

function show() {
  const root = document.documentElement;
  if (values.theme === "system") delete root.dataset.theme; else root.dataset.theme = values.theme;
  root.dataset.density = values.density;
}

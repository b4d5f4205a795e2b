// Light or dark: the system's wish until somebody chooses otherwise. Loaded before the page is drawn, so that nothing flashes.
// Consumes and keeps `yatt-theme` in local storage; produces `data-theme` on the document and the event `yatt:theme`.
(() => {
  "use strict";
  const KEY = "yatt-theme";
  const ORDER = ["system", "light", "dark"];
  const root = document.documentElement;

  const kept = () => {
    try {
      const value = localStorage.getItem(KEY);
      return ORDER.includes(value) ? value : "system";
    } catch {
      return "system"; // storage may be forbidden; the choice then lasts as long as the page
    }
  };

  const keep = (value) => {
    try {
      localStorage.setItem(KEY, value);
    } catch {
      root.dataset.theme = value;
    }
  };

  const apply = (value) => {
    if (value === "system") delete root.dataset.theme;
    else root.dataset.theme = value;
    for (const button of document.querySelectorAll("[data-theme-switch]")) {
      button.querySelector("[data-theme-name]").textContent = value;
    }
    document.dispatchEvent(new CustomEvent("yatt:theme"));
  };

  let current = kept();
  apply(current);
  document.addEventListener("DOMContentLoaded", () => {
    apply(current);
    document.addEventListener("click", (event) => {
      if (!event.target.closest("[data-theme-switch]")) return;
      current = ORDER[(ORDER.indexOf(current) + 1) % ORDER.length];
      keep(current);
      apply(current);
    });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => apply(current));
})();

// Applies the light or dark theme: the system's preference unless the user chooses one. Loaded before the page is drawn, to avoid
// a flash. Consumes and stores `yatt-theme` in local storage; produces `data-theme` on the document, `light` or `dark`, and the
// event `yatt:theme`. Without this script the page is light.
(() => {
  "use strict";
  const KEY = "yatt-theme";
  const ORDER = ["system", "light", "dark"];
  const root = document.documentElement;
  const darkness = matchMedia("(prefers-color-scheme: dark)");

  const kept = () => {
    try {
      const value = localStorage.getItem(KEY);
      return ORDER.includes(value) ? value : "system";
    } catch {
      return "system"; // storage may be blocked; the choice then lasts as long as the page
    }
  };

  const keep = (value) => {
    try {
      localStorage.setItem(KEY, value);
    } catch {
      // as above
    }
  };

  const apply = (value) => {
    const wished = darkness.matches ? "dark" : "light";
    root.dataset.theme = value === "system" ? wished : value;
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
  darkness.addEventListener("change", () => apply(current));
})();

// What every page needs: dialogs that confirm, pictures walked through by arrow keys, and the state of the live connection.
// Consumes `data-opens`, `data-closes`, `data-walk` and htmx's events; produces `yatt:progress` whenever the run has moved.

const STEPS = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, Home: -Infinity, End: Infinity };

document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-opens]");
  if (opener) document.getElementById(opener.dataset.opens).showModal();
  const closer = event.target.closest("[data-closes]");
  if (closer) closer.closest("dialog").close();
});

// A form that was sent is not sent again by a second click.
document.addEventListener("submit", (event) => {
  if (event.target.method !== "post") return;
  for (const button of event.target.querySelectorAll("button[type=submit]")) button.disabled = true;
});
addEventListener("pageshow", () => {
  for (const button of document.querySelectorAll("form[method=post] button[type=submit]")) button.disabled = false;
});

// -- pictures whose items say what they are ----------------------------------------------------------------------------

const told = (item) => {
  const output = document.getElementById(item.closest("[data-walk]").dataset.walk);
  output.textContent = item.getAttribute("aria-label");
};

for (const kind of ["mouseover", "focusin"]) {
  document.addEventListener(kind, (event) => {
    const item = event.target.closest("[data-walk] .item");
    if (item) told(item);
  });
}

document.addEventListener("keydown", (event) => {
  const item = event.target.closest("[data-walk] .item");
  if (!item || !(event.key in STEPS)) return;
  event.preventDefault();
  const items = [...item.closest("[data-walk]").querySelectorAll(".item")];
  const next = items[Math.min(items.length - 1, Math.max(0, items.indexOf(item) + STEPS[event.key]))];
  item.setAttribute("tabindex", "-1");
  next.setAttribute("tabindex", "0");
  next.focus();
});

// One item of each picture is reached by Tab; the arrow keys go on from there.
const firstStops = (root) => {
  for (const picture of root.querySelectorAll("[data-walk]")) {
    picture.querySelectorAll(".item").forEach((item, at) => item.setAttribute("tabindex", at ? "-1" : "0"));
  }
};
firstStops(document);
document.querySelector(".tabs [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
document.addEventListener("htmx:load", (event) => firstStops(event.target));

// What renews itself waits while somebody is in it with the keyboard or has marked a text in it.
document.addEventListener("htmx:beforeSwap", (event) => {
  const target = event.detail.target;
  if (!target.hasAttribute("data-calm")) return;
  const chosen = getSelection();
  if (target.contains(document.activeElement) || (!chosen.isCollapsed && target.contains(chosen.anchorNode))) {
    event.detail.shouldSwap = false;
  }
});

// -- live ----------------------------------------------------------------------------------------------------------------

const say = (words, kind) => {
  for (const place of document.querySelectorAll("[data-live-state]")) {
    place.textContent = words;
    place.className = `badge ${kind}`;
  }
};

document.addEventListener("htmx:sseOpen", () => say("live", "good"));
document.addEventListener("htmx:sseError", () => say("connection lost, trying again", "warn"));
document.addEventListener("htmx:sseClose", () => say("not live", ""));
document.addEventListener("htmx:sseMessage", () => document.dispatchEvent(new CustomEvent("yatt:progress")));

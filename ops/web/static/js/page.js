// Behaviour of every page: confirmation dialogs, arrow-key navigation of pictures, and the state of the live connection.
// Consumes `data-opens`, `data-closes`, `data-walk`, `data-calm`, `data-live` and htmx's events; produces `yatt:progress` whenever
// the run makes progress.

const STEPS = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, Home: -Infinity, End: Infinity };

document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-opens]");
  if (opener) document.getElementById(opener.dataset.opens).showModal();
  const closer = event.target.closest("[data-closes]");
  if (closer) closer.closest("dialog").close();
});

// Disables a form's buttons after submission, so that a second click does not send it again.
document.addEventListener("submit", (event) => {
  if (event.target.method !== "post") return;
  for (const button of event.target.querySelectorAll("button[type=submit]")) button.disabled = true;
});
addEventListener("pageshow", () => {
  for (const button of document.querySelectorAll("form[method=post] button[type=submit]")) button.disabled = false;
});

// -- pictures with labelled items --------------------------------------------------------------------------------------

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

// Tab reaches one item of each picture; the arrow keys continue from there.
const firstStops = (root) => {
  for (const picture of root.querySelectorAll("[data-walk]")) {
    picture.querySelectorAll(".item").forEach((item, at) => item.setAttribute("tabindex", at ? "-1" : "0"));
  }
};
firstStops(document);
document.querySelector(".tabs [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
document.addEventListener("htmx:load", (event) => firstStops(event.target));

// Parts that reload themselves wait while they have the keyboard focus, selected text, a ticked box or an open dialog.
const isBusy = (target) => {
  const chosen = getSelection();
  const marked = !chosen.isCollapsed && target.contains(chosen.anchorNode);
  const isUsed = target.querySelector("dialog[open], input[name=run]:checked") !== null;
  return marked || isUsed || target.contains(document.activeElement);
};
for (const kind of ["htmx:beforeSwap", "htmx:oobBeforeSwap"]) {
  document.addEventListener(kind, (event) => {
    const { target, fragment } = event.detail;
    const isSame = fragment?.firstElementChild?.innerHTML === target.innerHTML; // a screen reader may be reading it
    if (target.hasAttribute("data-calm") && (isSame || isBusy(target))) event.detail.shouldSwap = false;
  });
}

// Hidden tabs do not reload anything.
document.addEventListener("htmx:beforeRequest", (event) => {
  if (document.hidden && event.detail.elt.hasAttribute("data-calm")) event.preventDefault();
});

// -- live ----------------------------------------------------------------------------------------------------------------

// A page listens only while it is visible: a browser has six connections for all tabs of a dashboard, and a stream takes one.
const REOPEN_MS = 5000;
const badge = document.querySelector("[data-live]");
let stream = null;

const say = (words, kind) => {
  badge.textContent = words;
  badge.className = `badge ${kind}`;
};

const hang = () => {
  stream?.close();
  stream = null;
};

let isOver = false;

const listen = () => {
  if (document.hidden) return hang();
  if (stream || isOver) return;
  stream = new EventSource(badge.dataset.live);
  stream.addEventListener("open", () => say("connected", "good"));
  stream.addEventListener("run", () => document.dispatchEvent(new CustomEvent("yatt:progress")));
  stream.addEventListener("end", () => {
    isOver = true; // before the stream closes, or the browser would reopen it
    hang();
    say("finished", "");
  });
  stream.addEventListener("error", () => {
    say("connection lost, reconnecting", "warn");
    if (stream?.readyState !== EventSource.CLOSED) return;
    hang(); // browsers give up after a refused connection
    setTimeout(listen, REOPEN_MS);
  });
};

if (badge) {
  document.addEventListener("visibilitychange", listen);
  listen();
}

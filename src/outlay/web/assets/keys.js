// Keys, the number of selected runs, and views that a reader saves in this browser.
(() => {
  "use strict";
  const ROWS = "table.list tbody tr:has(a.name)";
  const GO = { n: "/", m: "/money", r: "/runs" };
  const help = document.getElementById("keys");
  let current = "", isGoing = false;

  const rows = () => [...document.querySelectorAll(ROWS)];
  const linkOf = (row) => row.querySelector("a.name");
  const boxOf = (row) => row.querySelector("input[type=checkbox]");
  const rowOf = () => rows().find((row) => linkOf(row).pathname === current);

  // A live update makes rows anew: the current one is known by its run.
  const mark = () => {
    for (const row of rows()) row.classList.toggle("current", linkOf(row).pathname === current);
  };

  const move = (by) => {
    const all = rows(), at = all.findIndex((row) => linkOf(row).pathname === current);
    const row = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.max(0, Math.min(all.length - 1, at + by))];
    if (!row) return;
    current = linkOf(row).pathname;
    mark();
    linkOf(row).focus({ preventScroll: true });
    row.scrollIntoView({ block: "nearest" });
  };

  const select = () => {
    const box = rowOf() && boxOf(rowOf());
    if (box) box.click();
  };

  const compare = () => {
    const form = document.getElementById("chosen");
    if (form && document.querySelector('input[form="chosen"]:checked')) form.requestSubmit();
  };

  const search = () => {
    const field = document.querySelector("form.filters input[type=search]") ||
      document.querySelector("form.filters :is(input, select)");
    if (!field) return location.assign("/runs");
    field.focus();
    if (field.select) field.select();
  };

  const keys = {
    "/": search, j: () => move(1), k: () => move(-1), x: select, c: compare,
    "?": () => help.showModal(), g: () => { isGoing = true; },
  };
  const isTyped = (target) => target.closest?.("input:not([type=checkbox]), select, textarea, [contenteditable]");

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || help.open || isTyped(event.target)) return;
    const wasGoing = isGoing;
    isGoing = false;
    const act = wasGoing && event.key in GO ? () => location.assign(GO[event.key]) : keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });

  document.addEventListener("focusin", (event) => {
    const row = event.target.closest(ROWS);
    if (!row) return;
    current = linkOf(row).pathname;
    mark();
  });

  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-keys]")) help.showModal();
  });

  // The bar below the list says how many runs are selected.
  const count = () => {
    const button = document.querySelector("#chosen button");
    if (!button) return;
    const chosen = document.querySelectorAll('input[form="chosen"]:checked').length;
    button.textContent = chosen ? `Compare ${chosen} selected run${chosen > 1 ? "s" : ""}` : "Compare selected runs";
  };

  // Saved views: names and addresses, kept by this browser.
  const KEPT = "outlay-views";
  const read = () => {
    try { return JSON.parse(localStorage.getItem(KEPT)) || {}; } catch { return {}; }
  };
  const make = (tag, about, ...inside) => {
    const made = Object.assign(document.createElement(tag), about);
    made.append(...inside);
    return made;
  };
  const write = (views) => {
    try { localStorage.setItem(KEPT, JSON.stringify(views)); } catch { /* Nothing is kept then. */ }
    draw();
  };
  const draw = () => {
    const place = document.querySelector(".views .saved");
    if (!place) return;
    const views = read(), here = location.pathname + location.search;
    const links = Object.entries(views).filter(([, to]) => to.startsWith("/runs")).map(([name, to]) => {
      const link = make("a", { href: to }, name);
      if (to === here) link.setAttribute("aria-current", "true");
      const drop = make("button", { type: "button", className: "quiet" }, "×");
      drop.setAttribute("aria-label", `Forget the view ${name}`);
      drop.addEventListener("click", () => { delete views[name]; write(views); });
      return make("span", {}, link, drop);
    });
    const field = make("input", { type: "text", placeholder: "name", required: true, maxLength: 40 });
    field.setAttribute("aria-label", "Name of the view");
    const form = make("form", {}, field, make("button", {}, "Save"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      write({ ...views, [field.value]: here });
    });
    place.replaceChildren(...links, make("details", {}, make("summary", {}, "Save this view"), form));
  };

  document.addEventListener("change", count);
  addEventListener("pageshow", () => setTimeout(count));
  document.addEventListener("htmx:sse:after:message", () => { mark(); count(); });
  draw();
  count();
})();

// Other views of one page without loading it: the address, the back button, the live stream.
(() => {
  "use strict";
  const view = document.getElementById("view");
  if (!window.htmx || !view) return;
  const here = () => location.pathname + location.search;
  let shown = here(), stream = null, moving = false;

  document.addEventListener("htmx:sse:before:connection", (event) => {
    if (moving) event.detail.connection.cancelled = true;
  });
  document.addEventListener("htmx:sse:after:connection", (event) => { stream = event.detail.connection; });
  document.addEventListener("htmx:sse:close", () => {
    stream = null;
    if (!moving) return;
    moving = false;
    setTimeout(connect);
  });
  const connect = () => htmx.ajax("GET", view.getAttribute("hx-sse:connect"), { source: view });

  document.addEventListener("htmx:sse:after:message", () => {
    const title = document.getElementById("window-title");
    if (title) document.title = title.value;
  });

  // Live updates are those of the address from now on.
  const follow = () => {
    if (!view.hasAttribute("hx-sse:connect")) return;
    view.setAttribute("hx-sse:connect", `/events${here()}`);
    if (!stream) return;
    moving = true;
    stream.reader?.cancel();
  };

  // Show the page at an address; only the newest that was asked for.
  let asked = 0;
  const show = async () => {
    const number = ++asked;
    shown = here();
    const answer = await fetch(shown).catch(() => null);
    if (!answer?.ok) { location.reload(); return; }
    const found = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (number !== asked) return;
    await htmx.swap({ text: found.getElementById("view").innerHTML, target: view, sourceElement: view, swap: "innerMorph" });
    document.title = found.title;
    document.querySelector("footer").innerHTML = found.querySelector("footer").innerHTML;
    outlay.prepare();
    follow();
  };
  const visit = (address) => {
    const url = new URL(address, location);
    if (url.pathname !== location.pathname) { location.assign(url); return; }
    url.hash = "";
    if (url.pathname + url.search === here()) return;
    history.pushState(null, "", url);
    show();
  };
  window.addEventListener("popstate", () => { if (here() !== shown) show(); });

  // A change that a script has drawn already: only the address and the stream follow.
  const note = (url) => {
    if (url.pathname + url.search === here()) return;
    history.pushState(null, "", url);
    shown = here();
    follow();
  };

  document.addEventListener("click", (event) => {
    const link = event.target.closest(".look a");
    if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    visit(link.href);
  });
  const apply = (event) => {
    const form = event.target.closest("form[data-look]");
    if (!form) return;
    event.preventDefault();
    const chosen = [...new FormData(form)].filter(([name, value]) => !(name === "smoothing" && value === "0"));
    visit(`${location.pathname}?${new URLSearchParams(chosen)}`);
  };
  document.addEventListener("change", apply);
  document.addEventListener("submit", apply);
  Object.assign(window.outlay, { note, show });
})();

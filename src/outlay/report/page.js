// What a page does beyond showing itself: read-outs in charts, legends that toggle, filters that apply.
// It works the same in a report that is a file, and needs no library.
(() => {
  "use strict";
  const off = new Set();
  const keyOf = (chart, label) => `${chart.getAttribute("aria-label")}|${label}`;
  const linesOf = (chart) => [...chart.querySelectorAll("[data-label]")];
  const numbers = (text) => text.split(" ").map(Number);
  const short = (value) => {
    if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-4)) return value.toExponential(2);
    return String(Number(value.toPrecision(4)));
  };

  const pointsOf = (line) => {
    if (line.tagName === "circle") return [[Number(line.getAttribute("cx")), Number(line.getAttribute("cy"))]];
    return (line.getAttribute("points") || "").split(" ").filter(Boolean).map((p) => p.split(",").map(Number));
  };

  const inverse = (chart, axis) => {
    const [value0, value1, place0, place1] = numbers(chart.dataset[axis]);
    return (place) => value0 + ((place - place0) / (place1 - place0)) * (value1 - value0);
  };

  // The read-out of a chart at a place on its horizontal axis: the nearest point of every line.
  const readOut = (chart, at) => {
    const toX = inverse(chart, "x"), toY = inverse(chart, "y");
    const near = linesOf(chart).filter((line) => !line.classList.contains("off")).map((line) => {
      const points = pointsOf(line);
      if (!points.length) return null;
      const best = points.reduce((a, b) => (Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a));
      return { label: line.dataset.label, best, away: Math.abs(best[0] - at) };
    }).filter(Boolean).sort((a, b) => a.away - b.away);
    if (!near.length) return;
    const place = near[0].best[0];
    const shown = near.filter((one) => Math.abs(one.best[0] - place) < 12).slice(0, 8);
    let cursor = chart.querySelector("line.cursor");
    if (!cursor) {
      cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
      cursor.setAttribute("class", "cursor");
      chart.append(cursor);
    }
    const [, , bottom, top] = numbers(chart.dataset.y);
    for (const [name, value] of [["x1", place], ["x2", place], ["y1", top], ["y2", bottom]]) cursor.setAttribute(name, value);
    chart.dataset.at = place;
    const out = chart.parentElement.querySelector(".readout");
    if (out) {
      out.textContent = `${chart.dataset.xTitle} ${short(toX(place))}: ` +
        shown.map((one) => `${one.label} ${short(toY(one.best[1]))}`).join(", ");
    }
  };

  const chartOf = (event) => event.target.closest && event.target.closest("svg[data-x]");

  document.addEventListener("pointermove", (event) => {
    const chart = chartOf(event);
    if (!chart) return;
    const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse());
    readOut(chart, place.x);
  });

  document.addEventListener("keydown", (event) => {
    const chart = chartOf(event);
    if (chart && ["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) {
      event.preventDefault();
      const places = [...new Set(linesOf(chart).filter((line) => !line.classList.contains("off"))
        .flatMap((line) => pointsOf(line).map((p) => p[0])))].sort((a, b) => a - b);
      const at = places.findIndex((p) => p >= Number(chart.dataset.at || places[0]));
      const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: places.length - 1 }[event.key];
      readOut(chart, places[Math.max(0, Math.min(places.length - 1, to))]);
    }
  });

  const chartBeside = (item) => item.closest(".chart")?.querySelector("svg[data-x]");

  const toggle = (item) => {
    const chart = chartBeside(item);
    if (!chart) return;
    const key = keyOf(chart, item.dataset.look);
    if (off.has(key)) off.delete(key); else off.add(key);
    prepare();
  };

  document.addEventListener("click", (event) => {
    const item = event.target.closest("button.key");
    if (item) toggle(item);
  });

  document.addEventListener("change", (event) => {
    const form = event.target.closest("form[data-apply]");
    if (form && event.target.type !== "search" && event.target.type !== "text") form.requestSubmit();
  });

  // Hide again what was hidden before the page was updated.
  const prepare = () => {
    for (const item of document.querySelectorAll("button.key")) {
      const chart = chartBeside(item);
      if (!chart) continue;
      const isOff = off.has(keyOf(chart, item.dataset.look));
      item.setAttribute("aria-pressed", isOff ? "false" : "true");
      for (const line of chart.querySelectorAll(`[data-look="${item.dataset.look}"]`)) {
        if (line.classList.contains("off") !== isOff) line.classList.toggle("off", isOff);
      }
    }
  };

  const state = document.querySelector(".state");
  const say = (text, isLive) => {
    if (!state) return;
    state.textContent = text;
    state.classList.toggle("live", isLive);
  };
  document.addEventListener("htmx:sse:after:connection", () => say("live", true));
  document.addEventListener("htmx:sse:error", () => say("not connected", false));
  document.addEventListener("htmx:sse:close", () => say("not connected", false));
  document.addEventListener("htmx:sse:after:message", prepare);
  prepare();
})();

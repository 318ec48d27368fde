// Read-outs of charts, legends that hide lines, filters that apply on change, connection state.
// It works the same in a report file, and needs no library.
(() => {
  "use strict";
  const off = new Set();
  const SVG = "http://www.w3.org/2000/svg", SHAPES = "svg.plot, svg.strip, svg.rows";
  const keyOf = (chart, label) => `${chart.getAttribute("aria-label")}|${label}`;
  const linesOf = (chart) => [...chart.querySelectorAll("[data-label]")].filter((line) => !line.classList.contains("off"));
  const saidIn = (chart) => [...chart.querySelectorAll("[data-said]")];
  const short = (value) => {
    if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-4)) return value.toExponential(2);
    return String(Number(value.toPrecision(4)));
  };
  const chartOf = (event) => event.target.closest && event.target.closest(SHAPES);
  const say = (chart, text) => {
    const out = chart.closest(".chart")?.querySelector(".readout");
    if (out) out.textContent = text;
  };

  // Places are shares of the plot, 0 to 1: lines are drawn in thousandths, points in percent.
  const pointsOf = (line) => {
    if (line.tagName === "circle") return [[parseFloat(line.getAttribute("cx")) / 100, parseFloat(line.getAttribute("cy")) / 100]];
    return (line.getAttribute("points") || "").split(" ").filter(Boolean).map((p) => p.split(",").map((n) => Number(n) / 1000));
  };
  const valueAt = (chart, axis, share) => {
    const [first, last] = chart.dataset[axis].split(" ").map(Number);
    return first + share * (last - first);
  };
  const acrossText = (chart, share) => {
    const value = valueAt(chart, "x", share);
    return chart.dataset.days ? new Date(value * 864e5).toISOString().slice(0, 10) : short(value);
  };

  // The read-out of a plot at a place on its horizontal axis: the nearest point of every line.
  const readPlot = (chart, at) => {
    const near = linesOf(chart).map((line) => {
      const points = pointsOf(line);
      if (!points.length) return null;
      const best = points.reduce((a, b) => (Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a));
      return { label: line.dataset.label, best, away: Math.abs(best[0] - at) };
    }).filter(Boolean).sort((a, b) => a.away - b.away);
    if (!near.length) return;
    const place = near[0].best[0];
    const shown = near.filter((one) => Math.abs(one.best[0] - place) < 0.02).slice(0, 8);
    let cursor = chart.querySelector("line.cursor");
    if (!cursor) {
      cursor = document.createElementNS(SVG, "line");
      cursor.setAttribute("class", "cursor");
      cursor.setAttribute("y2", "100%");
      chart.append(cursor);
    }
    for (const name of ["x1", "x2"]) cursor.setAttribute(name, `${place * 100}%`);
    chart.dataset.at = place;
    say(chart, `${chart.dataset.xTitle} ${acrossText(chart, place)}: ` +
      shown.map((one) => `${one.label} ${short(valueAt(chart, "y", 1 - one.best[1]))}`).join(", "));
  };

  // The read-out of a chart whose parts have texts: bars, stretches of time, rows.
  const readPart = (chart, part) => {
    for (const other of chart.querySelectorAll(".said")) other.classList.remove("said");
    part.classList.add("said");
    chart.dataset.at = saidIn(chart).indexOf(part);
    say(chart, part.dataset.said);
  };

  document.addEventListener("pointermove", (event) => {
    const chart = chartOf(event), part = chart && event.target.closest("[data-said]");
    if (part) readPart(chart, part);
    if (!chart || !chart.dataset.x) return;
    const box = chart.getBoundingClientRect(), style = getComputedStyle(chart);
    const left = parseFloat(style.paddingLeft), right = parseFloat(style.paddingRight);
    readPlot(chart, (event.clientX - box.left - left) / (box.width - left - right));
  });

  document.addEventListener("keydown", (event) => {
    const chart = chartOf(event);
    const moves = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, Home: -Infinity, End: Infinity };
    if (!chart || !(event.key in moves)) return;
    event.preventDefault();
    const parts = saidIn(chart);
    const places = parts.length ? parts.map((_, n) => n) : [...new Set(linesOf(chart)
      .flatMap((line) => pointsOf(line).map((p) => p[0])))].sort((a, b) => a - b);
    if (!places.length) return;
    const at = "at" in chart.dataset ? places.findIndex((p) => p >= Number(chart.dataset.at)) : -1;
    const to = Math.max(0, Math.min(places.length - 1, at + moves[event.key]));
    if (parts.length) readPart(chart, parts[to]); else readPlot(chart, places[to]);
  });

  const chartBeside = (item) => item.closest(".chart")?.querySelector(SHAPES);

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

  // After an update, hide again the lines that were hidden.
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
  const sayState = (text, isLive) => {
    if (!state) return;
    state.textContent = text;
    state.classList.toggle("live", isLive);
  };
  document.addEventListener("htmx:sse:after:connection", () => sayState("live", true));
  document.addEventListener("htmx:response:error", (event) =>
    sayState(
      event.detail.ctx.response.status === 503 ? "not live: too many pages open" : "not connected",
      false,
    ),
  );
  document.addEventListener("htmx:sse:error", () => sayState("not connected", false));
  document.addEventListener("htmx:sse:close", () => sayState("not connected", false));
  document.addEventListener("htmx:sse:after:message", prepare);
  prepare();
})();

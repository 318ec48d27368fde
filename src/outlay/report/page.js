// Read-outs of charts, one cursor over all of them, legends that hide lines, brushes of parallel
// coordinates, filters that apply on change, connection state.
// It works the same in a report file, and needs no library.
(() => {
  "use strict";
  const off = new Set();
  const SVG = "http://www.w3.org/2000/svg", SHAPES = "svg.plot, svg.strip, svg.rows, svg.parallel";
  const keyOf = (chart, look) => `${chart.getAttribute("aria-label")}|${look}`;
  const saidIn = (chart) => [...chart.querySelectorAll("[data-said]")];
  const short = (value) => {
    if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en-US");
    return String(Number(value.toPrecision(6)));
  };
  const chartOf = (event) => {
    const target = event.target;
    return target.closest && (target.closest(SHAPES) || target.closest(".drawing")?.querySelector(SHAPES));
  };
  const say = (chart, text) => {
    const out = chart.closest(".chart")?.querySelector(".readout");
    if (out && out.textContent !== text) out.textContent = text;
  };

  // What a chart shows: its lines with the values that were recorded. The drawing has only their
  // places. `more` are lines that a page asked for since, and `plots` what draws them instead.
  const more = new WeakMap(), plots = new WeakMap(), parsed = new WeakMap();
  const numbers = (text) => (text ? text.split(" ").map(Number) : []);
  const parse = (line) => {
    const { values, label, look, times } = line.dataset, known = parsed.get(line);
    const faint = line.classList.contains("faint");
    if (known && known.text === values && known.label === label && known.faint === faint) return known;
    const points = values.split(" ").filter(Boolean).map((pair) => pair.split(",").map(Number));
    const found = { text: values, label, look: Number(look), points, times: numbers(times), faint };
    parsed.set(line, found);
    return found;
  };
  const allLines = (chart) => more.get(chart) || [...chart.querySelectorAll("[data-values]")].map(parse);
  const linesOf = (chart) => allLines(chart).filter((line) => !off.has(keyOf(chart, line.look)));
  const rangeOf = (chart) => plots.get(chart)?.range() || numbers(chart.dataset.x);
  const secondsAt = (chart, line, index) => {
    if (line.times.length) return line.times[index];
    return chart.dataset.seconds ? line.points[index][0] * Number(chart.dataset.seconds) : null;
  };
  const nearest = (places, at) => {
    let best = -1, away = Infinity;
    places.forEach((place, n) => { const d = Math.abs(place - at); if (d < away) { best = n; away = d; } });
    return best;
  };
  const acrossText = (chart, value) =>
    (chart.dataset.days ? new Date(value * 864e5).toISOString().slice(0, 10) : short(value));

  const setCursor = (chart, share) => {
    let cursor = chart.querySelector("line.cursor");
    if (share === null || share < 0 || share > 1) { cursor?.remove(); return; }
    if (!cursor) {
      cursor = document.createElementNS(SVG, "line");
      cursor.setAttribute("class", "cursor");
      cursor.setAttribute("y2", "100%");
      chart.append(cursor);
    }
    for (const name of ["x1", "x2"]) cursor.setAttribute(name, `${share * 100}%`);
  };
  const setPlace = (chart, x) => {
    const [first, last] = rangeOf(chart);
    setCursor(chart, x === null ? null : (x - first) / (last - first));
    plots.get(chart)?.point(x);
  };

  // One cursor over all charts: at the same place of the same axis, else at the same time.
  const share = (source, x, seconds) => {
    for (const chart of document.querySelectorAll("svg.plot[data-zoom], svg.strip[data-seconds]")) {
      if (chart === source) continue;
      if (chart.matches(".strip")) {
        setCursor(chart, seconds === null ? null : seconds / Number(chart.dataset.seconds));
      } else if (x !== null && chart.dataset.xTitle === source?.dataset.xTitle) {
        setPlace(chart, x);
      } else {
        const line = linesOf(chart).find((one) => one.points.length && secondsAt(chart, one, 0) !== null);
        if (seconds === null || !line) { setPlace(chart, null); continue; }
        const index = nearest(line.points.map((_, n) => secondsAt(chart, line, n)), seconds);
        setPlace(chart, line.points[index][0]);
      }
    }
  };

  // The chart that is being read: a resting pointer goes on reading while the page changes.
  let resting = null;

  // The read-out of a plot at a value of its horizontal axis: the nearest point of every line.
  const readPlot = (chart, x) => {
    const [first, last] = rangeOf(chart);
    const near = linesOf(chart).filter((line) => line.points.length).map((line) => {
      const index = nearest(line.points.map((p) => p[0]), x);
      return { line, index, point: line.points[index], away: Math.abs(line.points[index][0] - x) };
    }).sort((a, b) => a.away - b.away);
    if (!near.length) return;
    const place = near[0].point[0], width = Math.abs(last - first);
    const shown = near.filter((one) => Math.abs(one.point[0] - place) < 0.02 * width).slice(0, 8);
    setPlace(chart, place);
    chart.dataset.at = place;
    resting = { chart, x };
    say(chart, `${chart.dataset.xTitle} ${acrossText(chart, place)}: ` +
      shown.map((one) => `${one.line.label} ${short(one.point[1])}`).join(", "));
    const timed = near.find((one) => secondsAt(chart, one.line, one.index) !== null);
    if (chart.dataset.zoom) share(chart, place, timed ? secondsAt(chart, timed.line, timed.index) : null);
  };

  // The read-out of a chart whose parts have texts: bars, stretches of time, rows.
  const readPart = (chart, part, seconds = null) => {
    for (const other of chart.querySelectorAll(".said")) other.classList.remove("said");
    part.classList.add("said");
    const index = saidIn(chart).indexOf(part);
    chart.dataset.at = index;
    resting = { chart, index, seconds };
    say(chart, part.dataset.said);
    if (seconds !== null) share(chart, null, seconds);
  };
  const readAgain = () => {
    if (!resting) return;
    const { chart, x, index, seconds } = resting;
    if (!chart.isConnected) { resting = null; return; }
    if (x !== undefined) { readPlot(chart, x); return; }
    const part = saidIn(chart)[index];
    if (part) readPart(chart, part, seconds);
  };

  const shareUnder = (chart, event) => {
    const box = chart.getBoundingClientRect(), style = getComputedStyle(chart);
    const left = parseFloat(style.paddingLeft), right = parseFloat(style.paddingRight);
    return (event.clientX - box.left - left) / (box.width - left - right);
  };
  document.addEventListener("pointermove", (event) => {
    const chart = chartOf(event), part = chart && event.target.closest("[data-said]");
    if (!chart) {
      if (resting && !resting.chart.contains(document.activeElement)) { resting = null; share(null, null, null); }
      return;
    }
    const place = shareUnder(chart, event);
    if (part) readPart(chart, part, chart.matches(".strip") ? place * Number(chart.dataset.seconds) : null);
    if (!chart.dataset.x) return;
    const [first, last] = rangeOf(chart);
    readPlot(chart, first + place * (last - first));
  });

  document.addEventListener("keydown", (event) => {
    const chart = chartOf(event);
    const moves = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, Home: -Infinity, End: Infinity };
    if (!chart || !(event.key in moves)) return;
    event.preventDefault();
    const parts = saidIn(chart);
    const [first, last] = chart.dataset.x ? rangeOf(chart) : [];
    const places = parts.length ? parts.map((_, n) => n) : [...new Set(linesOf(chart)
      .flatMap((line) => line.points.map((p) => p[0])))].filter((x) => x >= first && x <= last).sort((a, b) => a - b);
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

  // After an update, hide again the lines that were hidden, and read again what was being read.
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
    document.dispatchEvent(new Event("outlay:shown"));
    readAgain();
  };
  window.outlay = { allLines, keyOf, linesOf, more, numbers, off, plots, prepare };

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

// Read-outs of charts, one cursor over all of them, legends that hide lines, brushes of parallel
// coordinates, filters that apply on change, connection state.
// It works the same in a report file, and needs no library.
(() => {
  "use strict";
  const off = new Set();
  let leftOut = new Set();  // Runs that a brush leaves out.
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
  const isShown = (chart, line) => !off.has(keyOf(chart, line.look)) && !leftOut.has(line.label);
  const linesOf = (chart) => allLines(chart).filter((line) => isShown(chart, line));
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

  let dragged = null;  // The axis of which a part is being chosen.

  const shareUnder = (chart, event) => {
    const box = chart.getBoundingClientRect(), style = getComputedStyle(chart);
    const left = parseFloat(style.paddingLeft), right = parseFloat(style.paddingRight);
    return (event.clientX - box.left - left) / (box.width - left - right);
  };
  document.addEventListener("pointermove", (event) => {
    const chart = chartOf(event), part = chart && event.target.closest("[data-said]");
    if (dragged) return;
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

  // Brushes of parallel coordinates: a run is chosen if its line is within all of them. They are in
  // the address: axis:from..to, separated by commas.
  const brushes = new Map((new URLSearchParams(location.search).get("brush") || "").split(",").filter(Boolean)
    .map((text) => text.split(":")).map(([axis, ends]) => [axis, ends.split("..").map(Number)]));
  const chartWithAxes = () => document.querySelector("svg.parallel");
  const drawBrush = (axis) => {
    const ends = brushes.get(axis.dataset.axis);
    let rect = axis.querySelector(".brush");
    if (!ends) { rect?.remove(); return; }
    if (!rect) {
      rect = document.createElementNS(SVG, "rect");
      rect.setAttribute("class", "brush");
      rect.setAttribute("width", "20");
      rect.setAttribute("transform", "translate(-10)");
      axis.append(rect);
    }
    rect.setAttribute("x", axis.querySelector("line").getAttribute("x1"));
    rect.setAttribute("y", `${100 * (1 - ends[1])}%`);
    rect.setAttribute("height", `${100 * (ends[1] - ends[0])}%`);
  };
  const brush = () => {
    const chart = chartWithAxes();
    if (!chart) return;
    chart.querySelectorAll(".axis").forEach(drawBrush);
    const lines = [...chart.querySelectorAll("[data-places]")], isIn = (line) => {
      const places = numbers(line.dataset.places);
      return [...brushes].every(([axis, [low, high]]) => places[axis] >= low && places[axis] <= high);
    };
    leftOut = new Set(lines.filter((line) => !isIn(line)).map((line) => line.dataset.brushed));
    for (const one of document.querySelectorAll("[data-brushed], [data-values][data-label]")) {
      one.classList.toggle("out", leftOut.has(one.dataset.brushed ?? one.dataset.label));
    }
    if (brushes.size) say(chart, `${lines.length - leftOut.size} of ${lines.length} runs chosen; Escape shows all`);
  };
  const setBrush = (axis, ends) => {
    if (ends) brushes.set(axis.dataset.axis, ends); else brushes.delete(axis.dataset.axis);
    resting = null;
    const url = new URL(location);
    const text = [...brushes].map(([name, pair]) => `${name}:${pair.map((end) => Number(end.toFixed(3))).join("..")}`).join(",");
    if (text) url.searchParams.set("brush", text); else url.searchParams.delete("brush");
    try { history.replaceState(history.state, "", url); } catch { /* A report file has no address to change. */ }
    prepare();
  };
  const heightUnder = (axis, event) => {
    const box = axis.querySelector("rect.grip").getBoundingClientRect();
    return Math.max(0, Math.min(1, 1 - (event.clientY - box.top) / box.height));
  };
  document.addEventListener("pointerdown", (event) => {
    const axis = event.target.closest("svg.parallel .axis");
    if (!axis || event.button) return;
    event.preventDefault();
    dragged = { axis, from: heightUnder(axis, event) };
  });
  document.addEventListener("pointermove", (event) => {
    if (!dragged) return;
    const to = heightUnder(dragged.axis, event);
    if (Math.abs(to - dragged.from) > 0.02) setBrush(dragged.axis, [Math.min(to, dragged.from), Math.max(to, dragged.from)]);
  });
  document.addEventListener("pointerup", (event) => {
    if (dragged && Math.abs(heightUnder(dragged.axis, event) - dragged.from) <= 0.02) setBrush(dragged.axis, null);
    dragged = null;
  });
  // By keyboard, a brush moves from one value of the axis to the next.
  const stepBrush = (axis, key) => {
    const lines = [...chartWithAxes().querySelectorAll("[data-places]")];
    const places = [...new Set(lines.map((line) => numbers(line.dataset.places)[axis.dataset.axis]))].sort((a, b) => a - b);
    const ends = brushes.get(axis.dataset.axis), middle = ends && (ends[0] + ends[1]) / 2;
    const at = ends ? nearest(places, middle) + (key === "ArrowUp" ? 1 : -1) : key === "ArrowUp" ? 0 : places.length - 1;
    const place = places[Math.max(0, Math.min(places.length - 1, at))];
    setBrush(axis, [place - 0.001, place + 0.001]);
  };
  document.addEventListener("keydown", (event) => {
    const axis = event.target.closest?.("svg.parallel .axis");
    if (event.key === "Escape" && brushes.size) {
      brushes.clear();
      setBrush(chartWithAxes().querySelector(".axis"), null);
    } else if (axis && (event.key === "ArrowUp" || event.key === "ArrowDown")) {
      event.preventDefault();
      stepBrush(axis, event.key);
    }
  });

  document.addEventListener("keydown", (event) => {
    if (event.target.closest?.("svg.parallel .axis")) return;
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
    brush();
    document.dispatchEvent(new Event("outlay:shown"));
    readAgain();
  };
  window.outlay = { allLines, isShown, more, numbers, plots, prepare };

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

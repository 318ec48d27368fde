// Charts that are zoomed: uPlot draws the values of the SVG below it, which stays for screen readers,
// for print and for pages without a script. The zoom is in the address.
(() => {
  "use strict";
  const { allLines, isShown, more, numbers, plots } = window.outlay;
  const view = document.getElementById("view");
  const drawn = new Map();
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const DASHES = [[], [6, 3], [2, 3]], COLOURS = 12;
  const BESIDE = 12;  // Pixels by which labels may be wider than the chart, as in the SVG.
  const SCALES = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e5, "k", 1e3]];
  const tick = (value) => {
    if (value === null || value === undefined) return "";
    if (value !== 0 && Math.abs(value) < 1e-3) return value.toExponential().replace(/^(-?\d\.\d{3})\d*/, "$1");
    const [least, letter, per = least] = SCALES.find(([from]) => Math.abs(value) >= from) || [1, ""];
    return `${Number((value / (letter ? per : 1)).toPrecision(6))}${letter}`;
  };
  const day = (value) => new Date(value * 864e5).toLocaleDateString("en-US", { month: "short", day: "2-digit", timeZone: "UTC" });

  // The part of an axis that the address states, in units of the chart's axis; null for all of it.
  const wantedBy = (chart) => {
    const text = new URLSearchParams(location.search).get(chart.dataset.zoom) || "";
    const [low, high] = text.split("..").map(Number), per = Number(chart.dataset.per) || 1;
    return text && low < high ? [low / per, high / per] : null;
  };
  const isSame = (a, b) => (!a || !b ? a === b : a.every((end, n) => Math.abs(end - b[n]) <= 1e-6 * Math.abs(b[1] - b[0])));
  const seenBy = (chart) => (chart.dataset.seen ? numbers(chart.dataset.seen) : null);

  // A line that goes back, as after a restart, is several to uPlot, whose places must ascend.
  const ascending = (chart, line) => {
    const ends = numbers(chart.dataset.x), step = (ends[1] - ends[0]) * 1e-9;
    const parts = [];
    let last = Infinity;
    for (const [x, y] of line.points) {
      if (x < last - step) parts.push([[], []]);
      last = x <= last && parts.at(-1)[0].length ? last + step : x;
      parts.at(-1)[0].push(last);
      parts.at(-1)[1].push(y);
    }
    return parts;
  };
  const dataOf = (chart) => {
    const isLog = "log" in chart.dataset, tables = [], series = [{}];
    for (const line of allLines(chart)) {
      for (const part of ascending(chart, line)) {
        if (isLog) part[1] = part[1].map((y) => (y > 0 ? y : null));
        tables.push(part);
        series.push({
          stroke: style(`--c${line.look % COLOURS}`), width: 2, dash: DASHES[Math.floor(line.look / COLOURS) % 3],
          alpha: line.faint ? 0.35 : 1, points: { show: false }, spanGaps: true, look: line.look,
          show: isShown(chart, line),
        });
      }
    }
    if (!tables.length) tables.push([numbers(chart.dataset.x), [null, null]]);
    if (series.length === 1) series.push({ points: { show: false } });
    return { data: tables.length > 1 ? uPlot.join(tables) : tables[0], series };
  };

  // Distances of ticks where all places are whole numbers, as steps are: there is no step 2.5.
  const WHOLE = Array.from({ length: 40 }, (_, n) => [1, 2, 5][n % 3] * 10 ** Math.floor(n / 3));

  const draw = (box, chart) => {
    const frame = getComputedStyle(chart), { data, series } = dataOf(chart);
    const pad = (side) => parseFloat(frame[`padding${side}`]);
    const axis = { stroke: style("--soft"), font: "12.5px system-ui, sans-serif", ticks: { show: false } };
    const shape = { chart, log: "log" in chart.dataset, looks: series.map((one) => `${one.look}${one.alpha}`).join() };
    const grid = { stroke: style("--line"), width: 1 };
    const whole = data[0].every(Number.isInteger) ? { incrs: WHOLE } : {};
    const plot = new uPlot({
      width: chart.clientWidth + 2 * BESIDE, height: chart.clientHeight,
      padding: [pad("Top"), pad("Right") + BESIDE, 0, 0],
      legend: { show: false }, series,
      scales: { x: { time: false, range: () => rangeOf(chart) }, y: { distr: shape.log ? 3 : 1 } },
      axes: [
        { ...axis, ...whole, size: pad("Bottom"), gap: 4, space: 60, grid: { show: false }, values: (_, splits) => splits.map(chart.dataset.days ? day : tick) },
        { ...axis, size: pad("Left") + BESIDE, gap: 7, grid, values: (_, splits) => splits.map(tick) },
      ],
      cursor: {
        y: false, drag: { x: true, y: false, setScale: false, dist: 5 }, points: { size: 6 },
        bind: { dblclick: () => () => zoom(chart, null) },
      },
      hooks: { setSelect: [(self) => {
        if (self.select.width < 5) return;
        const ends = [self.select.left, self.select.left + self.select.width].map((at) => self.posToVal(at, "x"));
        self.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        zoom(chart, ends);
      }] },
    }, data, box);
    drawn.set(box, { plot, shape });
    plots.set(chart, {
      range: () => rangeOf(chart),
      point: (x) => {
        if (plot.root.matches(":hover")) return;
        plot.setCursor({ left: x === null ? -10 : plot.valToPos(x, "x"), top: x === null ? -10 : 0 });
      },
    });
  };
  const rangeOf = (chart) => wantedBy(chart) || numbers(chart.dataset.x);

  const forget = (box) => {
    const { plot, shape } = drawn.get(box);
    plot.destroy();
    plots.delete(shape.chart);
    drawn.delete(box);
  };
  const refresh = (box) => {
    const chart = box.parentElement.querySelector("svg.plot"), known = drawn.get(box);
    if (!known) { draw(box, chart); return; }
    const { data, series } = dataOf(chart), { plot, shape } = known;
    const looks = series.map((one) => `${one.look}${one.alpha}`).join();
    if (shape.chart !== chart || shape.log !== "log" in chart.dataset || shape.looks !== looks) {
      forget(box);
      draw(box, chart);
      return;
    }
    plot.batch(() => {
      series.forEach((one, n) => { if (n && plot.series[n].show !== one.show) plot.setSeries(n, { show: one.show }); });
      plot.setData(data);
    });
  };
  const boxes = () => [...document.querySelectorAll(".zooming")];
  const sizes = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const known = drawn.get(target), chart = known && known.shape.chart;
      if (chart && chart.clientWidth) known.plot.setSize({ width: chart.clientWidth + 2 * BESIDE, height: chart.clientHeight });
    }
  });

  // What the server has drawn is taken from the SVG; the rest was asked for.
  const update = () => {
    for (const box of [...drawn.keys()]) if (!box.isConnected) forget(box);
    for (const box of boxes()) {
      const chart = box.parentElement.querySelector("svg.plot");
      if (isSame(seenBy(chart), wantedBy(chart))) more.delete(chart);
      if (!drawn.has(box)) sizes.observe(box);
      refresh(box);
    }
  };

  // Ends to a thousandth of what is between them, for an address that one can read.
  const rounded = ([low, high]) => {
    const unit = 10 ** Math.floor(Math.log10((high - low) / 1000));
    return [low, high].map((end) => Number((Math.round(end / unit) * unit).toPrecision(12)));
  };

  // Zoom all charts with the axis of one; then get the points that its width can show.
  const zoom = (chart, ends) => {
    const url = new URL(location), per = Number(chart.dataset.per) || 1, name = chart.dataset.zoom;
    const text = ends && rounded(ends.map((end) => end * per)).join("..");
    if (text) url.searchParams.set(name, text); else url.searchParams.delete(name);
    window.outlay.note(url);
    const mine = boxes().filter((box) => box.parentElement.querySelector("svg.plot").dataset.zoom === name);
    mine.forEach(refresh);
    if (chart.dataset.metric || chart.dataset.steps) ask(mine, name);
  };
  const asked = new Map();
  const ask = async (mine, zoomed) => {
    const charts = mine.map((box) => box.parentElement.querySelector("svg.plot"));
    const [path, query] = view.dataset.points.split("?"), words = new URLSearchParams(query);
    for (const name of ["axis", "zoom", "zoom-steps", "log", "smoothing"]) {
      const value = new URLSearchParams(location.search).get(name);
      if (value) words.set(name, value);
    }
    for (const metric of new Set(charts.map((chart) => chart.dataset.metric).filter(Boolean))) words.append("metric", metric);
    if (charts.some((chart) => chart.dataset.steps)) words.set("steps", "1");
    words.set("columns", Math.max(50, ...charts.map((chart) => chart.clientWidth)));
    const number = (asked.get(zoomed) || 0) + 1;
    asked.set(zoomed, number);
    const answer = await fetch(`${path}.json?${words}`).catch(() => null);
    if (!answer?.ok) return;
    const found = await answer.json();
    if (number !== asked.get(zoomed)) return;
    for (const box of mine) {
      const chart = box.parentElement.querySelector("svg.plot");
      const one = found.find((each) => (chart.dataset.steps ? each.is_steps
        : each.metric === chart.dataset.metric && each.axis === chart.dataset.xTitle));
      if (one && box.isConnected) { more.set(chart, one.lines); refresh(box); }
    }
  };

  document.addEventListener("outlay:shown", update);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const box of [...drawn.keys()]) forget(box);
    update();
  });
  update();
})();

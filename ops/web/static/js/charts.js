// Draws every `figure.chart` with uPlot, and redraws it when the run makes progress or the theme changes; hides charts without
// points. Consumes `data-sources`: addresses of series (`/api/v1/runs/{run}/series`) and their labels; and the controls
// `data-smooth` and `data-log`, whose values it keeps in the page's address. Produces a canvas, and text with the values under the
// cursor, which the arrow keys move.

const HEIGHT = 190;
const REFRESH_MS = 1000;

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const number = (value) => {
  if (value === null || value === undefined) return "none";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
};

const LINES = 4; // of each series: lowest, mean, highest and smoothed values
const MEAN = 2; // the column of the first series' mean, after the steps and the lowest values

// How charts are drawn: the weight of the past in an exponential moving average, and whether the vertical axis is logarithmic.
const display = { smooth: 0, log: false };

// The average is divided by the sum of its weights, so that it does not begin at 0.
const smoothed = (values, weight) => {
  let average = 0;
  let total = 0;
  return values.map((value) => {
    if (value === null) return null;
    average = weight * average + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return average / total;
  });
};

// A logarithmic axis has no place for 0 and negative values.
const shown = (values) => (display.log ? values.map((value) => (value > 0 ? value : null)) : values);

// A logarithmic axis has ticks without labels.
const onAxis = (value) => (value === null ? "" : number(value));

// uPlot expects one column of steps, followed by the columns of each series.
const columns = (series) =>
  uPlot.join(
    series.map(({ steps, low, mean, high }) => [steps, ...[low, mean, high, smoothed(mean, display.smooth)].map(shown)]),
  );

// A constant line gets some room above and below.
const around = (_, low, high) => {
  if (low === null || low !== high) return uPlot.rangeNum(low ?? 0, high ?? 1, 0.1, true);
  const room = Math.abs(low) / 10 || 1;
  return [low - room, high + room];
};

// A single value is drawn as a point, since it has no visible line.
const alone = (plot, index) => plot.data[index].filter((value) => value != null).length < 2;

const options = (chart, width) => {
  const { series } = chart;
  const ink = style("--faint");
  const grid = { stroke: style("--line"), width: 1 };
  const axis = { stroke: ink, grid, ticks: grid, font: "11px system-ui, sans-serif" };
  const lines = [{ label: "iteration" }];
  const bands = [];
  series.forEach((one) => {
    const colour = style(`--series-${one.colour}`);
    const faint = { stroke: "transparent", points: { show: false }, spanGaps: true };
    const first = lines.length;
    const raw = display.smooth ? { stroke: `${colour}59`, width: 1 } : { stroke: colour, width: 1.75 };
    const line = { label: one.name, spanGaps: true, points: { show: alone } };
    const average = display.smooth ? { ...line, stroke: colour, width: 2 } : faint;
    lines.push(faint, { ...line, ...raw }, faint, average);
    bands.push({ series: [first + 2, first], fill: `${colour}33` });
  });
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { y: false, drag: { x: true, y: false } },
    scales: { x: { time: false }, y: display.log ? { distr: 3 } : { range: around } },
    axes: [
      { ...axis, size: 32, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5] },
      { ...axis, size: 58, values: (_, ticks) => ticks.map(onAxis) },
    ],
    series: lines,
    bands,
    hooks: { setCursor: [(plot) => tell(chart.figure, plot, chart.series)] },
  };
};

// Writes the values at one position of the series as text, each with its colour.
const write = (figure, when, series, values) => {
  const place = figure.querySelector(".told");
  place.replaceChildren(`${when}:`);
  series.forEach((one, at) => {
    const item = document.createElement("span");
    const swatch = document.createElement("span");
    const value = document.createElement("b");
    swatch.className = `swatch c${one.colour}`;
    value.textContent = number(values[at]);
    item.append(swatch, `${one.name} `, value);
    place.append(item);
  });
};

const tell = (figure, plot, series) => {
  const at = plot.cursor.idx;
  if (at === null || at === undefined) writeNewest(figure, series);
  else write(figure, `iteration ${plot.data[0][at]}`, series, series.map((_, one) => plot.data[MEAN + LINES * one][at]));
};

const writeNewest = (figure, series) => {
  const ends = new Set(series.map((one) => one.steps.at(-1)));
  write(figure, ends.size === 1 ? `at ${[...ends][0]}` : "newest", series, series.map((one) => one.mean.at(-1)));
};

const read = async ({ url, names }) => {
  const answer = await fetch(url, { headers: { Accept: "application/json" } });
  if (!answer.ok) throw new Error(`the server returned status ${answer.status}`);
  const { series } = await answer.json();
  return series.map((one) => ({ ...one, name: names[one.key] }));
};

class Chart {
  constructor(figure) {
    this.figure = figure;
    this.box = figure.querySelector(".plot");
    this.sources = JSON.parse(figure.dataset.sources);
    this.series = [];
    this.plot = null;
    this.box.addEventListener("keydown", (event) => this.walk(event));
    this.box.addEventListener("blur", () => this.plot?.setCursor({ left: -10, top: -10 }));
    new ResizeObserver(() => this.plot?.setSize({ width: this.box.clientWidth, height: HEIGHT })).observe(this.box);
  }

  async load() {
    try {
      const found = (await Promise.all(this.sources.map(read))).flat();
      // A series keeps its colour when another one gets its first points, since the colour depends on the position.
      const coloured = found.map((one, at) => ({ ...one, colour: (at % 8) + 1 }));
      this.series = coloured.filter((one) => one.steps.length);
    } catch (error) {
      this.figure.querySelector(".told").textContent = `could not load: ${error.message}`;
      return;
    } finally {
      this.figure.querySelector(".loading")?.remove();
    }
    this.renew();
  }

  // New points of the same series keep the zoom and the cursor position.
  renew() {
    const drawn = this.plot?.data[0];
    if (!drawn || this.plot.series.length !== 1 + LINES * this.series.length) {
      this.draw();
      return;
    }
    const { min, max } = this.plot.scales.x;
    const zoomed = min > drawn[0] || max < drawn.at(-1);
    const step = drawn[this.plot.cursor.idx];
    this.plot.setData(columns(this.series), !zoomed);
    if (step === undefined) writeNewest(this.figure, this.series);
    else this.plot.setCursor({ left: this.plot.valToPos(step, "x"), top: 10 });
  }

  draw() {
    this.plot?.destroy();
    this.plot = null;
    this.figure.hidden = !this.series.length;
    if (this.figure.hidden) return;
    this.plot = new uPlot(options(this, this.box.clientWidth), columns(this.series), this.box);
    writeNewest(this.figure, this.series);
    const words = this.figure.querySelector(".told").textContent;
    this.box.setAttribute("aria-label", `${this.figure.dataset.title}, ${words}; use the arrow keys to read other iterations`);
  }

  walk(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined || !this.plot) return;
    event.preventDefault();
    const steps = this.plot.data[0];
    const now = this.plot.cursor.idx ?? (step > 0 ? -1 : steps.length);
    const at = Math.min(steps.length - 1, Math.max(0, now + step));
    this.plot.setCursor({ left: this.plot.valToPos(steps[at], "x"), top: 10 });
  }
}

const charts = [...document.querySelectorAll("figure.chart")].map((figure) => new Chart(figure));

// -- controls of the display --------------------------------------------------------------------------------------------

const controls = document.querySelector("[data-display]");

const readControls = () => {
  if (!controls) return;
  display.smooth = Number(controls.querySelector("[data-smooth]").value);
  display.log = controls.querySelector("[data-log]").checked;
  controls.querySelector("[data-smooth-value]").textContent = display.smooth.toFixed(2);
};

const redraw = () => charts.forEach((chart) => chart.plot && chart.draw());

controls?.addEventListener("input", (event) => {
  if (!event.target.matches("[data-smooth], [data-log]")) return;
  readControls();
  const address = new URL(location.href);
  for (const [name, value] of [["smooth", display.smooth], ["log", display.log]]) {
    if (value) address.searchParams.set(name, value);
    else address.searchParams.delete(name);
  }
  history.replaceState(history.state, "", address);
  redraw();
});
readControls();

let waiting = null;
const refresh = () => {
  waiting ??= setTimeout(async () => {
    try {
      await Promise.all(charts.map((chart) => chart.load()));
    } finally {
      waiting = null;
    }
  }, REFRESH_MS);
};

document.addEventListener("yatt:progress", refresh);
document.addEventListener("yatt:theme", redraw);
await Promise.all(charts.map((chart) => chart.load()));
document.documentElement.dataset.charts = "drawn";

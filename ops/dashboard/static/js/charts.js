// Draws every `figure.chart` with uPlot, and draws it again when the run moves or the colours change.
// Consumes `data-url` (the metric series as JSON), `data-keys` and `data-names`; produces a canvas, and in words what is under
// the cursor, which the arrow keys move.

const HEIGHT = 190;
const REFRESH_MS = 1000;

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const number = (value) => {
  if (value === null || value === undefined) return "none";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
};

// uPlot wants one column of steps, and beside it a column for each series' lowest, mean and highest value.
const columns = (series) => {
  const tables = series.map(({ points }) => [
    points.map((point) => point.step),
    points.map((point) => point.min),
    points.map((point) => point.mean),
    points.map((point) => point.max),
  ]);
  return uPlot.join(tables);
};

const options = (figure, series, width) => {
  const ink = style("--faint");
  const grid = { stroke: style("--line"), width: 1 };
  const axis = { stroke: ink, grid, ticks: grid, font: "11px system-ui, sans-serif" };
  const lines = [{ label: "iteration" }];
  const bands = [];
  series.forEach((one, at) => {
    const colour = style(`--series-${(at % 8) + 1}`);
    const faint = { stroke: "transparent", points: { show: false }, spanGaps: true };
    const first = lines.length;
    const few = one.points.length < 2;
    lines.push(faint, { label: one.name, stroke: colour, width: 1.75, spanGaps: true, points: { show: few } }, faint);
    bands.push({ series: [first + 2, first], fill: `${colour}33` });
  });
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { y: false, drag: { x: true, y: false } },
    scales: { x: { time: false } },
    axes: [
      { ...axis, size: 32, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5] },
      { ...axis, size: 58, values: (_, ticks) => ticks.map(number) },
    ],
    series: lines,
    bands,
    hooks: { setCursor: [(plot) => tell(figure, plot, series)] },
  };
};

const tell = (figure, plot, series) => {
  const at = plot.cursor.idx;
  const place = figure.querySelector(".told");
  if (at === null || at === undefined) {
    place.textContent = newest(series);
    return;
  }
  const values = series.map((one, index) => `${one.name} ${number(plot.data[2 + 3 * index][at])}`);
  place.textContent = `iteration ${plot.data[0][at]}: ${values.join(", ")}`;
};

const newest = (series) => {
  const ends = series.map((one) => `${one.name} ${number(one.points.at(-1).mean)}`);
  return `newest, at iteration ${Math.max(...series.map((one) => one.points.at(-1).step))}: ${ends.join(", ")}`;
};

class Chart {
  constructor(figure) {
    this.figure = figure;
    this.box = figure.querySelector(".plot");
    this.names = JSON.parse(figure.dataset.names);
    this.series = [];
    this.plot = null;
    this.box.addEventListener("keydown", (event) => this.walk(event));
    this.box.addEventListener("blur", () => this.plot?.setCursor({ left: -10, top: -10 }));
    new ResizeObserver(() => this.plot?.setSize({ width: this.box.clientWidth, height: HEIGHT })).observe(this.box);
  }

  async load() {
    const answer = await fetch(this.figure.dataset.url, { headers: { Accept: "application/json" } });
    if (!answer.ok) {
      this.figure.querySelector(".told").textContent = `no figures: the server answered ${answer.status}`;
      return;
    }
    const { series } = await answer.json();
    this.series = series
      .filter((one) => one.points.length)
      .map((one) => ({ ...one, name: this.names[one.key] ?? one.key }));
    this.draw();
  }

  draw() {
    this.plot?.destroy();
    this.plot = null;
    this.figure.querySelector(".empty")?.remove();
    if (!this.series.length) return;
    this.plot = new uPlot(options(this.figure, this.series, this.box.clientWidth), columns(this.series), this.box);
    this.figure.querySelector(".told").textContent = newest(this.series);
    this.box.setAttribute("aria-label", `${this.figure.dataset.title}, ${newest(this.series)}; arrow keys tell other iterations`);
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

let waiting = null;
const refresh = () => {
  waiting ??= setTimeout(async () => {
    await Promise.all(charts.map((chart) => chart.load()));
    waiting = null;
  }, REFRESH_MS);
};

document.addEventListener("yatt:progress", refresh);
document.addEventListener("yatt:theme", () => charts.forEach((chart) => chart.draw()));
await Promise.all(charts.map((chart) => chart.load()));
document.documentElement.dataset.charts = "drawn";

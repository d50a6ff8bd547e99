"use strict";
// "/" searches; the plots of a topic have what the gateway remembers, and what this tab has seen.

document.addEventListener("keydown", (event) => {
  const isTyping = ["INPUT", "SELECT", "TEXTAREA"].includes(document.activeElement.tagName);
  const search = document.querySelector("[data-search]");
  if (event.key === "/" && !isTyping && search) {
    event.preventDefault();
    search.focus();
  }
});

// A search stays when the table is asked for again.
document.addEventListener("htmx:configRequest", (event) => {
  const search = document.querySelector("[data-search]");
  if (search && event.detail.path.includes("/rows")) event.detail.parameters.q = search.value;
});

const MOST_POINTS = 300;
const EVERY_MS = 2000;

const plotted = document.querySelector("[data-figures]");
if (plotted) {
  const key = "plots of " + plotted.dataset.topic;
  let points = [[], [], [], []];
  try {
    points = JSON.parse(sessionStorage.getItem(key)) || points;
  } catch (_) { /* a tab without storage begins anew */ }
  const ink = getComputedStyle(document.body).color;
  const axis = { stroke: ink, grid: { stroke: "#8884", width: 1 }, ticks: { stroke: "#8884", width: 1 } };
  const draw = (name, series, data) =>
    new uPlot(
      { width: Math.min(460, plotted.clientWidth), height: 180, axes: [axis, { ...axis, size: 60 }], scales: { y: { range: (_, least, most) => [0, most > 0 ? most * 1.1 : 1] } }, series: [{}, ...series], legend: { show: true } },
      data,
      plotted.querySelector(`[data-plot=${name}]`)
    );
  const rates = draw("rates", [{ label: "in", stroke: "#2f81f7", width: 2 }, { label: "out", stroke: "#d9822b", width: 2, dash: [6, 3] }],
    [points[0], points[1], points[2]]);
  const backlog = draw("backlog", [{ label: "backlog", stroke: "#a371f7", width: 2 }], [points[0], points[3]]);
  const look = async () => {
    try {
      const answer = await fetch(plotted.dataset.figures);
      if (answer.ok) {
        const seen = await answer.json();
        [Date.now() / 1000, seen.in, seen.out, seen.backlog].forEach((value, index) => points[index].push(value));
        points = points.map((column) => column.slice(-MOST_POINTS));
        rates.setData([points[0], points[1], points[2]]);
        backlog.setData([points[0], points[3]]);
        try { sessionStorage.setItem(key, JSON.stringify(points)); } catch (_) { /* as above */ }
      }
    } catch (_) { /* the gateway is away: the next look may find it */ }
    setTimeout(look, document.hidden ? 5 * EVERY_MS : EVERY_MS);
  };
  const begin = async () => {
    try {
      const answer = await fetch(plotted.dataset.history);
      const known = await answer.json();
      const earlier = known.at.filter((at) => !points[0].length || at < points[0][0]).length;
      points = [known.at, known.in, known.out, known.backlog].map((column, index) => [...column.slice(0, earlier), ...points[index]]);
    } catch (_) { /* the plots begin with this tab */ }
    look();
  };
  begin();
}

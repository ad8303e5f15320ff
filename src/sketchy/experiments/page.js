"use strict";
const plots = [...document.querySelectorAll(".plot")].map((place) => ({
  place,
  figure: JSON.parse(place.nextElementSibling.textContent),
}));

function layout(figure, width) {
  const style = getComputedStyle(document.documentElement);
  const [text, line] = ["--text", "--line"].map((name) => style.getPropertyValue(name).trim());
  const axis = { gridcolor: line, linecolor: line, zerolinecolor: line };
  const names = figure.data.filter((trace) => trace.showlegend !== false).map((trace) => trace.name || "");
  const legendWidth = Math.max(0, ...names.map((name) => 7 * name.length)) + 50;
  const legendLines = names.length > 1 ? Math.ceil(names.length / Math.max(1, Math.floor(width / legendWidth))) : 0;
  const under = 60 + 20 * legendLines;
  return {
    height: figure.bars ? 90 + 34 * figure.bars : 320 + under,
    margin: { l: 50, r: 12, t: 12, b: under },
    paper_bgcolor: "transparent",
    plot_bgcolor: "transparent",
    font: { color: text, size: 12, family: "system-ui, sans-serif" },
    showlegend: legendLines > 0,
    legend: {
      orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0, font: { size: 11 },
      maxheight: 10 + 20 * legendLines, // else a long one scrolls in half of the height
    },
    hovermode: "closest",
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", // a finger scrolls the page
    xaxis: { ...axis, ...figure.x },
    yaxis: { ...axis, ...figure.y },
  };
}

function draw() {
  for (const { place, figure } of plots) {
    Plotly.react(place, figure.data, layout(figure, place.clientWidth), { displayModeBar: false, responsive: true });
  }
}

draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
let waiting;
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === width) return; // a phone's address bar changes the height alone
  width = innerWidth;
  clearTimeout(waiting);
  waiting = setTimeout(draw, 150);
});

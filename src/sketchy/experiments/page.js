"use strict";
const plots = [...document.querySelectorAll(".plot")].map((place) => ({
  place,
  figure: JSON.parse(place.parentElement.querySelector("script").textContent),
}));

function layout(figure) {
  const style = getComputedStyle(document.documentElement);
  const [text, line] = ["--text", "--line"].map((name) => style.getPropertyValue(name).trim());
  const axis = { gridcolor: line, linecolor: line, zerolinecolor: line };
  return {
    height: figure.bars ? 90 + 34 * figure.bars : 380,
    margin: { l: 50, r: 12, t: 12, b: 50 },
    paper_bgcolor: "transparent",
    plot_bgcolor: "transparent",
    font: { color: text, size: 12, family: "system-ui, sans-serif" },
    showlegend: false, // ours wraps at any width
    hovermode: "closest",
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", // a finger scrolls the page
    xaxis: { ...axis, ...figure.x },
    yaxis: { ...axis, ...figure.y },
  };
}

async function draw() {
  for (const { place, figure } of plots) {
    await Plotly.react(place, figure.data, layout(figure), { displayModeBar: false, responsive: true });
    await label(place, figure);
  }
}

// Ticks of logarithmic axes: whole numbers in plain sight, as many as fit. Plotly writes a small 2 for 0.2.
const STEPS = [[1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 5, 7], [1, 2, 5], [1, 3], [1]];

function ticks([low, high], most) {
  for (let every = 1; ; every++) {
    for (const steps of every === 1 ? STEPS : [[1]]) {
      const found = [];
      for (let power = Math.floor(low); power <= high; power++) {
        if (power % every === 0) found.push(...steps.map((step) => step * 10 ** power));
      }
      const seen = found.filter((value) => low <= Math.log10(value) && Math.log10(value) <= high);
      if (seen.length <= most) return seen.length > 2 ? seen : null; // plotly has more for a short axis
    }
  }
}

function written(value) {
  if (1e-3 <= value && value < 1e6) return value.toLocaleString("en", { maximumSignificantDigits: 2 });
  const [digits, power] = value.toExponential(0).split("e");
  return `${digits === "1" ? "" : `${digits}×`}10<sup>${Number(power)}</sup>`;
}

function label(place, figure) {
  const change = {};
  for (const [name, room] of [["xaxis", place.clientWidth / 70], ["yaxis", place.clientHeight / 35]]) {
    const axis = place.layout[name];
    if (axis.type !== "log" || figure[name[0]].tickvals) continue;
    const found = ticks(axis.range, Math.min(room, 10));
    if (String(found) === String(axis.tickvals || null)) continue;
    Object.assign(change, found === null
      ? { [`${name}.tickmode`]: "auto", [`${name}.tickvals`]: null }
      : { [`${name}.tickmode`]: "array", [`${name}.tickvals`]: found, [`${name}.ticktext`]: found.map(written) });
  }
  if (Object.keys(change).length) return Plotly.relayout(place, change);
}

const DASHES = { dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "12 4", longdashdot: "12 3 2 3" };
const SYMBOLS = {
  circle: "M16 2a4 4 0 1 1-.01 0z",
  diamond: "M16 1l5 5-5 5-5-5z",
  square: "M12 2h8v8h-8z",
  "triangle-up": "M16 1l5 9h-10z",
  x: "M12 4l2-2 2 2 2-2 2 2-2 2 2 2-2 2-2-2-2 2-2-2 2-2z",
  star: "M16 0l1.5 4 4.5.2-3.5 2.8 1.2 4.3-3.7-2.4-3.7 2.4 1.2-4.3-3.5-2.8 4.5-.2z",
};

function drawn(name, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

// Names are escaped, as plotly wants them.
function plain(name) {
  const area = document.createElement("textarea");
  area.innerHTML = name;
  return area.value;
}

function sample(trace) {
  const picture = drawn("svg", { width: 32, height: 12, "aria-hidden": true });
  if (trace.fill) {
    picture.append(drawn("rect", { width: 32, height: 12, fill: trace.fillcolor }));
  } else {
    const { color, dash } = trace.line;
    picture.append(drawn("path", { d: "M0 6h32", stroke: color, "stroke-width": 2, "stroke-dasharray": DASHES[dash] || "" }));
    picture.append(drawn("path", { d: SYMBOLS[trace.marker.symbol], fill: color }));
  }
  return picture;
}

// A button for each trace switches it on and off.
for (const { place, figure } of plots) {
  const legend = place.parentElement.querySelector(".legend");
  if (figure.data.length < 2) continue;
  figure.data.forEach((trace, number) => {
    const button = document.createElement("button");
    const text = document.createElement("span");
    text.textContent = plain(trace.name);
    button.append(sample(trace), text);
    button.setAttribute("aria-pressed", true);
    button.addEventListener("click", () => {
      trace.visible = trace.visible === false;
      button.setAttribute("aria-pressed", trace.visible);
      Plotly.restyle(place, { visible: trace.visible }, [number]);
    });
    const item = document.createElement("li");
    item.append(button);
    legend.append(item);
  });
}

draw().then(() => {
  for (const { place, figure } of plots) place.on("plotly_relayout", () => label(place, figure)); // zoomed, resized
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

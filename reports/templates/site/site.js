"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const root = document.documentElement;
  const pointer = matchMedia("(hover: hover)").matches;
  const config = { displayModeBar: false, responsive: true, displaylogo: false };

  // Colours in the figures are names of the page's palette, so that both themes share one figure.
  const coloured = (value, palette) => {
    if (typeof value === "string") {
      const name = /^var\((--[\w-]+)\)$/.exec(value);
      return name ? palette.getPropertyValue(name[1]).trim() : value;
    }
    if (Array.isArray(value)) return value.map((v) => coloured(v, palette));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, coloured(v, palette)]));
    }
    return value;
  };

  const draw = (plot) => {
    const { data, layout } = coloured(figures[plot.id], getComputedStyle(root));
    // Where there is nothing to hover with, a finger on a figure means to scroll the page.
    if (!pointer) layout.dragmode = false;
    return Plotly.react(plot, data, layout, config);
  };

  root.classList.add("js");
  const plots = [...document.querySelectorAll(".plot")];
  plots.forEach((plot) => {
    draw(plot);
    plot.on("plotly_click", ({ points }) => { location.href = figures[plot.id].pages[points[0].x]; });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots.forEach(draw));
})();

(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const pointer = matchMedia("(hover: hover)").matches;
  const config = {
    displaylogo: false,
    responsive: true,
    displayModeBar: pointer ? "hover" : false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "zoomIn2d", "zoomOut2d"],
  };
  const plots = [...document.querySelectorAll(".plot")];

  // Colours in the figures are names of the page's palette, so that both themes and print share one figure.
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

  const draw = (plot, source) => {
    const { data, layout } = coloured(figures[plot.id], getComputedStyle(source));
    // Where there is nothing to hover with, a finger on a figure means to scroll the page.
    if (!pointer) layout.dragmode = false;
    return Plotly.react(plot, data, layout, { ...config, ...figures[plot.id].config });
  };
  const shown = (plot) => plot.checkVisibility();
  const drawAll = (source) => plots.filter(shown).forEach((plot) => draw(plot, source));

  const root = document.documentElement;
  root.classList.add("js");
  timelinePanels.start();
  drawAll(root);
  dark.addEventListener("change", () => {
    drawAll(root);
    timelinePanels.forEach((panel) => panel.canvas.draw());
  });
  plots.filter((plot) => plot.id.endsWith("-steps") && plot.on).forEach((plot) => {
    const panel = timelinePanels.get(plot.id.slice("plot-".length, -"-steps".length));
    if (!panel) return;
    plot.on("plotly_click", ({ points }) => {
      panel.show(points[0].x);
      panel.section.scrollIntoView();
    });
  });

  const arrivals = document.getElementById("plot-ranks-arrivals");
  if (arrivals?.on) {
    arrivals.on("plotly_click", ({ points }) => timelinePanels.get("ranks")?.goToCollective(points[0].x));
  }

  // A folded section has no width to draw in until it is opened.
  document.querySelectorAll("details").forEach((details) => {
    details.addEventListener("toggle", () => {
      if (details.open) timelinePanels.start();
      if (details.open) plots.filter((plot) => details.contains(plot) && shown(plot)).forEach((p) => draw(p, root));
    });
  });

  const openTarget = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const around = target && target.closest("details");
    if (around) around.open = true;
  };
  addEventListener("hashchange", openTarget);
  openTarget();

  // Paper is white and has nothing to unfold.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details.folded:not([open])")];
    folded.forEach((details) => { details.open = true; });
    drawAll(document.getElementById("light"));
    timelinePanels.start();
    timelinePanels.forEach((panel) => panel.print(document.getElementById("light")));
  });
  addEventListener("afterprint", () => {
    folded.forEach((details) => { details.open = false; });
    drawAll(root);
    timelinePanels.forEach((panel) => panel.print(null));
  });
})();

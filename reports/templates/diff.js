// Both median steps, base above head, on one time axis: each drawn as the report draws one step.
class PairStep {
  constructor(pair) {
    this.sides = ["base", "head"].map((name) => {
      const { data, sites, wall } = pair[name];
      const side = new timelineData.Step(data, sites);
      return Object.assign(side, { name, title: `${name}: step ${data.step}, ${timelineData.us(wall * 1000)} µs` });
    });
    this.first = Math.min(...this.sides.map((side) => side.first));
    this.last = Math.max(...this.sides.map((side) => side.last));
  }

  layout(withOps) {
    this.groups = [];
    let y = 20; // the axis
    for (const side of this.sides) {
      side.top = y;
      const down = y + 18 - 20; // room for the title, without the axis that the side leaves room for
      side.bottom = side.layout(withOps) + down;
      for (const group of side.groups) {
        group.top += down;
        group.side = side;
        this.groups.push(group);
      }
      y = side.bottom + 8;
    }
    return y;
  }

  describe(kind, i, { side }) {
    const [title, facts] = side.describe(kind, i);
    return [title, [side.title, ...facts]];
  }
}

class PairCanvas extends TimelineCanvas {
  // Let `draw` see one side as if it were the only one, in its own band of the canvas.
  within(side, draw) {
    const { step, context } = this;
    context.save();
    context.beginPath();
    context.rect(0, side.top, this.width, side.bottom - side.top);
    context.clip();
    this.step = side;
    draw();
    this.step = step;
    context.restore();
  }

  drawOutside() {
    for (const side of this.step.sides) this.within(side, () => super.drawOutside());
  }

  drawOver() {
    const c = this.context;
    for (const side of this.step.sides) this.within(side, () => super.drawOver());
    for (const side of this.step.sides) {
      c.font = `600 12px ${this.colours("--font")}`;
      c.fillStyle = this.colours("--text");
      c.fillText(side.title, 2, side.top + 10);
      c.font = `11px ${this.colours("--font")}`;
    }
  }

  drawHover() {
    this.within(this.hover.group.side, () => super.drawHover());
  }
}

class PairPanel extends TimelineControls {
  constructor(section) {
    const { pair } = timelineData.views;
    super(section, PairCanvas, pair.classes);
    this.step = new PairStep(pair);
    this.canvas.withOps = false;
    this.part("[name=ops]").checked = false;
    this.part("[name=ops]").addEventListener("change", (event) => {
      this.canvas.withOps = event.target.checked;
      this.canvas.draw();
    });
    this.canvas.show(this.step);
    this.fillLegend();
    this.fillList();
    section.dataset.shown = "pair";
  }

  told() {
    return "Both steps";
  }

  fillLegend() {
    const { key, line } = TimelineControls;
    const { tones, long, us } = timelineData;
    const sums = this.step.sides.map(({ gaps }) => {
      const idle = tones.map(() => 0);
      gaps.tone.forEach((tone, i) => { idle[tone] += gaps.own[i] ? gaps.d[i] : 0; });
      return idle;
    });
    const present = new Set(this.step.sides.flatMap(({ gpu }) => gpu.cls));
    const { classes } = this.canvas;
    const shown = classes.filter((name) => present.has(name));
    this.part(".keys").replaceChildren(
      line("GPU idle, base to head", tones.flatMap(([colour, text], i) =>
        (sums[0][i] || sums[1][i] ? [key(colour, `${text}: ${us(sums[0][i])} to ${us(sums[1][i])} µs`)] : []))),
      line("GPU busy", [...shown.map((name) => key(`--k${classes.indexOf(name)}`, long(name))), key("--k5", "other kernels and copies")]),
    );
  }

  fillList() {
    const { make, row, place } = TimelineControls;
    const { us, brief } = timelineData;
    const rows = this.step.sides.flatMap((side) => {
      const calls = [...side.waits.t.keys()].map((i) => {
        const [title, facts] = side.describe("waits", i);
        const [verdict] = side.verdict(i);
        const what = make("td", `${side.name}: `);
        if (verdict) what.append(make("span", verdict, { class: `badge ${verdict}` }), " ");
        what.append(`${title}; ${facts.slice(2).join("; ")}`);
        return [side.waits.t[i], side.waits.t[i] + side.waits.d[i], what];
      });
      const longest = side.idle.filter((gap) => gap.own).sort((a, b) => (b.end - b.start) - (a.end - a.start)).slice(0, 3);
      const gaps = longest.map((gap) => {
        const parts = [...gap.parts].sort((a, b) => b[1] - a[1]).slice(0, 2);
        const ended = gap.op < 0 ? "" : `, until ${brief(side.gpu.name[gap.op])}`;
        const why = parts.map(([name, ns]) => `${us(ns)} µs ${name}`).join(", ");
        return [gap.start, gap.end, make("td", `${side.name}: ${gap.late ? "GPU waits for the host: " : "GPU idle: "}${why}${ended}`)];
      });
      return [...calls, ...gaps].map(([start, end, what]) =>
        row(place(start, end), make("td", us(end - start), { class: "n" }), what));
    });
    this.part(".look tbody").replaceChildren(...rows);
  }
}

const pairPanel = (() => {
  document.documentElement.classList.add("js");
  const panel = new PairPanel(document.querySelector(".timeline"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => panel.canvas.draw());
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details.folded:not([open])")];
    folded.forEach((details) => { details.open = true; });
    panel.print(document.getElementById("light"));
  });
  addEventListener("afterprint", () => {
    folded.forEach((details) => { details.open = false; });
    panel.print(null);
  });
  return panel;
})();

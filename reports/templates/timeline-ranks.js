// One step of all ranks, one above the other on one clock: who arrives when, who waits for whom, and why.
class RankStep {
  constructor(data) {
    Object.assign(this, data);
    const { sums } = timelineData;
    this.shared.t = sums(this.shared.t);
    for (const lane of this.lanes) {
      for (const table of [lane.legs, lane.work, lane.gaps, lane.arrivals]) table.t = sums(table.t);
    }
  }

  // What an arrival may be off: the largest residual of the clocks.
  precision() {
    const known = this.lanes.every((lane) => lane.residual >= 0);
    return known ? timelineData.us(Math.max(...this.lanes.map((lane) => lane.residual))) : "unknown";
  }

  layout() {
    this.groups = [];
    let y = 20; // the axis
    this.lanes.forEach((lane, place) => {
      y += 15;
      let label = `rank ${lane.rank}, step ${lane.step}${place ? "" : ", whose clock counts"}`;
      for (const [kind, height] of [["legs", 14], ["work", 16], ["arrivals", 16], ["gaps", 16]]) {
        const table = lane[kind];
        if (!table.t.length) continue;
        this.groups.push({ kind, lane, label, table, rows: [...table.t.keys()], height, top: y, lanes: 1 });
        label = "";
        y += height + 1;
      }
      y += 5;
    });
    return y + 2;
  }

  // The arrivals at one collective, each with its lane.
  arrivals(row) {
    return this.lanes.flatMap((lane) => {
      const i = lane.arrivals.row.indexOf(row);
      return i < 0 ? [] : [{ lane, i, at: lane.arrivals.t[i], wait: lane.arrivals.wait[i] }];
    });
  }

  lastRank(row) {
    const place = this.shared.last[row];
    return place < 0 ? "another rank" : `rank ${this.lanes[place].rank}`;
  }

  // What the clocks let one say of who was last.
  sureness(row) {
    const { us } = timelineData;
    const { told, least, blocking } = this.shared;
    if (!blocking[row]) return "not blocking: nobody has to wait in it";
    return [least[row] < 1e12 ? `not resolved: arrivals within ${us(least[row])} µs of each other say nothing on these clocks` :
      "not resolved: of a clock nothing is known",
      "rests on the fit of the clocks: causality alone would allow another order", "causality alone shows it"][told[row]];
  }

  because(row) {
    const { cause, ns, told } = this.shared;
    if (!told[row] || cause[row] < 0) return "";
    return `${timelineData.long(cause[row])}, ${timelineData.us(ns[row])} µs more than the others' mean`;
  }

  describe(kind, i, { lane, table }) {
    const { us, long, tones } = timelineData;
    const at = `rank ${lane.rank}, starts at ${us(table.t[i])} µs, takes ${us(table.d[i])} µs`;
    if (kind === "legs") return [`leg ${long(table.name[i])}`, [at]];
    if (kind === "work") return [long(table.name[i]), [at, long(table.cls[i])]];
    if (kind === "gaps") {
      const host = table.doing[i] >= 0;
      return [`GPU idle for ${us(table.d[i])} µs`, [
        `rank ${lane.rank}, starts at ${us(table.t[i])} µs`,
        `cause: ${host ? "the host launched late" : tones[table.tone[i]][1]}`,
        host ? `the host was ${long(table.doing[i])}${table.launch[i] ? ", in the launch itself" : ""}` : "",
        host ? `blamed on: ${long(table.blame[i])}` : "",
      ]];
    }
    const row = table.row[i];
    const after = table.t[i] - this.shared.t[row];
    const wait = table.wait[i];
    const resolved = this.shared.told[row] > 0;
    return [long(this.shared.kind[row]), [
      `rank ${lane.rank} arrives ${us(after)} µs after the first, ± ${this.precision()}`,
      wait ? `waits ${us(wait)} µs${resolved ? ` for ${this.lastRank(row)}` : ""}, then transfers for ${us(table.d[i] - wait)} µs` :
        `${resolved && this.shared.blocking[row] ? "the last to arrive, " : ""}transfers for ${us(table.d[i])} µs`,
      resolved && this.because(row) ? `${this.lastRank(row)} is late: ${this.because(row)}` : "",
      this.sureness(row),
    ]];
  }
}

class RankCanvas extends TimelineCanvas {
  colourOf(group, i) {
    if (group.kind !== "work") return super.colourOf(group, i);
    return `--k${Math.min(this.classes.indexOf(group.table.cls[i]) >>> 0, 5)}`;
  }

  drawBoxes(group) {
    if (group.kind !== "arrivals") {
      super.drawBoxes(group);
      return;
    }
    const c = this.context;
    const { table, top, height } = group;
    for (const i of group.rows) {
      const start = table.t[i];
      const end = start + table.d[i];
      if (start > this.to || end < this.from) continue;
      const [x, turn, stop] = [start, start + table.wait[i], end].map((ns) => Math.min(Math.max(this.x(ns), -1), this.width + 1));
      const row = table.row[i];
      const told = this.step.shared.told[row] > 0;
      if (turn > x) {
        c.fillStyle = this.colours("--surface");
        c.fillRect(x, top, turn - x, height - 1.5);
        c.fillStyle = this.hatched(this.colours(told ? "--wait" : "--left-out-line"));
        c.fillRect(x, top, turn - x, height - 1.5);
      }
      c.fillStyle = this.colours(told ? "--transfer" : this.step.shared.blocking[row] ? "--left-out-line" : "--tl-launch");
      c.fillRect(turn, top, Math.max(stop - turn, 0.8), height - 1.5);
      if (stop - turn > 24) this.drawName("gpu", this.step.shared.kind[row], turn, top, stop - turn);
    }
  }

  hatched(colour) {
    this.patterns ??= new Map();
    if (!this.patterns.has(colour)) {
      const tile = document.createElement("canvas");
      tile.width = tile.height = 5;
      const c = tile.getContext("2d");
      c.strokeStyle = colour;
      c.lineWidth = 1.8;
      for (const x of [-5, 0, 5]) {
        c.moveTo(x - 1, 6);
        c.lineTo(x + 6, -1);
      }
      c.stroke();
      this.patterns.set(colour, this.context.createPattern(tile, "repeat"));
    }
    return this.patterns.get(colour);
  }

  // Each rank's step has its own edges.
  drawOutside() {
    const c = this.context;
    c.fillStyle = this.colours("--text");
    for (const lane of this.step.lanes) {
      const its = this.step.groups.filter((group) => group.lane === lane);
      if (!its.length) continue;
      const height = its.at(-1).top + its.at(-1).height - its[0].top;
      for (const edge of [lane.start, lane.end]) c.fillRect(Math.round(this.x(edge)), its[0].top, 1, height);
    }
  }

  drawOver() {}

  // A collective's arrivals, joined over all its ranks, and the last of them as a line.
  drawHover() {
    super.drawHover();
    const { group, i } = this.hover;
    if (group.kind !== "arrivals") return;
    const c = this.context;
    const row = group.table.row[i];
    const points = this.step.arrivals(row).map(({ lane, at }) => {
      const its = this.step.groups.find((one) => one.lane === lane && one.kind === "arrivals");
      return [this.x(at), its.top, its.height];
    });
    c.strokeStyle = c.fillStyle = this.colours("--link");
    c.lineWidth = 1.5;
    c.beginPath();
    for (const [x, top, height] of points) {
      c.lineTo(x, top);
      c.lineTo(x, top + height - 1.5);
    }
    c.stroke();
    if (!this.step.shared.told[row]) return;
    const latest = Math.max(...points.map(([x]) => x));
    c.setLineDash([3, 3]);
    c.strokeRect(latest, points[0][1], 0, points.at(-1)[1] + points.at(-1)[2] - points[0][1]);
    c.setLineDash([]);
  }
}

class RankPanel extends TimelineControls {
  constructor(section) {
    const first = Object.values(timelineData.views)[0];
    super(section, RankCanvas, first ? first.classes : []);
    this.open();
  }

  // Why there is nothing to draw, or "".
  static missing() {
    if (!timelineData.ranks) return "The step of all ranks is not in this page, to keep it small enough to send.";
    return typeof DecompressionStream === "function" ? "" : "This browser cannot unpack the step: it lacks DecompressionStream.";
  }

  async open() {
    this.step = new RankStep(await timelineData.open(timelineData.ranks));
    this.canvas.show(this.step);
    this.fillLegend();
    this.fillList();
    this.section.dataset.shown = String(this.step.lanes[0].step);
  }

  told() {
    return `Step ${this.step.lanes[0].step}`;
  }

  fillLegend() {
    const { key, line } = TimelineControls;
    const { tones, long } = timelineData;
    const { classes } = this.canvas;
    const idle = tones.map(() => 0);
    const present = new Set();
    for (const { gaps, work } of this.step.lanes) {
      gaps.tone.forEach((tone, i) => { idle[tone] += gaps.d[i]; });
      work.cls.forEach((name) => present.add(name));
    }
    const shown = classes.filter((name) => present.has(name));
    const blocks = this.step.shared.blocking.every(Boolean);
    this.part(".keys").replaceChildren(
      line("Collectives", [key("", "waiting for the last rank", true), key("--transfer", "from the last arrival to the end"),
        key("--left-out-line", "not resolved"), ...(blocks ? [] : [key("--tl-launch", "not blocking")])]),
      line("GPU busy", [...shown.map((name) => key(`--k${classes.indexOf(name)}`, long(name))), key("--k5", "other kernels and copies")]),
      line("GPU idle", tones.flatMap(([colour, text], i) => (idle[i] ? [key(colour, text)] : []))),
    );
  }

  fillList() {
    const { make, row, place } = TimelineControls;
    const { us, brief } = timelineData;
    const { shared } = this.step;
    const order = [...shared.t.keys()].filter((i) => shared.blocking[i]).sort((a, b) => shared.spread[b] - shared.spread[a]);
    const rows = order.slice(0, 60).map((i) => {
      const what = make("td", null);
      const resolved = shared.told[i] > 0;
      if (!resolved) what.append(make("span", "not resolved", { class: "badge" }), " ");
      if (shared.told[i] === 1) what.append(make("span", "rests on the fit", { class: "badge" }), " ");
      const why = this.step.because(i);
      what.append(resolved ? `${this.step.lastRank(i)} is last${why ? `: ${why}` : ""}; ` : "", brief(shared.kind[i]));
      const made = row(place(shared.t[i], shared.t[i] + shared.d[i]), make("td", `${us(shared.spread[i])} ± ${this.step.precision()}`, { class: "n" }), what);
      made.classList.toggle("hidden", !resolved);
      return made;
    });
    this.part(".look tbody").replaceChildren(...rows.slice(0, 5));
    this.part(".rest").hidden = rows.length <= 5;
    this.part(".rest summary").textContent = `${rows.length - 5} smaller spreads`;
    this.part(".rest tbody").replaceChildren(...rows.slice(5));
  }

  goTo(from, to) {
    super.goTo(from, to, 20000);
  }

  // To the n-th blocking collective of the step, from 1.
  goToCollective(n) {
    const { t, d, blocking } = this.step.shared;
    const i = [...t.keys()].filter((row) => blocking[row])[n - 1];
    if (i !== undefined) this.goTo(t[i], t[i] + d[i]);
  }
}

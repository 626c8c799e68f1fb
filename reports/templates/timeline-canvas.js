// The drawing of one step: zoomed by wheel, pinch, drag or keys, with what lies under the pointer told.
class TimelineCanvas {
  constructor(canvas, tip, palette, classes, onView) {
    Object.assign(this, { canvas, tip, palette, classes, onView, withOps: true, hover: null, drag: null });
    this.pointers = new Map();
    this.context = canvas.getContext("2d");
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
    canvas.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.onDown(event));
    canvas.addEventListener("pointermove", (event) => this.onMove(event));
    canvas.addEventListener("pointerup", (event) => this.onUp(event));
    canvas.addEventListener("pointercancel", (event) => this.pointers.delete(event.pointerId));
    canvas.addEventListener("pointerleave", () => this.point(null));
    canvas.addEventListener("dblclick", () => this.whole());
    canvas.addEventListener("keydown", (event) => this.onKey(event));
  }

  show(step) {
    this.step = step;
    this.point(null);
    this.whole();
  }

  whole() {
    const margin = (this.step.last - this.step.first) * 0.004;
    this.zoomTo(this.step.first - margin, this.step.last + margin);
  }

  zoomTo(from, to) {
    const margin = (this.step.last - this.step.first) * 0.004;
    const least = this.step.first - margin;
    const most = this.step.last + margin;
    const width = Math.min(Math.max(to - from, 500), most - least);
    this.from = Math.min(Math.max(from, least), most - width);
    this.to = this.from + width;
    this.draw();
    this.onView(this);
  }

  zoom(factor, at = (this.from + this.to) / 2) {
    this.zoomTo(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  pan(share) {
    const by = (this.to - this.from) * share;
    this.zoomTo(this.from + by, this.to + by);
  }

  isWhole() {
    return this.to - this.from >= (this.step.last - this.step.first) * 1.0079;
  }

  x(ns) {
    return ((ns - this.from) / (this.to - this.from)) * this.width;
  }

  time(x) {
    return this.from + (x / this.width) * (this.to - this.from);
  }

  draw() {
    if (!this.step || this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.drawNow();
    });
  }

  drawNow(scale = devicePixelRatio) {
    const width = this.canvas.parentElement.clientWidth;
    if (!width) return;
    const height = this.step.layout(this.withOps);
    this.width = width;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    const c = this.context;
    c.setTransform(scale, 0, 0, scale, 0, 0);
    this.colours = this.palette();
    c.font = `11px ${this.colours("--font")}`;
    c.textBaseline = "middle";
    this.drawAxis(height);
    for (const group of this.step.groups) {
      if (group.kind === "gaps") this.drawIdle(group);
      else this.drawBoxes(group);
    }
    this.drawOutside();
    c.fillStyle = this.colours("--quiet");
    for (const group of this.step.groups) c.fillText(group.label, 2, group.top - 7);
    this.drawOver();
    if (this.hover) this.drawHover();
    if (this.drag?.to !== undefined) {
      c.fillStyle = this.colours("--link");
      c.globalAlpha = 0.15;
      c.fillRect(this.drag.x, 0, this.drag.to - this.drag.x, height);
      c.globalAlpha = 1;
    }
  }

  drawAxis(height) {
    const c = this.context;
    const rough = ((this.to - this.from) / this.width) * 95;
    const power = 10 ** Math.floor(Math.log10(rough));
    const tick = [1, 2, 5, 10].map((m) => m * power).find((t) => t >= rough);
    for (let n = Math.ceil(this.from / tick); n * tick <= this.to; n++) {
      const t = n * tick || 0; // never -0
      const x = Math.round(this.x(t)) + 0.5;
      c.fillStyle = this.colours("--line");
      c.fillRect(x, 14, 1, height - 14);
      c.fillStyle = this.colours("--quiet");
      const digits = tick >= 1000 ? 0 : tick >= 100 ? 1 : 2;
      const label = timelineData.number(t / 1000, digits) + (t === 0 ? " µs" : "");
      if (x + c.measureText(label).width < this.width) c.fillText(label, x + 3, 7);
    }
  }

  // What goes over the boxes of more than one group.
  drawOver() {
    this.drawWaits();
    this.drawLinks();
  }

  colourOf(group, i) {
    const { kind, table } = group;
    if (kind === "gpu") return `--k${Math.min(this.classes.indexOf(table.cls[i]) >>> 0, 5)}`;
    if (kind === "calls") return table.ops[i] ? "--tl-launch" : "--tl-api";
    return { spans: "--tl-span", ops: "--tl-op", legs: "--wall" }[kind];
  }

  drawBoxes(group) {
    const c = this.context;
    const { kind, table, top, height } = group;
    const thin = kind === "gpu" ? 0.7 : 1;
    for (const i of group.rows) {
      const start = table.t[i];
      if (start > this.to || start + table.d[i] < this.from) continue;
      const x = Math.max(this.x(start), -1);
      const width = Math.min(this.x(start + table.d[i]), this.width + 1) - x;
      const y = top + (table.lane?.[i] ?? 0) * height;
      c.fillStyle = this.colours(this.colourOf(group, i));
      // The last half pixel of a wide box stays free, so that neighbours can be told apart.
      c.fillRect(x, y, Math.max(width > 3 ? width - 0.6 : width, thin), height - 1.5);
      if (width > 24) this.drawName(kind, table.name[i], x, y, width);
    }
  }

  drawName(kind, name, x, y, width) {
    const c = this.context;
    const left = Math.max(x, 0) + 3;
    const room = Math.min(x + width, this.width) - left - 2;
    const text = timelineData.brief(name);
    const fits = Math.floor(room / 6);
    if (fits < 3) return;
    const dark = kind === "gpu" || kind === "work" || kind === "legs" || kind === "calls";
    c.fillStyle = this.colours(dark ? "--bg" : "--text");
    c.fillText(text.length > fits ? `${text.slice(0, fits - 1)}…` : text, left, y + 7.5, room);
  }

  // Gaps are often far below a pixel: each column shows how much of its time was idle, and whose.
  drawIdle({ table, top, height }) {
    const c = this.context;
    const tones = timelineData.tones.length;
    const share = new Float64Array((Math.ceil(this.width) + 1) * tones);
    c.fillStyle = this.colours("--surface");
    c.fillRect(0, top, this.width, height - 2);
    for (let i = 0; i < table.t.length; i++) {
      const from = Math.max(this.x(table.t[i]), 0);
      const to = Math.min(this.x(table.t[i] + table.d[i]), this.width);
      for (let x = Math.floor(from); x < to; x++) {
        share[x * tones + table.tone[i]] += Math.min(x + 1, to) - Math.max(x, from);
      }
    }
    for (let x = 0; x < this.width; x++) {
      let y = top + height - 2;
      for (let tone = 0; tone < tones; tone++) {
        const tall = share[x * tones + tone] * (height - 2);
        if (!tall) continue;
        y -= tall;
        c.fillStyle = this.colours(timelineData.tones[tone][0]);
        c.fillRect(x, y, 1, tall);
      }
    }
  }

  // What lies outside the step on the GPU belongs to its neighbours.
  drawOutside() {
    const c = this.context;
    const gpu = this.step.groups.filter((g) => ["legs", "gaps", "gpu"].includes(g.kind));
    if (!gpu.length) return;
    const top = gpu[0].top - 1;
    const last = gpu.at(-1);
    const height = last.top + last.lanes * last.height - top;
    c.fillStyle = this.colours("--bg");
    c.globalAlpha = 0.72;
    c.fillRect(0, top, this.x(0), height);
    c.fillRect(this.x(this.step.end), top, Math.max(this.width - this.x(this.step.end), 0), height);
    c.globalAlpha = 1;
    c.fillStyle = this.colours("--text");
    for (const edge of [0, this.step.end]) c.fillRect(Math.round(this.x(edge)), top, 1, height);
  }

  drawWaits() {
    const c = this.context;
    const { waits } = this.step;
    let free = 70;
    waits.t.forEach((start, i) => {
      const group = this.step.group("calls", waits.track[i]);
      if (!group || start > this.to || start + waits.d[i] < this.from) return;
      const [verdict] = this.step.verdict(i);
      const bad = verdict === "harmful" || verdict === "pinning";
      const x = this.x(start);
      const width = Math.max(this.x(start + waits.d[i]) - x, 3);
      c.fillStyle = this.colours(bad ? "--bad-bg" : verdict === "unclear" ? "--warn" : "--wait");
      c.fillRect(x - 0.5, group.top - 3, width + 1, group.height + 3);
      if (bad) c.fillRect(x - 0.5, 16, 1, group.top - 16);
      const label = `${timelineData.brief(waits.site[i]).split(" ")[0]} (${verdict || "blocks"})`;
      const room = c.measureText(label).width;
      const at = Math.min(Math.max(x, free), this.width - room - 2);
      if (at < free) return;
      c.fillStyle = this.colours(bad ? "--bad" : verdict === "unclear" ? "--warn" : "--quiet");
      c.fillText(label, at, group.top - 8);
      free = at + room + 10;
    });
  }

  drawLinks() {
    const { gpu } = this.step;
    gpu.linked.forEach((linked, op) => {
      if (linked && gpu.own[op]) this.drawLink(op, this.step.calls.ops[gpu.call[op]] > 1 ? 1.4 : 0.8);
    });
  }

  drawLink(op, width, colour = "--text") {
    const { gpu, calls } = this.step;
    const call = gpu.call[op];
    if (call < 0) return;
    const from = this.step.group("calls", calls.track[call]);
    const to = this.step.group("gpu", gpu.track[op]);
    if (!from || !to) return;
    const x0 = this.x(calls.t[call] + calls.d[call] / 2);
    const x1 = this.x(gpu.t[op]);
    if (Math.max(x0, x1) < 0 || Math.min(x0, x1) > this.width) return;
    const c = this.context;
    const y0 = from.top + (calls.lane[call] + 1) * from.height - 1;
    const y1 = y0 + 22;
    c.strokeStyle = c.fillStyle = this.colours(colour);
    c.lineWidth = width;
    c.globalAlpha = width < 1 ? 0.55 : 1;
    c.beginPath();
    c.moveTo(x0, y0);
    c.lineTo(x1, y1);
    c.stroke();
    c.beginPath();
    c.moveTo(x1, y1 + 3);
    c.lineTo(x1 - 3, y1 - 3);
    c.lineTo(x1 + 3, y1 - 3);
    c.fill();
    c.globalAlpha = 1;
    if (colour === "--text" && width < 1) return;
    // Down to the op itself, past the lanes between.
    c.setLineDash([2, 2]);
    c.beginPath();
    c.moveTo(x1, y1);
    c.lineTo(x1, to.top + gpu.lane[op] * to.height);
    c.stroke();
    c.setLineDash([]);
  }

  drawHover() {
    const c = this.context;
    const { group, i } = this.hover;
    const { kind, table } = group;
    const x = this.x(table.t[i]);
    const width = Math.max(this.x(table.t[i] + table.d[i]) - x, 1);
    const y = group.top + (table.lane?.[i] ?? 0) * group.height;
    if (kind === "gaps") {
      // Over the host's lanes, too: what did it do meanwhile?
      c.fillStyle = this.colours(timelineData.tones[table.tone[i]][0]);
      c.globalAlpha = 0.2;
      c.fillRect(x, 16, width, group.top - 16);
      c.globalAlpha = 1;
    }
    c.strokeStyle = this.colours("--text");
    c.lineWidth = 1.5;
    c.strokeRect(x, y, width, group.height - 1.5);
    const op = kind === "gpu" ? i : kind === "calls" ? this.step.firstOp.get(i) : kind === "gaps" ? table.op[i] : -1;
    if (op >= 0) this.drawLink(op, 1.6, "--link");
  }

  hit(x, y) {
    const group = this.step.groups.find((g) => y >= g.top - 1 && y < g.top + g.lanes * g.height);
    if (!group) return null;
    const { table } = group;
    const lane = Math.min(Math.floor((y - group.top) / group.height), group.lanes - 1);
    const near = ((this.to - this.from) / this.width) * 3;
    const at = this.time(x);
    let best = null;
    let least = near;
    for (const i of group.rows) {
      if (table.lane && table.lane[i] !== Math.max(lane, 0)) continue;
      const off = Math.max(table.t[i] - at, at - table.t[i] - table.d[i], 0);
      // Of several as near, the longer one: it is what can be seen.
      if (off < least || (off === least && best && table.d[i] > table.d[best.i])) [best, least] = [{ group, i }, off];
    }
    return best;
  }

  point(x, y) {
    this.hover = x === null ? null : this.hit(x, y);
    this.tip.hidden = !this.hover;
    if (this.hover) {
      const [title, facts] = this.step.describe(this.hover.group.kind, this.hover.i, this.hover.group);
      const lines = [title.length > 240 ? `${title.slice(0, 239)}…` : title, ...facts.filter(Boolean)];
      this.tip.replaceChildren(...lines.map((text, n) => {
        const line = document.createElement(n ? "div" : "b");
        line.textContent = text;
        return line;
      }));
      const right = x > this.width / 2;
      this.tip.style.left = right ? "auto" : `${x + 14}px`;
      this.tip.style.right = right ? `${this.width - x + 14}px` : "auto";
      this.tip.style.top = `${y + 14}px`;
    }
    this.draw();
  }

  onWheel(event) {
    const rect = this.canvas.getBoundingClientRect();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      this.pan(event.deltaX / this.width);
      return;
    }
    // Out of the whole step, and on the way past it, the wheel goes on scrolling the page.
    const passing = performance.now() - TimelineCanvas.scrolled < 350;
    if (this.isWhole() && (event.deltaY > 0 || passing) && !event.ctrlKey) return;
    event.preventDefault();
    this.zoom(1.0018 ** Math.max(-300, Math.min(300, event.deltaY)), this.time(event.clientX - rect.left));
  }

  onDown(event) {
    this.pointers.set(event.pointerId, event.offsetX);
    if (event.pointerType === "mouse" && event.button === 0) {
      this.canvas.setPointerCapture(event.pointerId);
      this.drag = { x: event.offsetX, pan: event.shiftKey };
    }
  }

  onMove(event) {
    const before = this.pointers.get(event.pointerId);
    if (event.pointerType === "mouse") {
      if (this.drag?.pan) {
        this.pan((before - event.offsetX) / this.width);
        this.pointers.set(event.pointerId, event.offsetX);
      } else if (this.drag && Math.abs(event.offsetX - this.drag.x) > 4) {
        this.drag.to = event.offsetX;
        this.point(null);
      } else this.point(event.offsetX, event.offsetY);
      return;
    }
    if (before === undefined) return;
    const others = [...this.pointers].filter(([id]) => id !== event.pointerId);
    if (others.length) {
      const [, other] = others[0];
      const spread = Math.max(Math.abs(event.offsetX - other), 8);
      this.zoom(Math.max(Math.abs(before - other), 8) / spread, this.time((event.offsetX + other) / 2));
    } else this.pan((before - event.offsetX) / this.width);
    this.pointers.set(event.pointerId, event.offsetX);
  }

  onUp(event) {
    const drag = this.drag;
    this.pointers.delete(event.pointerId);
    this.drag = null;
    if (drag?.to !== undefined) {
      const [from, to] = [drag.x, drag.to].sort((a, b) => a - b);
      this.zoomTo(this.time(from), this.time(to));
    } else this.point(event.offsetX, event.offsetY);
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const act = {
      ArrowLeft: () => this.pan(-0.2),
      ArrowRight: () => this.pan(0.2),
      "+": () => this.zoom(0.6),
      "=": () => this.zoom(0.6),
      "-": () => this.zoom(1 / 0.6),
      0: () => this.whole(),
      Home: () => this.whole(),
      Escape: () => this.point(null),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }
}
TimelineCanvas.scrolled = 0;
addEventListener("scroll", () => { TimelineCanvas.scrolled = performance.now(); }, { passive: true });

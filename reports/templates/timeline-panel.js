// What stands around each step's timeline: which step, why it was slow, its legend and the things to look at.
const timelinePanels = (() => {
  const panels = new Map();
  panels.start = () => {};
  if (!timelineData) return panels;
  const { views, tones, long, us, signed, ms, Step, open } = timelineData;
  const LISTED = 6;

  const { make, row, key, line, place } = TimelineControls;

  class Panel extends TimelineControls {
    constructor(section) {
      super(section, TimelineCanvas, views[section.dataset.view].classes);
      this.view = views[section.dataset.view];
      this.opened = new Map();
      this.readable = this.view.steps.map(([index]) => index).filter((index) => this.canShow(index));
      this.fillChoice();
      this.fillStrip();
      this.part("select").addEventListener("change", (event) => this.show(Number(event.target.value)));
      this.part("[name=ops]").addEventListener("change", (event) => {
        this.canvas.withOps = event.target.checked;
        this.canvas.draw();
      });
      this.show(this.readable.includes(this.view.median) ? this.view.median : this.readable[0]);
    }

    canShow(index) {
      const data = this.view.data[index];
      return data !== undefined && (typeof data !== "string" || typeof DecompressionStream === "function");
    }

    async show(index) {
      if (!this.canShow(index)) return;
      this.wanted = index;
      if (!this.opened.has(index)) {
        this.opened.set(index, new Step(await open(this.view.data[index]), this.view.sites));
      }
      if (this.wanted !== index) return; // another one was asked for meanwhile
      this.step = this.opened.get(index);
      this.part("select").value = String(index);
      this.part(".strip").childNodes.forEach((bar, i) => {
        bar.classList.toggle("chosen", this.view.steps[i][0] === index);
      });
      const place = this.readable.indexOf(index);
      this.part("[data-do=before]").disabled = place === 0;
      this.part("[data-do=after]").disabled = place === this.readable.length - 1;
      this.canvas.show(this.step);
      this.fillWhy();
      this.fillLegend();
      this.fillList();
      this.section.dataset.shown = String(index);
    }

    name([index, wall, , , , , leftOut]) {
      const marks = [index === this.view.median ? "median" : "", index === this.slowest() ? "slowest" : "", leftOut ?? ""];
      return [`${index}: ${ms(wall * 1000)}`, ...marks.filter(Boolean)].join(", ");
    }

    slowest() {
      const usual = this.view.steps.filter((step) => step[6] === null || step[6] === "outlier");
      return usual.reduce((most, step) => (step[1] > most[1] ? step : most), usual[0] ?? [null])[0];
    }

    fillChoice() {
      this.part("select").replaceChildren(...this.view.steps.map((step) => {
        const option = make("option", this.name(step), { value: step[0] });
        option.disabled = !this.canShow(step[0]);
        return option;
      }));
      const missing = this.view.steps.length - this.readable.length;
      this.part(".missing").hidden = missing === 0;
      if (typeof DecompressionStream !== "function") {
        this.part(".missing").textContent = "This browser cannot unpack the other steps: it lacks DecompressionStream.";
      }
    }

    fillStrip() {
      const usual = this.view.steps.filter((step) => step[6] === null).map((step) => step[1]);
      const all = this.view.steps.map((step) => step[1]);
      const top = Math.min(Math.max(...all), 1.5 * Math.max(...(usual.length ? usual : all)));
      this.part(".strip").replaceChildren(...this.view.steps.map((step) => {
        const [index, wall, busy, host, gpu] = step;
        const bar = make("span", null, { "data-step": index, title: `Step ${this.name(step)}` });
        const ends = [busy, busy + host, busy + host + gpu].map((end) => `${(100 * end) / wall}%`);
        bar.style.setProperty("--tall", `${(100 * Math.min(wall / top, 1)).toFixed(1)}%`);
        bar.style.setProperty("--fill", step[6] !== null ? "var(--left-out-line)" :
          `linear-gradient(to top, var(--busy) ${ends[0]}, var(--host) ${ends[0]} ${ends[1]},` +
          ` var(--gpu) ${ends[1]} ${ends[2]}, var(--unknown) ${ends[2]})`);
        bar.classList.toggle("absent", !this.canShow(index));
        return bar;
      }));
    }

    fillWhy() {
      const strip = this.view.steps.find(([index]) => index === this.step.step);
      const median = this.view.steps.find(([index]) => index === this.view.median);
      const isMedian = this.step.step === this.view.median;
      const more = (strip[1] - median[1]) * 1000;
      this.part(".why h3").textContent = isMedian ? `Step ${strip[0]} is the median step` :
        `Why step ${strip[0]} took ${us(Math.abs(more))} µs ${more < 0 ? "less" : "more"} than the median step`;
      this.part(".why p").textContent = `${ms(strip[1] * 1000)}, of it ${ms(strip[2] * 1000)} busy and ` +
        `${ms(strip[3] * 1000)} idle with the host late.` + (strip[6] ? ` Left out of the means: ${strip[6]}.` : "") +
        (isMedian ? " Every other step is compared with it." : "");
      this.part(".why table").hidden = !this.step.why.length;
      this.part(".why tbody").replaceChildren(...this.step.why.map(([what, ns]) =>
        row(make("td", signed(ns), { class: "n" }), make("th", long(what), { scope: "row" }))));
    }

    fillLegend() {
      const { tone, d, own } = this.step.gaps;
      const idle = tones.map(() => 0);
      tone.forEach((its, i) => { idle[its] += own[i] ? d[i] : 0; });
      const present = new Set(this.step.gpu.cls);
      const shown = this.view.classes.filter((name) => present.has(name));
      const kernels = shown.map((name) => key(`--k${this.view.classes.indexOf(name)}`, long(name)));
      const shares = tones.flatMap(([colour, text], i) => (idle[i] ? [key(colour, `${text}: ${us(idle[i])} µs`)] : []));
      this.part(".keys").replaceChildren(
        line("GPU idle", shares),
        line("GPU busy", [...kernels, key("--k5", "other kernels and copies")]),
      );
    }

    // Blocking calls first, then the longest gaps: what an eye would look for, for those who cannot see it, too.
    fillList() {
      const { waits, idle, gpu } = this.step;
      const rank = { harmful: 0, pinning: 1, unclear: 2 };
      const calls = [...waits.t.keys()].sort((a, b) =>
        (rank[this.step.verdict(a)[0]] ?? 3) - (rank[this.step.verdict(b)[0]] ?? 3));
      const items = calls.map((i) => {
        const [verdict, id] = this.step.verdict(i);
        const [title, facts] = this.step.describe("waits", i);
        const what = make("td", null);
        if (verdict) what.append(make("span", verdict, { class: `badge ${verdict}` }), " ");
        what.append(id ? make("a", title, { href: `#${id}` }) : title, `; ${facts.slice(2).join("; ")}`);
        return { start: waits.t[i], end: waits.t[i] + waits.d[i], what };
      });
      const gaps = idle.filter((gap) => gap.own).sort((a, b) => (b.end - b.start) - (a.end - a.start)).slice(0, 40);
      items.push(...gaps.map((gap) => {
        const parts = [...gap.parts].sort((a, b) => b[1] - a[1]);
        const why = parts.slice(0, 2).map(([name, ns]) => (parts.length > 1 ? `${us(ns)} µs ${name}` : name));
        if (parts.length > 2) why.push(`${parts.length - 2} more`);
        const ended = gap.op < 0 ? "" : `, until ${timelineData.brief(gpu.name[gap.op])}`;
        const what = make("td", `${gap.late ? "GPU waits for the host: " : "GPU idle: "}${why.join(", ")}${ended}`);
        return { start: gap.start, end: gap.end, what };
      }));
      const rows = items.map(({ start, end, what }) => {
        return row(place(start, end), make("td", us(end - start), { class: "n" }), what);
      });
      const first = calls.length + LISTED;
      this.part(".look tbody").replaceChildren(...rows.slice(0, first));
      this.part(".rest").hidden = rows.length <= first;
      this.part(".rest summary").textContent = `${rows.length - first} shorter gaps`;
      this.part(".rest tbody").replaceChildren(...rows.slice(first));
    }

    told() {
      return `Step ${this.step.step}`;
    }

    onClick(event) {
      const bar = event.target.closest("[data-step]");
      if (bar) this.show(Number(bar.dataset.step));
      const place = this.readable.indexOf(this.step.step);
      const act = {
        before: () => this.show(this.readable[place - 1]),
        after: () => this.show(this.readable[place + 1]),
        median: () => this.show(this.view.median),
        slowest: () => this.show(this.slowest()),
      }[event.target.closest("button")?.dataset.do];
      act ? act() : super.onClick(event);
    }

    // The call of a site in the step that is shown, or else in the median one.
    async goToSite(id) {
      const find = () => [...this.step.waits.t.keys()].find((i) => this.step.verdict(i)[1] === id);
      if (find() === undefined) await this.show(this.view.median);
      const wait = find();
      if (wait === undefined) return;
      this.goTo(this.step.waits.t[wait], this.step.waits.t[wait] + this.step.waits.d[wait]);
      this.part("canvas").focus({ preventScroll: true });
    }
  }

  const start = (section) => {
    const { view } = section.dataset;
    const why = view === "ranks" ? RankPanel.missing() :
      views[view] ? "" : "No step of this section is in this page, to keep it small enough to send.";
    if (why) section.querySelector(".live").replaceChildren(make("p", why, { class: "note" }));
    else if (!panels.has(view) && section.checkVisibility()) {
      panels.set(view, view === "ranks" ? new RankPanel(section) : new Panel(section));
    }
  };
  document.addEventListener("click", ({ target }) => {
    const button = target.closest(".to-timeline");
    if (button) panels.get(button.dataset.view)?.goToSite(button.dataset.site);
  });
  panels.start = () => document.querySelectorAll(".timeline").forEach(start);
  return panels;
})();

// One step's timeline as it was unpacked: its boxes in groups of lanes, its gaps as wholes, and words for each.
const timelineData = (() => {
  const source = document.getElementById("timelines");
  if (!source) return null;
  const { strings, short, tones, views, ranks } = JSON.parse(source.textContent);
  const long = (row) => (row < 0 ? "" : strings[row]);
  const brief = (row) => short[row] ?? long(row);

  const number = (value, digits) =>
    value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const us = (ns) => {
    const size = Math.abs(ns) / 1000;
    return number(ns / 1000, size >= 99999.5 ? 0 : size >= 1 || size < 0.0005 ? 1 : 2).replace(/^-([0.,]+)$/, "$1");
  };
  const signed = (ns) => (ns < 0 ? "\u2212" : "+") + us(Math.abs(ns));
  const ms = (ns) => `${number(ns / 1e6, 2)} ms`;

  const sums = (differences) => {
    let at = 0;
    return Float64Array.from(differences, (value) => (at += value));
  };

  const open = async (packed) => {
    if (typeof packed !== "string") return packed;
    const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
    const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(inflated).text());
  };

  const LANE = 16;
  const IDLE = 30;

  class Step {
    constructor(data, sites) {
      Object.assign(this, data, { sites });
      for (const table of [this.spans, this.ops, this.calls, this.gpu, this.gaps, this.legs, this.waits]) {
        table.t = sums(table.t);
      }
      this.gpu.call = sums(this.gpu.call);
      this.firstOp = new Map();
      this.gpu.call.forEach((call, op) => {
        if (call >= 0 && !this.firstOp.has(call)) this.firstOp.set(call, op);
      });
      this.idle = this.wholeGaps();
    }

    // Pieces that follow each other without an op between are one gap, ended by one op.
    wholeGaps() {
      const { t, d, tone, blame, own, op } = this.gaps;
      const gaps = [];
      for (let i = 0; i < t.length; i++) {
        let gap = gaps.at(-1);
        if (!gap || gap.end !== t[i] || !own[i] !== !gap.own) {
          gap = { start: t[i], own: own[i], late: blame[i] >= 0, parts: new Map() };
          gaps.push(gap);
        }
        gap.end = t[i] + d[i];
        gap.op = op[i];
        const why = blame[i] < 0 ? tones[tone[i]][1] : (tone[i] === 4 ? "held up by " : "") + long(blame[i]);
        gap.parts.set(why, (gap.parts.get(why) ?? 0) + d[i]);
      }
      return gaps;
    }

    verdict(wait) {
      return this.sites[this.waits.site[wait]] ?? ["", null];
    }

    // The groups of lanes from top to bottom, with the y of each; returns the height of all.
    layout(withOps) {
      this.groups = [];
      let y = 20; // the axis
      const add = (kind, label, table, rows, height = LANE) => {
        if (!rows.length) return;
        const lanes = table.lane ? 1 + rows.reduce((most, i) => Math.max(most, table.lane[i]), 0) : 1;
        const group = { kind, label, table, rows, height, top: y + 15, lanes };
        this.groups.push(group);
        y = group.top + lanes * height + (kind === "calls" ? 26 : 4); // the arrows want room
      };
      const on = (table, track) => [...table.t.keys()].filter((i) => table.track[i] === track);
      const all = (table) => [...table.t.keys()];
      this.threads.forEach((name, thread) => {
        add("spans", `${long(name)}: spans`, this.spans, on(this.spans, thread));
        if (withOps) add("ops", "framework ops", this.ops, on(this.ops, thread));
        add("calls", "API calls", this.calls, on(this.calls, thread));
      });
      add("legs", "GPU legs", this.legs, all(this.legs));
      add("gaps", "GPU idle, by who is late", this.gaps, all(this.gaps), IDLE);
      this.streams.forEach((name, stream) => add("gpu", `stream ${name}`, this.gpu, on(this.gpu, stream)));
      return y + 6;
    }

    group(kind, track) {
      return this.groups.find((g) => g.kind === kind && (track === undefined || g.table.track[g.rows[0]] === track));
    }

    // A box's title and lines of facts.
    describe(kind, i) {
      const table = this[kind];
      const at = `starts at ${us(table.t[i])} µs, takes ${us(table.d[i])} µs`;
      if (kind === "gpu") {
        return [long(table.name[i]), [at, `${long(table.cls[i])}, stream ${this.streams[table.track[i]]}`,
          this.launchOf(i), table.own[i] ? "" : "starts in a neighbouring step"]];
      }
      if (kind === "calls") {
        const wait = this.waitAt(i);
        if (wait >= 0) return this.describe("waits", wait);
        const first = this.firstOp.get(i);
        const ops = table.ops[i];
        const what = ops === 0 ? "" : `launches ${ops === 1 ? "one GPU op" : `${number(ops, 0)} GPU ops`}`;
        const start = first === undefined ? "" : `: ${brief(this.gpu.name[first])} at ${us(this.gpu.t[first])} µs`;
        return [long(table.name[i]), [at, what + start]];
      }
      if (kind === "waits") {
        const waited = table.name[i] >= 0 ? `waits for ${brief(table.name[i])}` : "what it waits for is not known";
        return [long(table.site[i]), [`blocking call, ${this.verdict(i)[0] || "no verdict"}`, at, waited,
          `blocked for ${us(table.blocked[i])} of its ${us(table.d[i])} µs`]];
      }
      if (kind === "gaps") return this.describeGap(i);
      if (kind === "legs") return [`leg ${long(table.name[i])}`, [at]];
      return [long(table.name[i]), [kind === "ops" ? "framework op" : "span", at]];
    }

    describeGap(i) {
      const { t, d, tone, doing, blame, launch, op } = this.gaps;
      const whole = this.idle.find((gap) => gap.start <= t[i] && t[i] < gap.end);
      const host = doing[i] >= 0;
      const size = whole && whole.end - whole.start > d[i] ? ` of a gap of ${us(whole.end - whole.start)} µs` : "";
      return [`GPU idle for ${us(d[i])} µs${size}`, [
        `starts at ${us(t[i])} µs`,
        `cause: ${host ? "the host launched late" : tones[tone[i]][1]}`,
        host ? `the host was ${long(doing[i])}${launch[i] ? ", in the launch itself" : ""}` : "",
        host ? `blamed on: ${long(blame[i])}` : "",
        op[i] >= 0 ? `ended by ${brief(this.gpu.name[op[i]])}, ${this.launchOf(op[i])}` : "",
      ]];
    }

    launchOf(op) {
      const call = this.gpu.call[op];
      if (call < 0) return "launch not on record";
      const ahead = this.gpu.t[op] - this.calls.t[call] - this.calls.d[call];
      const when = ahead < 0 ? "before that call returned" : `${us(ahead)} µs after its return`;
      return `launched by ${long(this.calls.name[call])} at ${us(this.calls.t[call])} µs, ran ${when}`;
    }

    waitAt(call) {
      const { t, d, track } = this.waits;
      return t.findIndex((start, i) =>
        track[i] === this.calls.track[call] && start <= this.calls.t[call] && this.calls.t[call] < start + Math.max(d[i], 1));
    }
  }

  return { views, ranks, tones, long, brief, us, signed, ms, number, sums, open, Step };
})();

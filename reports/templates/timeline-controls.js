// The controls that every timeline has: its canvas, zoom, and what of it is shown.
class TimelineControls {
  constructor(section, Canvas, classes) {
    this.section = section;
    this.source = document.documentElement;
    const palette = () => {
      const style = getComputedStyle(this.source);
      const colours = new Map();
      return (name) => colours.get(name) ?? (colours.set(name, style.getPropertyValue(name).trim()), colours.get(name));
    };
    this.canvas = new Canvas(this.part("canvas"), this.part(".tip"), palette, classes, () => this.tellView());
    this.section.addEventListener("click", (event) => this.onClick(event));
  }

  static make(tag, text, attributes = {}) {
    const made = document.createElement(tag);
    if (text !== null) made.textContent = text;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  static row(...cells) {
    const made = TimelineControls.make("tr", null);
    made.append(...cells);
    return made;
  }

  // A colour of the legend and what it stands for; a line of them.
  static key(colour, text, hatched = false) {
    const { make } = TimelineControls;
    const item = make("span", null);
    item.append(make("i", "", hatched ? { class: "key wait" } : { class: "key", style: `background:var(${colour})` }), text);
    return item;
  }

  static line(title, keys) {
    const { make } = TimelineControls;
    const made = make("div", null);
    made.append(make("b", title), ...keys);
    return made;
  }

  // A button that zooms to a stretch of time, in a cell.
  static place(from, to) {
    const { make } = TimelineControls;
    const at = make("th", null, { scope: "row", class: "n" });
    at.append(make("button", timelineData.us(from), { type: "button", "data-from": from, "data-to": to, title: "Zoom there" }));
    return at;
  }

  part(selector) {
    return this.section.querySelector(selector);
  }

  tellView() {
    const { from, to, step } = this.canvas;
    clearTimeout(this.telling);
    this.telling = setTimeout(() => {
      const [low, high] = [Math.max(from, step.first), Math.min(to, step.last)];
      this.part(".shown").textContent = `${this.told()}: ${timelineData.us(low)} to ${timelineData.us(high)} µs`;
    }, 150);
  }

  onClick(event) {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.from !== undefined) this.goTo(Number(button.dataset.from), Number(button.dataset.to));
    const act = {
      in: () => this.canvas.zoom(0.5),
      out: () => this.canvas.zoom(2),
      whole: () => this.canvas.whole(),
    }[button.dataset.do];
    act?.();
  }

  goTo(from, to, around = 80000) {
    const margin = Math.max((to - from) * 0.5, around);
    this.canvas.zoomTo(from - margin, to + margin);
    this.part(".stage").scrollIntoView({ block: "nearest" });
  }

  // Paper shows the whole step in the light colours.
  print(source) {
    this.source = source ?? document.documentElement;
    if (source) this.canvas.whole();
    this.canvas.drawNow(source ? 2 : devicePixelRatio);
  }
}

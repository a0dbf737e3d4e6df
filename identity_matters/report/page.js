"use strict";
// Shows the values of the point of a figure that is nearest to the pointer, or, with the arrow keys,
// of one point after another. A figure's data are those of hover.hover_data.
(() => {
  const REACH_PIXELS = 40;
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.setAttribute("role", "status");
  tip.hidden = true;
  document.body.append(tip);
  const hideAll = () => {
    tip.hidden = true;
    for (const ring of document.querySelectorAll(".ring")) ring.hidden = true;
  };

  const shown = (value) =>
    typeof value === "number" ? String(Number(value.toPrecision(6))) : String(value);

  function fields(data, series, point) {
    const [, , x, y, row] = point;
    if (row === null) return [[series.x, x], [series.y, y]];
    return data.columns
      .map((name, index) => [name, data.rows[row][index]])
      .filter(([, value]) => value !== "" && value !== null);
  }

  function fill(data, series, point) {
    const head = document.createElement("div");
    const swatch = document.createElement("i");
    swatch.style.background = series.colour;
    const name = document.createElement("b");
    name.textContent = [series.panel, series.label].filter(Boolean).join(": ");
    head.append(swatch, name);
    const list = document.createElement("dl");
    for (const [term, value] of fields(data, series, point)) {
      const dt = document.createElement("dt");
      const dd = document.createElement("dd");
      dt.textContent = term;
      dd.textContent = shown(value);
      list.append(dt, dd);
    }
    tip.replaceChildren(head, list);
  }

  function attach(plot) {
    const data = JSON.parse(plot.querySelector("script").textContent);
    const ring = document.createElement("span");
    ring.className = "ring";
    ring.hidden = true;
    plot.append(ring);
    let [series, index] = [0, -1];

    function show() {
      hideAll();
      const one = data.series[series];
      const point = one.points[index];
      ring.style.left = `${100 * point[0]}%`;
      ring.style.top = `${100 * point[1]}%`;
      ring.hidden = false;
      fill(data, one, point);
      tip.hidden = false;
      // In the corner first: near the right edge the text would wrap and be measured too narrow.
      tip.style.left = tip.style.top = "0";
      // Beside the point, on the side where there is room.
      const box = plot.getBoundingClientRect();
      const [x, y] = [box.left + point[0] * box.width, box.top + point[1] * box.height];
      const right = x + 14 + tip.offsetWidth <= innerWidth - 8;
      const left = right ? x + 14 : Math.max(8, x - 14 - tip.offsetWidth);
      const top = y + 14 + tip.offsetHeight <= innerHeight - 8 ? y + 14 : y - 14 - tip.offsetHeight;
      tip.style.left = `${Math.max(8, Math.min(left, innerWidth - 8 - tip.offsetWidth))}px`;
      tip.style.top = `${Math.max(8, top)}px`;
    }

    function nearest(event) {
      const box = plot.getBoundingClientRect();
      let least = REACH_PIXELS;
      let found = null;
      data.series.forEach((one, s) =>
        one.points.forEach(([left, top], p) => {
          const across = box.left + left * box.width - event.clientX;
          const distance = Math.hypot(across, box.top + top * box.height - event.clientY);
          if (distance < least) [least, found] = [distance, [s, p]];
        }),
      );
      if (!found) return hideAll();
      [series, index] = found;
      show();
    }

    function step(event) {
      const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
      if (event.key === "Escape") return hideAll();
      if (!(event.key in moves) || !data.series.length) return;
      event.preventDefault();
      const [down, along] = moves[event.key];
      const wrap = (value, count) => (value + count) % count;
      series = wrap(series + down, data.series.length);
      const { points } = data.series[series];
      index = index < 0 ? 0 : wrap(Math.min(index, points.length - 1) + along, points.length);
      show();
    }

    plot.addEventListener("pointermove", (event) => event.pointerType !== "touch" && nearest(event));
    plot.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && hideAll());
    plot.addEventListener("click", nearest);
    plot.addEventListener("keydown", step);
    plot.addEventListener("blur", hideAll);
  }

  document.querySelectorAll(".plot").forEach(attach);
  addEventListener("scroll", hideAll, { passive: true });
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const one of opened) one.open = true;
  });
  addEventListener("afterprint", () => opened.forEach((one) => (one.open = false)));
})();

// Put into a copy of the report before its own script: finds out, in the browser, what tests ask for.
"use strict";
const errors = [];
addEventListener("error", (event) => errors.push(String(event.message)));
addEventListener("unhandledrejection", (event) => errors.push(String(event.reason)));
for (const level of ["error", "warn"]) console[level] = (...words) => errors.push(words.join(" "));

const name = (element) =>
  `${element.tagName}.${element.className} ${element.textContent.trim().slice(0, 40)}`;
const box = (element) => element.getBoundingClientRect();
const inScrollBox = (element) => element.closest(".scroll, pre");

function tooWide() {
  return [...document.querySelectorAll("main *")]
    .filter((one) => !inScrollBox(one) && box(one).right > innerWidth + 1)
    .map(name);
}

function clipped() {
  // Text that is wider than its box and cannot be scrolled to.
  return [...document.querySelectorAll("h1, h2, h3, p, td, th, dt, dd, li, summary, figcaption, code")]
    .filter((one) => box(one).width && !one.closest("pre") && one.scrollWidth > one.clientWidth + 1)
    .filter((one) => getComputedStyle(one).display !== "inline")
    .map(name);
}

function overlapping() {
  const found = [];
  for (const list of document.querySelectorAll("main, details[open], tbody, dl, figure, nav ul")) {
    const shown = [...list.children].filter((one) => box(one).width && box(one).height);
    shown.slice(1).forEach((next, index) => {
      const [a, b] = [box(shown[index]), box(next)];
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 1 && down > 1) found.push(`${name(shown[index])} | ${name(next)}`);
    });
  }
  for (const row of document.querySelectorAll("table:not(.cards) tr")) {
    [...row.children].slice(1).forEach((cell, index) => {
      if (box(row.children[index]).right > box(cell).left + 1) found.push(name(cell));
    });
  }
  return found;
}

function tip() {
  const one = document.getElementById("tip");
  if (one.hidden) return null;
  const terms = [...one.querySelectorAll("dt")].map((term) => term.textContent);
  const values = [...one.querySelectorAll("dd")].map((value) => value.textContent);
  const { left, right, top, bottom } = box(one);
  return {
    fields: Object.fromEntries(terms.map((term, index) => [term, values[index]])),
    head: one.firstChild.textContent,
    inside: left >= 0 && right <= innerWidth && top >= 0 && bottom <= innerHeight,
  };
}

function hover(plot) {
  const data = JSON.parse(plot.querySelector("script").textContent);
  const places = [];
  data.series.forEach((one, s) => one.points.forEach((point, p) => places.push([s, p, point])));
  const [, , point] = places[Math.floor(places.length / 2)];
  plot.scrollIntoView({ block: "center", behavior: "instant" });
  const area = box(plot);
  const at = {
    bubbles: true,
    clientX: area.left + point[0] * area.width,
    clientY: area.top + point[1] * area.height,
  };
  const send = (type, more) => plot.dispatchEvent(new PointerEvent(type, { ...at, ...more }));
  const press = (key) => plot.dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true }));
  send("pointermove", { pointerType: "mouse" });
  const byMouse = tip();
  send("pointerleave", { pointerType: "mouse" });
  const afterMouse = tip();
  send("click", { pointerType: "touch" });
  const byTouch = tip();
  press("ArrowRight");
  const byKey = tip();
  press("ArrowDown");
  const bySeries = tip();
  press("Escape");
  const afterKey = tip();
  return {
    figure: plot.closest("figure").id,
    point,
    row: point[4] === null ? null : data.rows[point[4]],
    ...{ byMouse, afterMouse, byTouch, byKey, bySeries, afterKey },
  };
}

function luminance(colour) {
  const [r, g, b] = colour.match(/[\d.]+/g).map((part) => {
    const share = part / 255;
    return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrasts() {
  const paper = luminance(getComputedStyle(document.body).backgroundColor);
  const least = {};
  for (const selector of ["p", "a", "td", "figcaption", ".good", ".bad", ".odd", "summary"]) {
    for (const one of document.querySelectorAll(selector)) {
      const ink = luminance(getComputedStyle(one).color);
      const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
      least[selector] = Math.min(ratio, least[selector] ?? ratio);
    }
  }
  return least;
}

function printing() {
  const closed = () => document.querySelectorAll("details:not([open])").length;
  const before = closed();
  dispatchEvent(new Event("beforeprint"));
  const during = closed();
  const wide = tooWide();
  const lapping = overlapping();
  dispatchEvent(new Event("afterprint"));
  return { before, during, after: closed(), wide, lapping };
}

addEventListener("load", () => {
  const result = {
    width: innerWidth,
    scrollWidth: document.scrollingElement.scrollWidth,
    fetched: performance.getEntriesByType("resource").map((entry) => entry.name.slice(0, 60)),
    figures: [...document.querySelectorAll("figure img")].map((image) => ({
      ...{ name: image.closest("figure").id, width: box(image).width, height: box(image).height },
      drawn: image.complete && image.naturalWidth > 0,
    })),
    formulas: [...document.querySelectorAll("math")].map((one) => [box(one).width, box(one).height]),
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
    tooWide: tooWide(),
    clipped: clipped(),
    overlapping: overlapping(),
    contrasts: contrasts(),
    printing: printing(),
    hovers: [...document.querySelectorAll(".plot")].map(hover),
    errors,
  };
  parent.postMessage(JSON.stringify(result), "*");
});

"use strict";
// What the scripts of all pages share; the script of a page follows below.

// Numbers: log-odds move with the prevalence by Bayes' rule; the shares of each true class above a threshold stay.
const logit = (p) => Math.log(p) - Math.log1p(-p);
const expit = (z) => (z < 0 ? Math.exp(z) / (1 + Math.exp(z)) : 1 / (1 + Math.exp(-z)));
const unpacked = (text) => new Float64Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
const cut = (t) => logit(t) - 2 * Number.EPSILON * (1 + Math.abs(Math.log(t)) + Math.abs(logit(t))); // a tie up to rounding is above
const countFrom = (sorted, least) => {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < least) low = middle + 1; else high = middle;
  }
  return sorted.length - low;
};
const nearest = (list, value) => list.reduce((best, each, i) => (Math.abs(Math.log(each / value)) < Math.abs(Math.log(list[best] / value)) ? i : best), 0);

// Limits of 95 %. A group is {weight, hits, rows, effective}: of `rows` rows `hits` are flagged; `effective` is the number of
// independent rows that they are worth, by default all. Weights of groups are those of the shares in a mean.
const Z = 1.959963984540054;
const wilson = (share, rows) => {
  const spread = Z * Math.sqrt((share * (1 - share)) / rows + (Z / (2 * rows)) ** 2), whole = 1 + Z * Z / rows, middle = share + Z * Z / (2 * rows);
  return [(middle - spread) / whole, (middle + spread) / whole];
};
// The weighted mean of shares, each with Wilson's limits; their distances are added in squares (MOVER).
const meanShare = (groups) => {
  let value = 0, below = 0, above = 0, all = 0;
  for (const { weight = 1, hits, rows, effective = rows } of groups) {
    const share = hits / rows, [low, high] = wilson(share, effective);
    all += weight;
    value += weight * share;
    below += (weight * (share - low)) ** 2;
    above += (weight * (high - share)) ** 2;
  }
  return [value, Math.max(0, value - Math.sqrt(below)), Math.min(all, value + Math.sqrt(above))];
};
// The ratio of two such means, such as a likelihood ratio: on the log scale, each around its mean with half a row added to both
// sides, so that nobody or everybody flagged has a logarithm too.
const ratio = (groups, others) => {
  const [upper, lower] = [groups, others].map((each) => {
    const [value, ...ends] = meanShare(each), half = ({ hits, rows, effective = rows }) => ((hits / rows) * effective + 0.5) / (effective + 1);
    return { value, middle: Math.log(each.reduce((sum, one) => sum + (one.weight ?? 1) * half(one), 0)), low: Math.log(ends[0]), high: Math.log(ends[1]) };
  });
  const distance = upper.middle - lower.middle;
  const low = distance - Math.hypot(upper.middle - upper.low, lower.high - lower.middle);
  const high = distance + Math.hypot(upper.high - upper.middle, lower.middle - lower.low);
  return around(upper.value / lower.value, Math.exp(low), Math.exp(high));
};
const around = (value, low, high) => (Number.isNaN(value) ? [value, NaN, NaN] : [value, Math.min(value, low), Math.max(value, high)]);
const map = ([value, low, high], f) => { const ends = [f(low), f(high)]; return [f(value), Math.min(...ends), Math.max(...ends)]; };
const others = (groups) => groups.map(({ hits, rows, ...rest }) => ({ ...rest, rows, hits: rows - hits }));

// Every figure at prevalence π, as [value, low, high]; `own` is the group of the positive class, `rest` those of the others.
const figuresAt = (own, rest, pi) => {
  const tpr = meanShare([own]), fpr = meanShare(rest);
  const lrPositive = ratio([own], rest), lrNegative = ratio(others([own]), others(rest));
  const posterior = (lr) => (lr === Infinity ? 1 : (pi * lr) / (pi * lr + 1 - pi));
  return {
    tpr, tnr: map(fpr, (f) => 1 - f), lrPositive, lrNegative,
    ppv: map(lrPositive, posterior), npv: map(lrNegative, (lr) => 1 - posterior(lr)),
    flagged: meanShare([{ ...own, weight: pi }, ...rest.map((each) => ({ ...each, weight: (1 - pi) * (each.weight ?? 1) }))]),
    found: map(tpr, (t) => pi * t), missed: map(tpr, (t) => pi * (1 - t)),
    alarms: map(fpr, (f) => (1 - pi) * f), spared: map(fpr, (f) => (1 - pi) * (1 - f)),
  };
};

// The same from one class's data as `slider.one_against_rest` gives it: log-odds at `rate`, moved to π, flagged from risk t on.
const unpackedSides = (one) => [one.own, ...one.rest].forEach((side) => (side.odds = unpacked(side.odds)));
const figuresOf = ({ rate, own, rest }, pi, t) => {
  const least = cut(t) - (logit(pi) - logit(rate)), flagged = (side) => ({ ...side, hits: countFrom(side.odds, least), rows: side.odds.length });
  return figuresAt(flagged(own), rest.map(flagged), pi);
};

// Words: as rightloss.card.words has them.
const percent = (p) => {
  if (!Number.isFinite(p)) return "–";
  const rest = 100 * Math.min(Math.abs(p), Math.abs(1 - p)), [fewest, digits] = p > 0.5 ? [1, 2] : [0, 3];
  if (rest > 0 && rest < 0.9999e-4) return p > 0.5 ? ">99.9999 %" : "<0.0001 %";
  const places = rest ? Math.max(fewest, digits - 1 - Math.floor(Math.log10(rest))) : 0, text = (100 * p).toFixed(places);
  return `${places ? text.replace(/\.?0+$/, "") : text} %`.replace("-", "−");
};
const share = (p) => {
  const whole = Math.round(1 / p), slack = +whole.toPrecision(1) === whole ? 0.005 : whole < 1e5 ? 1e-6 : 0;
  if (whole >= 5 && Math.abs(whole * p - 1) < slack) return `1 in ${whole.toLocaleString("en")}`;
  return whole > 1e6 ? `1 in ${(+whole.toPrecision(2)).toLocaleString("en")}` : percent(p);
};
const number = (n, digits = 3) => {
  if (!Number.isFinite(n)) return Number.isNaN(n) ? "–" : n > 0 ? "∞" : "−∞";
  const size = Math.abs(n), text = size >= 10 ** (digits - 1) ? Math.round(size).toLocaleString("en") : String(+size.toPrecision(digits));
  return n < 0 ? `−${text}` : text;
};
const people = (n) => (!Number.isFinite(n) ? "–" : n > 0 && n < 0.5 ? "<1" : Math.round(n).toLocaleString("en"));
const crowd = (rate) => 10 ** Math.max(3, Math.ceil(Math.log10(4 / rate) - 1e-9));
const limits = ([, low, high], words) => {
  if (Number.isNaN(low)) return "";
  let [first, last] = [words(low), words(high)];
  if (first === last && words === people) [first, last] = [number(low, 2), number(high, 2)];
  return first === last ? last : `${last.endsWith(" %") ? first.replace(/ %$/, "") : first} to ${last}`;
};
const withLimits = (figure, words) => words(figure[0]) + (limits(figure, words) && ` (${limits(figure, words)})`);

// Elements: text is only ever set as text.
const at = (id) => document.getElementById(id);
const pageData = () => JSON.parse(at("page-data").textContent);
const element = (name, attributes = {}, ...children) => {
  const found = /^(svg|path|line|text|g|circle|rect)$/.test(name) ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
  found.append(...children);
  return found;
};
// Fill an element with a figure: its value, and the limits below; unrounded in data attributes.
const show = (id, figure, words) => {
  const found = at(id);
  Object.assign(found.dataset, { value: figure[0], low: figure[1], high: figure[2] });
  found.replaceChildren(words(figure[0]), ...(limits(figure, words) ? [element("span", { class: "range" }, limits(figure, words))] : []));
};
// A range control over a list of values, which `start` gives: what it is at stands beside it, and is what a screen reader says.
const slider = (id, words, moved) => {
  const input = at(id);
  let values = [];
  const say = () => {
    at(`${id}-shown`).textContent = words(values[input.value]);
    input.setAttribute("aria-valuetext", words(values[input.value]));
  };
  input.addEventListener("input", () => { say(); moved(); });
  return {
    get value() { return values[input.value]; },
    start(list, value) { values = list; input.max = list.length - 1; input.value = nearest(list, value); say(); },
  };
};
// Place the vertical line of a plot at a value of its horizontal axis, and hide it if that is beyond the ends.
const moveMarker = (plot, value) => {
  const { scale, low, high, left, right } = plot.dataset, on = { linear: (v) => +v, log: Math.log, "log-odds": logit }[scale];
  const place = (on(value) - on(low)) / (on(high) - on(low)), x = (+left + place * (right - left)).toFixed(1);
  const within = place > -1e-6 && place < 1 + 1e-6, attributes = { x1: x, x2: x, visibility: within ? "visible" : "hidden" };
  for (const [name, each] of Object.entries(attributes)) plot.querySelector(".marker").setAttribute(name, each);
};

// Tables that scroll can be reached by the keyboard, others need not.
if (typeof ResizeObserver !== "undefined") {
  const reachable = ({ target }) => (target.scrollWidth > target.clientWidth + 1 ? target.setAttribute("tabindex", "0") : target.removeAttribute("tabindex"));
  const watched = new ResizeObserver((entries) => entries.forEach(reachable));
  document.querySelectorAll(".wide").forEach((each) => watched.observe(each));
}

// Folded sections: open all, by a link to something inside, and in print.
{
  const every = () => [...document.querySelectorAll("details")], button = at("open-all");
  const say = () => (button.textContent = every().every((each) => each.open) ? "Close all" : "Open all");
  if (button) {
    button.hidden = false;
    button.addEventListener("click", () => {
      const open = !every().every((each) => each.open);
      every().forEach((each) => (each.open = open));
    });
    every().forEach((each) => each.addEventListener("toggle", say));
  }
  const reveal = () => {
    const target = at(location.hash.slice(1));
    if (!target) return;
    for (let each = target.closest("details"); each; each = each.parentElement.closest("details")) each.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  reveal();
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = every().filter((each) => !each.open);
    closed.forEach((each) => (each.open = true));
  });
  addEventListener("afterprint", () => closed.forEach((each) => (each.open = false)));
}

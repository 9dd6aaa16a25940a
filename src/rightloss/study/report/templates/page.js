"use strict";
(() => {
  // Folded sections: open all, by a link to something inside, and in print.
  const every = () => [...document.querySelectorAll("details")];
  const button = document.getElementById("open-all");
  const say = () => {
    button.textContent = every().every((each) => each.open) ? "Close all" : "Open all";
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    const open = !every().every((each) => each.open);
    every().forEach((each) => (each.open = open));
    say();
  });
  every().forEach((each) => each.addEventListener("toggle", say));
  const reveal = () => {
    const target = document.getElementById(location.hash.slice(1));
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
})();
(() => {
  const source = document.getElementById("slider-data");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const at = (id) => document.getElementById(id);
  const controls = { panel: at("panel"), trained: at("trained"), prevalence: at("prevalence"), threshold: at("threshold") };
  const people = 10000;
  const dashes = ["", "7 4", "9 3 2 3", "2 4", "10 3 2 3 2 3", "5 2"];
  const marks = ["M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0", "M-4-4h8v8h-8z", "M0-5L5 4H-5z", "M0-5L5 0 0 5-5 0z", "M0 5L5-4H-5z", "M-5-5L5 5M5-5L-5 5"];

  // Numbers: as rightloss.metrics has them.
  const logit = (p) => Math.log(p) - Math.log1p(-p);
  const cut = (t) => logit(t) - 2 * Number.EPSILON * (1 + Math.abs(Math.log(t)) + Math.abs(logit(t)));
  const unpacked = (text) => new Float64Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
  const countFrom = (sorted, least) => {
    let low = 0, high = sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] < least) low = middle + 1; else high = middle;
    }
    return sorted.length - low;
  };
  const worth = (tpr, fpr, pi, t) => ({
    ppv: (pi * tpr) / (pi * tpr + (1 - pi) * fpr),
    npv: ((1 - pi) * (1 - fpr)) / ((1 - pi) * (1 - fpr) + pi * (1 - tpr)),
    tpr, tnr: 1 - fpr,
    benefit: pi * tpr - (1 - pi) * fpr * (t / (1 - t)),
    found: pi * tpr, missed: pi * (1 - tpr), alarms: (1 - pi) * fpr, spared: (1 - pi) * (1 - fpr),
  });
  const figures = (method, from, pi, t) => {
    const least = cut(t) - (logit(pi) - logit(from)), malignant = countFrom(method.malignant, least), benign = countFrom(method.benign, least);
    return { ...worth(malignant / method.malignant.length, benign / method.benign.length, pi, t), counts: { malignant, benign } };
  };

  // Words.
  const oneIn = (share) => {
    const whole = Math.round(1 / share);
    return share <= 0.2 && Math.abs(whole * share - 1) < 0.02 ? `1 in ${whole.toLocaleString("en")}` : `${+(100 * share).toPrecision(3)} %`;
  };
  const percent = (p) => {
    const rest = 100 * Math.min(p, 1 - p);
    if (Number.isNaN(p)) return "–";
    if (rest < 1e-12) return `${Math.round(100 * p)} %`;
    return `${(100 * p).toFixed(Math.max(1, (p > 0.5 ? 1 : 2) - Math.floor(Math.log10(rest))))} %`;
  };
  const number = (n) => {
    const size = Math.abs(n);
    const text = size >= 9.95 ? Math.round(size).toLocaleString("en") : size >= 1 ? size.toFixed(1) : size ? size.toPrecision(2) : "0";
    return n < 0 ? `−${text}` : text;
  };

  const range = (counts) => {
    const low = Math.min(...counts), high = Math.max(...counts);
    return (low === high ? [low] : [low, high]).map((each) => each.toLocaleString("en")).join(" to ");
  };

  const listed = (counts) => {
    const texts = counts.map((each) => each.toLocaleString("en"));
    if (texts.length < 2 || texts.length > 6) return range(counts);
    return `${texts.slice(0, -1).join(", ")} and ${texts[texts.length - 1]}`;
  };

  // Elements: text is only ever set as text.
  const element = (name, attributes = {}, ...children) => {
    const found = /^(svg|path|line|text|g)$/.test(name) ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
    found.append(...children);
    return found;
  };
  const colour = (i) => `var(--line-${i % 6})`;
  const curveStyle = (i) => `stroke:${colour(i)};stroke-dasharray:${dashes[i % 6] || "none"}`;
  const mark = (i, x, y) => element("path", { d: marks[i % 6], transform: `translate(${x} ${y})`, style: `fill:${i % 6 === 5 ? "none" : colour(i)};stroke:${colour(i)}` });
  const swatch = (i) => element("svg", { class: "swatch", viewBox: "0 0 38 12", "aria-hidden": "true" },
    element("path", { d: "M0 6H38", "stroke-width": 2, style: curveStyle(i) }), mark(i, 19, 6));
  const everybody = "1 3", nobody = "none";
  const faint = (dash) => element("svg", { class: "swatch chart", viewBox: "0 0 38 12", "aria-hidden": "true" }, element("path", { class: "compare", d: "M0 6H38", "stroke-dasharray": dash }));
  const cell = (name, value, text) => element("td", { "data-figure": name, "data-value": value }, text);

  const options = (select, labels) => select.replaceChildren(...labels.map((label, i) => element("option", { value: i }, label)));
  const panel = () => data.panels[controls.panel.value];
  const column = () => panel().columns[controls.trained.value];
  const nearest = (grid, value) => grid.reduce((best, each, i) => (Math.abs(Math.log(each / value)) < Math.abs(Math.log(grid[best] / value)) ? i : best), 0);

  const rows = (shown, pi, t) => {
    const names = ["ppv", "npv", "tpr", "tnr"];
    const row = (label, found, kind) => element("tr", { class: kind }, element("th", { scope: "row" }, ...label),
      ...names.map((name) => cell(name, found[name], percent(found[name]))), cell("benefit", people * found.benefit, number(people * found.benefit)));
    return [
      ...shown.map(({ name, found }, i) => row([swatch(i), name], found, "method")),
      row([faint(everybody), "acting on everybody"], worth(1, 1, pi, t), "faint"),
      row([faint(nobody), "acting on nobody"], worth(0, 0, pi, t), "faint"),
    ];
  };
  const moved = ({ name, found }) => element("tr", {}, element("th", { scope: "row" }, name),
    cell("found", people * found.found, number(people * found.found)), cell("alarms", people * found.alarms, number(people * found.alarms)), cell("ppv", found.ppv, percent(found.ppv)));
  const confusion = ({ name, found }) => {
    const line = (title, ...names) => element("tr", {}, element("th", { scope: "row" }, title), ...names.map((each) => cell(each, people * found[each], number(people * found[each]))));
    const head = ["", "malignant", "benign"].map((title) => element("th", title ? { scope: "col" } : {}, title));
    return element("table", {}, element("caption", {}, name), element("thead", {}, element("tr", {}, ...head)),
      element("tbody", {}, line("acted on", "found", "alarms"), line("left alone", "missed", "spared")));
  };

  // Charts over prevalence. `value` maps figures to the axis, NaN leaves a gap.
  const chart = (host, shown, pi, compared, value, low, ticks) => {
    const width = Math.max(280, host.clientWidth), height = 280, left = 46, top = 14, bottom = height - 34, right = width - 16;
    const grid = data.prevalences, first = Math.log(grid[0]), last = Math.log(grid[grid.length - 1]);
    const x = (rate) => left + ((Math.log(rate) - first) / (last - first)) * (right - left);
    const y = (v) => bottom - ((Math.max(low, v) - low) / (1 - low)) * (bottom - top);
    const path = (points) => points.map(([rate, v], i) => (Number.isNaN(v) ? "" : `${i && !Number.isNaN(points[i - 1][1]) ? "L" : "M"}${x(rate).toFixed(1)} ${y(v).toFixed(1)}`)).join("");
    const parts = ticks.map((v) => element("g", {}, element("line", { class: "tick", x1: left, x2: right, y1: y(v), y2: y(v) }),
      element("text", { x: left - 8, y: y(v) + 4, "text-anchor": "end" }, v < 0 ? `−${-v * 100} %` : `${v * 100} %`)));
    for (const rate of [1e-4, 1e-3, 0.01, 0.1, 0.5])
      parts.push(element("text", { x: x(rate), y: bottom + 20, "text-anchor": "middle" }, `${+(100 * rate).toPrecision(3)} %`));
    for (const [dash, points] of compared) parts.push(element("path", { class: "compare", "stroke-dasharray": dash, d: path(points) }));
    shown.forEach(({ curve }, i) => {
      const points = curve.map((found, j) => [grid[j], value(found, grid[j])]);
      parts.push(element("path", { class: "curve", style: curveStyle(i), d: path(points) }));
      points.forEach(([rate, v], j) => { if (j % 13 === (2 * i + 4) % 13 && v > low) parts.push(mark(i, x(rate), y(v))); });
    });
    parts.push(element("line", { class: "marker", x1: x(pi), x2: x(pi), y1: top, y2: bottom }));
    host.replaceChildren(element("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, ...parts));
  };

  const draw = () => {
    const pi = data.prevalences[controls.prevalence.value], t = data.thresholds[controls.threshold.value], from = column().rate;
    const shown = column().methods.map((method) => ({
      name: method.name,
      benign: method.benign.length,
      malignant: method.malignant.length,
      found: figures(method, from, pi, t),
      curve: data.prevalences.map((rate) => figures(method, from, rate, t)),
    }));
    const needless = (1 - t) / t;
    at("prevalence-shown").textContent = oneIn(pi);
    at("prevalence-hint").textContent = `Nets were told to expect ${column().label}; trained on ${panel().mix}.`;
    at("threshold-shown").textContent = `${+(100 * t).toPrecision(3)} %`;
    at("threshold-hint").textContent = `A missed malignant nodule counts as much as ${(+needless.toPrecision(2)).toLocaleString("en")} needless action${needless.toPrecision(2) === "1.0" ? "" : "s"}.`;
    controls.prevalence.setAttribute("aria-valuetext", oneIn(pi));
    controls.threshold.setAttribute("aria-valuetext", `${+(100 * t).toPrecision(3)} percent`);
    const { name, benign, found } = shown[0];
    const tested = column().seeds > 1 ? `predictions (${column().seeds} seeds for each test nodule)` : "test nodules";
    const behind = (side) => `${listed(shown.map((each) => each.found.counts[side]))} of ${range(shown.map((each) => each[side]))} ${side}`;
    at("counts").textContent = `From ${behind("malignant")} and ${behind("benign")} ${tested}${shown.length > 1 ? ", by row" : ""}; differences of a few nodules are noise.`;
    const spared = `: the test had no false alarm among ${benign.toLocaleString("en")} benign nodules. With one it would be ${percent(worth(found.tpr, 1 / benign, pi, t).ppv)}`;
    const share = `Of those acted on, ${percent(found.ppv)} are malignant (PPV)${found.alarms ? "" : spared}.`;
    at("spoken").textContent = `Where ${oneIn(pi)}${oneIn(pi).endsWith("%") ? " of nodules are" : " nodules is"} malignant, acting from ${+(100 * t).toPrecision(3)} % on, ${name} ` +
      `acts on ${number(people * (found.found + found.alarms))} of ${people.toLocaleString("en")} people and finds ${number(people * found.found)} ` +
      `of the ${(+(people * pi).toPrecision(3)).toLocaleString("en")} malignant.${Number.isNaN(found.ppv) ? "" : ` ${share}`}`;
    at("moved").replaceChildren(...shown.map(moved));
    at("values").replaceChildren(...rows(shown, pi, t));
    at("confusions").replaceChildren(...shown.map(confusion));
    const grid = data.prevalences;
    chart(at("ppv-chart"), shown, pi, [[everybody, grid.map((rate) => [rate, rate])]], (f) => f.ppv, 0, [0, 0.25, 0.5, 0.75, 1]);
    chart(at("benefit-chart"), shown, pi,
      [[nobody, grid.map((rate) => [rate, 0])], [everybody, grid.map((rate) => [rate, worth(1, 1, rate, t).benefit / rate])]],
      (f, rate) => f.benefit / rate, -0.5, [-0.5, 0, 0.5, 1]);
  };

  const choosePanel = () => {
    options(controls.trained, panel().columns.map((each) => each.label));
    controls.trained.value = panel().columns.length - 1;
    draw();
  };
  for (const each of data.panels.flatMap((one) => one.columns).flatMap((one) => one.methods))
    for (const side of ["benign", "malignant"]) each[side] = unpacked(each[side]);
  options(controls.panel, data.panels.map((each) => each.title));
  for (const name of ["prevalence", "threshold"]) {
    controls[name].addEventListener("input", draw);
  }
  controls.panel.addEventListener("change", choosePanel);
  controls.trained.addEventListener("change", draw);
  const rates = data.panels[0].columns.map((each) => each.rate);
  controls.prevalence.value = nearest(data.prevalences, rates[rates.length - 1]);
  controls.threshold.value = nearest(data.thresholds, 0.01);
  choosePanel();
  addEventListener("resize", draw);
  at("slider-more").addEventListener("toggle", draw); // a closed section has no width
  addEventListener("beforeprint", draw);
})();

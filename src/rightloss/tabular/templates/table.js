"use strict";
(() => {
  const data = JSON.parse(document.getElementById("slider-data").textContent);
  const at = (id) => document.getElementById(id);
  const controls = { focus: at("focus"), prevalence: at("prevalence"), threshold: at("threshold") };

  // Numbers: log-odds of the class in focus move with the prevalence by Bayes' rule; shares of each true class stay.
  const logit = (p) => Math.log(p) - Math.log1p(-p);
  const expit = (z) => (z < 0 ? Math.exp(z) / (1 + Math.exp(z)) : 1 / (1 + Math.exp(-z)));
  const unpacked = (text) => new Float64Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
  const shareFrom = (sorted, least) => {
    let low = 0, high = sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] < least) low = middle + 1; else high = middle;
    }
    return (sorted.length - low) / sorted.length;
  };
  const figures = (focus, pi, t) => {
    const least = logit(t) - 1e-12 - (logit(pi) - logit(focus.rate));
    const tpr = shareFrom(focus.own, least);
    const fpr = focus.rest.reduce((sum, each) => sum + each.weight * shareFrom(each.odds, least), 0);
    const alarms = pi * tpr + (1 - pi) * fpr;
    return {
      ppv: (pi * tpr) / alarms,
      npv: ((1 - pi) * (1 - fpr)) / (1 - alarms),
      recall: tpr, specificity: 1 - fpr,
      alarms: 1000 * alarms, found: 1000 * pi * tpr, missed: 1000 * pi * (1 - tpr),
    };
  };

  // Words.
  const oneIn = (share) => {
    const whole = Math.round(1 / share);
    return share <= 0.2 && Math.abs(whole * share - 1) < 0.005 ? `1 in ${whole.toLocaleString("en")}` : percent(share);
  };
  const percent = (p) => (Number.isFinite(p) ? `${+(100 * p).toPrecision(p > 0.99 && p < 1 ? 4 : 3)} %` : "–");
  const count = (n) => (n >= 100 ? String(Math.round(n)) : String(+n.toPrecision(3)));
  const focus = () => data.focus[controls.focus ? controls.focus.value : 0];
  const set = (name, value, text) => {
    const found = at(name);
    found.textContent = text;
    found.dataset.value = value;
  };

  const draw = () => {
    const chosen = focus(), pi = chosen.prevalences[controls.prevalence.value], t = data.thresholds[controls.threshold.value];
    const found = figures(chosen, pi, t);
    at("prevalence-shown").textContent = oneIn(pi);
    at("threshold-shown").textContent = percent(t);
    controls.prevalence.setAttribute("aria-valuetext", oneIn(pi));
    controls.threshold.setAttribute("aria-valuetext", percent(t));
    for (const name of ["ppv", "npv", "recall", "specificity"]) set(name, found[name], percent(found[name]));
    for (const name of ["alarms", "found", "missed"]) set(name, found[name], count(found[name]));
    chosen.people.forEach((odds, i) => {
      const risk = expit(odds + logit(pi) - logit(chosen.rate));
      set(`risk-${i}`, risk, percent(risk));
      set(`file-${i}`, chosen.uncorrected[i], percent(chosen.uncorrected[i]));
    });
    at("spoken").textContent = `Where ${oneIn(pi)} is ${chosen.label}: of 1,000 rows, ${count(found.alarms)} are flagged from a risk of ${percent(t)} on; ` +
      `${count(found.found)} of the ${count(1000 * pi)} that are ${chosen.label} are found.`;
  };
  const start = () => {
    const chosen = focus();
    controls.prevalence.max = chosen.prevalences.length - 1;
    controls.prevalence.value = chosen.prevalences.indexOf(chosen.rate);
    controls.threshold.value = chosen.threshold;
    for (const each of document.querySelectorAll(".focus-label")) each.textContent = chosen.label;
    draw();
  };
  for (const each of data.focus) {
    each.own = unpacked(each.own);
    for (const one of each.rest) one.odds = unpacked(one.odds);
  }
  for (const name of ["prevalence", "threshold"]) controls[name].addEventListener("input", draw);
  if (controls.focus) controls.focus.addEventListener("change", start);
  at("slider").hidden = false;
  start();
})();

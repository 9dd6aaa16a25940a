
// The card: figures at each threshold are stored with their limits; those at another prevalence follow from them.
// The same people are flagged at every prevalence, so sensitivity, specificity and likelihood ratios stay.
const three = (rows, i) => {
  const [value, low, high] = rows.map((row) => row[i]);
  if (value !== null) return [value, low ?? NaN, high ?? NaN];
  return low !== null && high === null ? [Infinity, low, Infinity] : [NaN, NaN, NaN];
};
const PER_PERSON = ["ppv", "npv", "flagged", "found", "false_alarms", "missed", "rest"];
const cardFigures = (stored, i, pi) => {
  const own = Object.fromEntries(["sensitivity", "specificity", "lr_plus", "lr_minus"].map((name) => [name, three(stored[name], i)]));
  if (pi === stored.rate) return { ...own, ...Object.fromEntries(PER_PERSON.map((name) => [name, three(stored[name], i)])) };
  const posterior = (ratio) => (ratio === Infinity ? 1 : (pi * ratio) / (pi * ratio + 1 - pi));
  const found = map(own.sensitivity, (s) => pi * s), alarms = map(own.specificity, (s) => (1 - pi) * (1 - s));
  const flagged = found[0] + alarms[0], spread = (end) => Math.hypot(found[end] - found[0], alarms[end] - alarms[0]);
  return {
    ...own, found, false_alarms: alarms, missed: map(own.sensitivity, (s) => pi * (1 - s)),
    rest: map(own.specificity, (s) => (1 - pi) * s),
    flagged: [flagged, flagged - spread(1), flagged + spread(2)],
    ppv: map(own.lr_plus, posterior), npv: map(own.lr_minus, (ratio) => 1 - posterior(ratio)),
  };
};
// Whether flagging these people is better than flagging nobody and than flagging everybody, if a missed case weighs as much as
// `weight` false alarms; "nobody" and "everybody" are what is better.
const helps = (found, pi, weight) => {
  const least = (1 - pi) / pi / weight, [plus, plusLow, plusHigh] = found.lr_plus, [minus, minusLow, minusHigh] = found.lr_minus;
  if (Number.isNaN(plus) || Number.isNaN(minus)) return "same";
  if (plusLow > least && least > minusHigh) return "yes";
  return plusHigh < least ? "nobody" : minusLow > least ? "everybody" : "unclear";
};
const WEIGHTS = [0.1, 0.2, 0.5, 1, 2, 3, 5, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000, 2000, 3000, 5000, 1e4, 3e4, 1e5, 3e5, 1e6];
const weightsAround = (own) => [...new Set([...WEIGHTS.filter((each) => each <= Math.max(1000, 30 * own)), own])].sort((a, b) => a - b);
// Whole numbers with the same sum, by the largest remainders.
const whole = (parts, total) => {
  const each = parts.map(Math.floor), order = parts.map((part, i) => i).sort((a, b) => each[a] - parts[a] - (each[b] - parts[b]));
  for (const i of order.slice(0, total - each.reduce((a, b) => a + b))) each[i] += 1;
  return each;
};

if (at("dots")) {
  const data = pageData(), KINDS = ["found", "false_alarms", "rest", "missed"];
  let chosen = data.start, moved, saying;
  const stored = () => data.answers[chosen].slider;
  const elsewhere = (t, from, to) => expit(logit(t) + logit(to) - logit(from)); // the risk at another prevalence
  const shownRisk = (t) => percent(elsewhere(t, stored().rate, prevalence.value));
  const falseAlarms = (w) => `${number(w)} false alarm${number(w) === "1" ? "" : "s"}`;
  const prevalence = slider("prevalence", (pi) => [...new Set([percent(pi), share(pi)])].join(", "), () => moved());
  const threshold = slider("threshold", (t) => shownRisk(t), () => moved());
  const weight = slider("weight", falseAlarms, () => moved());

  const picture = (counts) => {
    let start = 0;
    KINDS.forEach((name, k) => {
      let path = "";
      for (let i = start; i < start + counts[k]; i++) path += `M${10 * Math.floor(i / 25) + 5} ${10 * (i % 25) + 5}h0`;
      start += counts[k];
      for (const each of at("dots").querySelectorAll(`.${name}, .${name}-inside`)) each.setAttribute("d", path);
    });
  };
  const sentence = ([found, alarms, , missed], of, term) => {
    const bold = (text) => element("strong", {}, text), one = missed === 1;
    at("lead").replaceChildren(
      `Of ${of.toLocaleString("en")} people, `, bold(people(found + alarms)), ` are flagged for ${term}; `, bold(people(found)),
      ` of these have it. `, bold(people(missed)), ` who ${one ? "has it is" : "have it are"} missed.`,
    );
  };
  const VERDICTS = {
    yes: ["Helps here: ", "better than flagging nobody, and better than flagging everybody"],
    nobody: ["Does not help here: ", "flagging nobody is better"],
    everybody: ["Does not help here: ", "flagging everybody is better"],
    same: ["Does not help here: ", "it is the same as flagging nobody, or everybody"],
    unclear: ["Cannot tell: ", "in view of the intervals, flagging nobody or everybody may be as good"],
  };
  // The threshold on the page that is nearest to the best one for a weight, 1/(1 + weight) at the prevalence chosen.
  const best = () => {
    const { thresholds, rate } = stored();
    return thresholds[nearest(thresholds, elsewhere(1 / (1 + weight.value), prevalence.value, rate))];
  };
  moved = () => {
    const { slider: own, term } = data.answers[chosen], pi = prevalence.value, t = threshold.value, w = weight.value;
    const found = cardFigures(own, own.thresholds.indexOf(t), pi), of = crowd(pi);
    const parts = KINDS.map((name) => found[name][0]), counts = whole(parts.map((part) => of * part), of);
    picture(whole(parts.map((part) => 1000 * part), 1000));
    sentence(counts, of, term);
    const shownCounts = { flagged: counts[0] + counts[1], ...Object.fromEntries(KINDS.map((name, k) => [name, counts[k]])) };
    for (const [name, count] of Object.entries(shownCounts)) show(`people-${name}`, [count, of * found[name][1], of * found[name][2]], people);
    at("each").textContent = of > 1000 ? `: ${(of / 1000).toLocaleString("en")} of ${of.toLocaleString("en")} people` : "";
    for (const name of ["ppv", "npv", "sensitivity", "specificity"]) show(name, found[name], percent);
    for (const name of ["lr_plus", "lr_minus"]) show(name, found[name], number);
    threshold.start(own.thresholds, t); // says the risk at the prevalence chosen
    at("prevalence-hint").textContent = pi === own.rate ? "the card’s own" : `the card’s own: ${share(own.rate)}; taken as known exactly`;
    at("threshold-hint").textContent = pi === own.rate ? "" : `the same people stay flagged: a risk of ${percent(t)} where ${share(own.rate)} have it is one of ${shownRisk(t)} here`;
    at("weight-hint").textContent = `best threshold for this weight, if risks are calibrated: ${percent(1 / (1 + w))}`;
    const [head, tail] = VERDICTS[helps(found, pi, w)];
    at("verdict").replaceChildren(element("strong", {}, head), `${tail}, if a missed case weighs as much as ${falseAlarms(w)}.`);
    const near = Math.abs(logit(elsewhere(best(), own.rate, pi)) + Math.log(w)) < 0.3; // else the best is not on this page
    at("best").textContent = `Flag from ${shownRisk(best())} on, ${near ? "the best" : "the nearest here to the best"} for this weight`;
    at("best").hidden = best() === t;
    clearTimeout(saying);
    saying = setTimeout(() => (at("said").textContent = `${at("lead").textContent} ${at("verdict").textContent}`), 400);
    const section = at(`answer-${chosen}`);
    moveMarker(section.querySelector(".values svg"), pi);
    moveMarker(section.querySelector(".benefit svg"), 1 / (1 + w));
  };
  const start = () => {
    const of = (id) => (at(id) ? +at(id).value : 0);
    chosen = of("model") * data.questions + of("question");
    document.querySelectorAll(".answer").forEach((each, i) => (each.hidden = i !== chosen));
    const { slider: own, term, notes, weight: ownWeight } = data.answers[chosen];
    at("condition").textContent = term;
    at("notes").hidden = !notes.length;
    at("notes").replaceChildren(...notes.map((note) => element("li", {}, note)));
    prevalence.start(own.prevalences, own.rate);
    threshold.start(own.thresholds, own.thresholds[own.start]);
    weight.start(weightsAround(ownWeight), ownWeight);
    moved();
  };
  for (const id of ["model", "question"]) at(id)?.addEventListener("change", start);
  if (at("question")) at("question").value = data.start;
  at("reset").addEventListener("click", start);
  at("best").addEventListener("click", () => { threshold.start(stored().thresholds, best()); moved(); at("threshold").focus(); });
  at("controls").hidden = false;
  start();
}

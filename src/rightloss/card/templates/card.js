
// The card: figures at each threshold are stored with their limits; those at another prevalence follow from them.
// The same people are flagged at every prevalence, so sensitivity, specificity and likelihood ratios stay.
const three = (rows, i) => {
  const [value, low, high] = rows.map((row) => row[i]);
  if (value !== null) return [value, low ?? NaN, high ?? NaN];
  return low !== null && high === null ? [Infinity, low, Infinity] : [NaN, NaN, NaN];
};
const PER_PERSON = ["ppv", "npv", "flagged", "found", "false_alarms", "missed"];
const cardFigures = (stored, i, pi) => {
  const own = Object.fromEntries(["sensitivity", "specificity", "lr_plus", "lr_minus"].map((name) => [name, three(stored[name], i)]));
  if (pi === stored.rate) return { ...own, ...Object.fromEntries(PER_PERSON.map((name) => [name, three(stored[name], i)])) };
  const posterior = (ratio) => (ratio === Infinity ? 1 : (pi * ratio) / (pi * ratio + 1 - pi));
  const found = map(own.sensitivity, (s) => pi * s), alarms = map(own.specificity, (s) => (1 - pi) * (1 - s));
  const flagged = found[0] + alarms[0], spread = (end) => Math.hypot(found[end] - found[0], alarms[end] - alarms[0]);
  return {
    ...own, found, false_alarms: alarms, missed: map(own.sensitivity, (s) => pi * (1 - s)),
    flagged: [flagged, flagged - spread(1), flagged + spread(2)],
    ppv: map(own.lr_plus, posterior), npv: map(own.lr_minus, (ratio) => 1 - posterior(ratio)),
  };
};
// Whether flagging these people is better than flagging nobody and than flagging everybody.
const helps = (found, pi, price) => {
  const least = price / (pi / (1 - pi)), [plus, plusLow, plusHigh] = found.lr_plus, [minus, minusLow, minusHigh] = found.lr_minus;
  if (Number.isNaN(plus) || Number.isNaN(minus)) return "no";
  if (plusLow > least && least > minusHigh) return "yes";
  return plusHigh < least || minusLow > least ? "no" : "unclear";
};
// Whole numbers with the same sum, by the largest remainders.
const whole = (parts, total) => {
  const each = parts.map(Math.floor), order = parts.map((part, i) => i).sort((a, b) => each[a] - parts[a] - (each[b] - parts[b]));
  for (const i of order.slice(0, total - each.reduce((a, b) => a + b))) each[i] += 1;
  return each;
};

if (at("dots")) {
  const data = pageData(), KINDS = ["found", "false_alarms", "missed", "rest"];
  let chosen = data.start, moved;
  const stored = () => data.answers[chosen].slider;
  const shownRisk = (t) => percent(expit(logit(t) + logit(prevalence.value) - logit(stored().rate)));
  const prevalence = slider("prevalence", share, () => moved());
  const threshold = slider("threshold", (t) => shownRisk(t), () => moved());

  const picture = (parts) => {
    let start = 0;
    whole(parts.map((part) => 1000 * part), 1000).forEach((count, k) => {
      let path = "";
      for (let i = start; i < start + count; i++) path += `M${10 * Math.floor(i / 25) + 5} ${10 * (i % 25) + 5}h0`;
      start += count;
      for (const each of at("dots").querySelectorAll(`.${KINDS[k]}, .${KINDS[k]}-inside`)) each.setAttribute("d", path);
    });
  };
  const sentence = (counts, of, term) => {
    const bold = (text) => element("strong", {}, text), one = counts[2] === 1;
    at("lead").replaceChildren(
      `${data.several ? `${term}: of` : "Of"} ${of.toLocaleString("en")} people, `, bold(people(counts[0] + counts[1])), " are flagged; ", bold(people(counts[0])),
      ` of these have it. `, bold(people(counts[2])), ` who ${one ? "has it is" : "have it are"} missed.`,
    );
  };
  const VERDICTS = {
    yes: ["Helps here: ", "better than flagging nobody, and better than flagging everybody"],
    no: ["Does not help here: ", "flagging nobody, or everybody, is at least as good"],
    unclear: ["Cannot tell: ", "in view of the intervals, flagging nobody or everybody may be as good"],
  };
  moved = () => {
    const { slider: own, term } = data.answers[chosen], pi = prevalence.value, t = threshold.value, i = own.thresholds.indexOf(t);
    const found = cardFigures(own, i, pi), of = crowd(pi), price = t / (1 - t);
    const parts = [found.found[0], found.false_alarms[0], found.missed[0]];
    parts.push(1 - parts[0] - parts[1] - parts[2]);
    const counts = whole(parts.map((part) => of * part), of);
    picture(parts);
    sentence(counts, of, term);
    const shownCounts = { flagged: counts[0] + counts[1], found: counts[0], false_alarms: counts[1], missed: counts[2] };
    for (const [name, count] of Object.entries(shownCounts)) show(`people-${name}`, [count, of * found[name][1], of * found[name][2]], people);
    at("people-rest").textContent = people(counts[3]);
    at("each").textContent = of > 1000 ? `: ${(of / 1000).toLocaleString("en")} of ${of.toLocaleString("en")} people` : "";
    for (const name of ["ppv", "npv", "sensitivity", "specificity"]) show(name, found[name], percent);
    for (const name of ["lr_plus", "lr_minus"]) show(name, found[name], number);
    threshold.start(own.thresholds, t); // says the risk at the prevalence chosen
    at("prevalence-hint").textContent = pi === own.rate ? "the card’s own" : `the card’s own: ${share(own.rate)}; taken as known exactly`;
    at("threshold-hint").textContent = pi === own.rate ? "" : `${percent(t)} at ${share(own.rate)}: the same people stay flagged`;
    const [head, tail] = VERDICTS[helps(found, pi, price)];
    at("verdict").replaceChildren(element("strong", {}, head), `${tail}, if a missed case weighs as much as ${number(1 / price)} false alarms.`);
    const section = at(`answer-${chosen}`);
    moveMarker(section.querySelector(".values svg"), pi);
    moveMarker(section.querySelector(".benefit svg"), t);
  };
  const start = () => {
    const of = (id) => (at(id) ? +at(id).value : 0);
    chosen = of("model") * data.questions + of("question");
    document.querySelectorAll(".answer").forEach((each, i) => (each.hidden = i !== chosen));
    const { slider: own } = data.answers[chosen];
    prevalence.start(own.prevalences, own.rate);
    threshold.start(own.thresholds, own.thresholds[own.start]);
    moved();
  };
  for (const id of ["model", "question"]) at(id)?.addEventListener("change", start);
  if (at("question")) at("question").value = data.start;
  at("reset").addEventListener("click", start);
  at("controls").hidden = false;
  start();
}

// The table report's slider.
{
  const data = pageData(), choice = at("focus"), focus = () => data.focus[choice ? choice.value : 0];
  const draw = () => {
    const chosen = focus(), pi = prevalence.value, t = threshold.value, found = figuresOf(chosen, pi, t), all = crowd(pi);
    const counted = (figure) => map(figure, (each) => all * each);
    for (const name of ["ppv", "npv", "tpr", "tnr"]) show(name, found[name], percent);
    for (const name of ["flagged", "found", "missed"]) {
      show(name, counted(found[name]), people);
      at(`${name}-label`).textContent = `${name} of ${all.toLocaleString("en")}`;
    }
    chosen.people.forEach((odds, i) => {
      show(`risk-${i}`, map(odds, (each) => expit(each + logit(pi) - logit(chosen.rate))), percent);
      show(`file-${i}`, chosen.uncorrected[i], percent);
    });
    const [flagged, ill] = [found.flagged, found.found].map((each) => withLimits(counted(each), people));
    at("spoken").textContent = `Where ${share(pi)} is ${chosen.label}: of ${all.toLocaleString("en")} rows, ${flagged} are flagged from a risk of ${percent(t)} on; ` +
      `${ill} of the ${people(Math.round(all * found.found[0]) + Math.round(all * found.missed[0]))} that are ${chosen.label} are found.`;
  };
  const prevalence = slider("prevalence", share, draw), threshold = slider("threshold", percent, draw);
  const start = () => {
    prevalence.start(focus().prevalences, focus().rate);
    threshold.start(data.thresholds, focus().threshold);
    for (const each of document.querySelectorAll(".focus-label")) each.textContent = focus().label;
    draw();
  };
  data.focus.forEach(unpackedSides);
  if (choice) choice.addEventListener("change", start);
  at("slider").hidden = false;
  start();
}

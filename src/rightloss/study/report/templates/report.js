// What the sliders of a study's report move: each loss at another prevalence and threshold.
{
  const data = pageData();
  const start = () => {
    const choose = (id, labels, last) => {
      at(id).replaceChildren(...labels.map((label, i) => element("option", { value: i }, label)));
      at(id).value = last ? labels.length - 1 : 0;
    };
    const column = () => data.panels[at("panel").value].columns[at("trained").value];
    // Patients, not nodules, are independent: the limits are for as many rows as there are patients.
    const group = (method, side, least) => ({ hits: countFrom(method[side], least), rows: method[side].length, effective: method.patients[side] });
    const benefit = (tpr, fpr, pi, t) => {
      const cost = (1 - pi) * (t / (1 - t)), value = pi * tpr[0] - cost * fpr[0];
      return [value, value - Math.hypot(pi * (tpr[0] - tpr[1]), cost * (fpr[2] - fpr[0])), value + Math.hypot(pi * (tpr[2] - tpr[0]), cost * (fpr[0] - fpr[1]))];
    };
    const figures = (method, pi, t) => {
      const least = cut(t) - (logit(pi) - logit(column().rate));
      const found = figuresAt(group(method, "malignant", least), [group(method, "benign", least)], pi);
      return { ...found, benefit: benefit(found.tpr, map(found.tnr, (each) => 1 - each), pi, t) };
    };
    const cell = (name, figure, words) => element("td", { "data-figure": name, "data-value": figure[0], "data-low": figure[1], "data-high": figure[2] },
      words(figure[0]), element("span", { class: "range" }, limits(figure, words)));
    const row = (name, found, many) => element("tr", {}, element("th", { scope: "row" }, name),
      ...["found", "alarms"].map((each) => cell(each, found[each].map((n) => many * n), people)),
      cell("benefit", found.benefit.map((n) => many * n), (n) => number(n)), ...["ppv", "npv"].map((each) => cell(each, found[each], percent)));
    const draw = () => {
      const pi = prevalence.value, t = threshold.value, many = crowd(pi), methods = column().methods;
      const shown = methods.map((method) => figures(method, pi, t)), sure = (n) => [n, NaN, NaN];
      const everybody = { found: sure(pi), alarms: sure(1 - pi), ppv: sure(pi), npv: sure(NaN), benefit: sure(pi - (1 - pi) * (t / (1 - t))) };
      at("moved-title").textContent = `Of ${people(many)} people, each with one nodule; below each figure, its 95 % interval`;
      at("moved").replaceChildren(...methods.map((method, i) => row(method.name, shown[i], many)), row("acting on everybody", everybody, many));
      at("threshold-hint").textContent = `A missed malignant nodule counts as much as ${number((1 - t) / t, 2)} needless actions; net benefit is malignant found minus needless actions at this rate.`;
      at("spoken").textContent = `Where ${share(pi)} of nodules is malignant, acting from ${percent(t)} on, ${methods[0].name} finds ${people(many * shown[0].found[0])} of ` +
        `${people(many * pi)} malignant nodules, with ${people(many * shown[0].alarms[0])} needless actions. Right if benign nodules look the same in both populations, and malignant ones too.`;
    };
    const prevalence = slider("prevalence", share, draw), threshold = slider("threshold", percent, draw);
    const choosePanel = () => {
      choose("trained", data.panels[at("panel").value].columns.map((each) => share(each.rate)), true);
      draw();
    };
    for (const method of data.panels.flatMap((panel) => panel.columns).flatMap((each) => each.methods))
      for (const side of ["benign", "malignant"]) method[side] = unpacked(method[side]);
    choose("panel", data.panels.map((each) => each.title), false);
    const rates = data.panels[0].columns.map((each) => each.rate);
    prevalence.start(data.prevalences, rates[rates.length - 1]);
    threshold.start(data.thresholds, 0.01);
    at("panel").addEventListener("change", choosePanel);
    at("trained").addEventListener("change", draw);
    choosePanel();
  };
  if (data.panels.length) start();
}

"""One small program for each extra, run by test_extras.py in an environment that has rightloss and that extra alone.

    python tests/smoke.py sklearn

It imports nothing of the tests, and uses each dependency that the extra names.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

import rightloss as rl

PREVALENCE = rl.Prevalence.binary(population=0.01)


def labelled(rows: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Equal classes, a standard deviation apart in each of three columns."""
    y = np.arange(rows) % 2
    return np.random.default_rng(0).normal(size=(rows, 3)) + y[:, None], y


def core() -> None:
    x, y = labelled()
    logit = (x - 0.5).sum(1)  # the log-odds of equal classes
    log_probs = -np.logaddexp(0, np.stack([logit, -logit], 1))
    found = rl.metrics.evaluate(rl.retarget(log_probs, 0.5, 0.01), y, PREVALENCE)
    assert found.skill.value > 0.1, found
    estimate = rl.shift.estimate_prevalence(log_probs, sampling=[0.5, 0.5], calibration="assumed")
    assert 0.4 < float(estimate.population[1]) < 0.6, estimate
    assert len(str(rl.check(rl.retarget(log_probs, 0.5, 0.01), y, PREVALENCE)).splitlines()) > 3


def torch() -> None:
    import torch

    x, y = map(torch.from_numpy, labelled())
    model, criterion = torch.nn.Linear(3, 2).double(), rl.InformationGainLoss(PREVALENCE)
    rl.start_at_prevalence(model, PREVALENCE)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(100):
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    assert rl.metrics.evaluate(torch.log_softmax(model(x), 1), y, PREVALENCE).skill.value > 0.1


def sklearn() -> None:
    from sklearn.model_selection import cross_val_score

    from rightloss.sklearn import InformationGainClassifier, PrevalenceCorrectedClassifier, prevalence_scorer

    x, y = labelled()
    for model in (InformationGainClassifier(population=0.01), PrevalenceCorrectedClassifier(population=0.01)):
        assert cross_val_score(model, x, y, scoring=prevalence_scorer(population=0.01)).mean() > -0.056  # answering π
    assert "x0" in str(InformationGainClassifier(population=0.01, penalty=None).fit(x, y).summary())


def boosting() -> None:
    import lightgbm as lgb
    import xgboost as xgb

    from rightloss.boosting import InformationGainObjective

    x, y = labelled(4000)
    objective, start = (
        InformationGainObjective(rl.Prevalence.from_labels(y, 0.01, evidence=0.5)),
        np.full(len(y), np.log(1 / 99)),
    )
    data = lgb.Dataset(x, y, init_score=start)
    found = {"lightgbm": lgb.train({"objective": objective, "verbosity": -1}, data, 20).predict(x)}
    rows = xgb.DMatrix(x, y, base_margin=start)
    params = {"objective": "binary:logistic", "base_score": 0.5}
    found["xgboost"] = xgb.train(params, rows, 20, obj=objective).predict(xgb.DMatrix(x), output_margin=True)
    for library, trees in found.items():
        assert 0.45 < np.mean(1 / (1 + np.exp(-np.asarray(trees)))) < 0.55, library  # in the training mix: from log-odds of 0


def table() -> None:
    x, y = labelled(1000)
    with tempfile.TemporaryDirectory() as folder:
        file, model, out = (Path(folder) / name for name in ("data.csv", "model", "predictions.parquet"))
        rows = [f"{a},{b},{c},{'yes' if label else 'no'}" for (a, b, c), label in zip(x.tolist(), y.tolist(), strict=True)]
        file.write_text("\n".join(["a,b,c,cancer", *rows]) + "\n", encoding="utf-8")
        target = ["--target", "cancer", "--positive", "yes"]
        assert command("check", file, *target, "--json")["classes"]
        command("fit", file, *target, "--population", "0.01", "--out", model, "--json")
        command("predict", model, file, "--out", out, "--json")
        assert command("evaluate", model, file, "--json")
        assert command("prevalence", model, file, "--json")
        assert out.exists()


def command(*arguments: object) -> dict:
    """Run `rightloss`, and return the JSON that it prints."""
    program = str(Path(sys.executable).with_name("rightloss"))
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def study() -> None:
    from rightloss.study.config import PRESETS

    program = str(Path(sys.executable).with_name("rightloss"))
    done = subprocess.run([program, "study", "quick", "--dry-run"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"{len(PRESETS['quick'].runs())} runs" in done.stdout


def fabric() -> None:
    from rightloss.study.training import Hardware

    found = Hardware().fabric("bf16-mixed")
    assert found is not None
    assert found.device.type == "cpu"


def bayes() -> None:
    import torch

    from rightloss.inference import effective_sample_size, laplace, log_posterior, nuts, sghmc

    x, y = map(torch.from_numpy, labelled(100))
    target = log_posterior(torch.nn.Linear(3, 2).double(), PREVALENCE)
    for posterior in (
        laplace(target, (x, y)),
        nuts(target, (x, y), draws=20, warmup=20),
        sghmc(target, (x, y), steps=200, warmup=100),
    ):
        assert torch.isfinite(posterior.predict(x).log_probs).all()
    assert (effective_sample_size(torch.randn(4, 100, 2)) > 10).all()


def lidc() -> None:
    nodules = rl.lidc.binary_set()
    assert len(nodules) == 1412
    assert nodules.volumes([0, 1]).shape == (2, 64, 64, 64)


def export() -> None:
    import onnxruntime
    import torch

    layer = rl.PrevalenceLayer(torch.nn.Linear(3, 2), PREVALENCE).eval()
    x, to = torch.from_numpy(labelled(4)[0]).float(), torch.tensor([0.9, 0.1])
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "layer.onnx")
        torch.onnx.export(layer, (x, to), file, dynamo=True)
        session = onnxruntime.InferenceSession(file)
        names = [each.name for each in session.get_inputs()]
        (found,) = session.run(None, dict(zip(names, (x.numpy(), to.numpy()), strict=True)))
        np.testing.assert_allclose(found, layer(x, to).detach().numpy(), atol=1e-5)


def ray() -> None:
    import ray as cluster

    cluster.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    assert cluster.get(cluster.remote(lambda: float(rl.retarget(np.log([[0.5, 0.5]]), 0.5, 0.1)[0, 1])).remote()) < 0
    cluster.shutdown()


PROGRAMS: dict[str, Callable[[], None]] = {
    **{"core": core, "torch": torch, "sklearn": sklearn, "boosting": boosting, "table": table, "study": study, "bayes": bayes},
    **{"lidc": lidc, "export": export, "ray": ray, "fabric": fabric},
}

if __name__ == "__main__":
    core()
    PROGRAMS[sys.argv[1]]()
    print(f"rightloss[{sys.argv[1]}]: ok")

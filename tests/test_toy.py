"""The toy study: its populations against independent integrals, its runs, its files."""

import csv
import io
import json
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from rightloss.study import FiveRatings, ToyConfig, TwoGaussians, run_toy
from rightloss.study.methods import DEFAULT, FULLY_LABELLED, METHODS
from rightloss.study.toy import study, table
from rightloss.study.toy.biases import BiasConfig, BiasFigures, BiasRow, BiasRun, run_seed
from rightloss.study.toy.population import BY_LABEL, Population
from rightloss.study.toy.study import FILES, Net, ToyFigures, ToyProblem, ToyRun
from rightloss.study.toy.table import COLUMNS, CONSTANT, NARROW, Results, findings

TINY = (
    Net("linear", hidden=0, examples=200, batch_size=20, steps=3, learning_rate=0.1),
    Net("MLP", hidden=3, examples=100, batch_size=20, steps=3, learning_rate=0.1),
)
POPULATIONS = [TwoGaussians(0.3), TwoGaussians(0.05), TwoGaussians(0.001), FiveRatings()]
ANY_POPULATION = pytest.mark.parametrize("population", POPULATIONS, ids=lambda population: population.title)


def tiny(seeds: int = 2) -> ToyConfig:
    biases = BiasConfig(seeds=seeds, examples=300, selections=(BY_LABEL,))
    return ToyConfig(seeds=seeds, positives=(0.05,), nets=TINY, test_examples=1_000, biases=biases)


@pytest.fixture(scope="module", autouse=True)
def pictures_in_words() -> Iterator[None]:
    """Drawing takes a second; tests of the picture itself are with the biases."""

    def save(rows: list[BiasRow], config: BiasConfig, paths: tuple[Path, ...]) -> None:
        for path in paths:
            path.write_text(str(rows))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "save_biases", save)
        yield


def contents(folder: Path) -> dict[str, bytes]:
    """Every file under `folder`, hidden ones too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished study. Look, but do not touch."""
    out = tmp_path_factory.mktemp("finished")
    run_toy(tiny(), out)
    return out


@pytest.fixture
def own(finished: Path, tmp_path: Path) -> Path:
    """The same, to do with as one likes."""
    return Path(shutil.copytree(finished, tmp_path / "own"))


def count_runs(monkeypatch: pytest.MonkeyPatch) -> list[ToyRun | BiasRun]:
    """A list that grows by each run that is done rather than read."""
    done, train = list[ToyRun | BiasRun](), study.run

    def counted(config: ToyRun) -> ToyFigures:
        done.append(config)
        return train(config)

    def counted_biases(config: BiasRun) -> list[BiasFigures]:
        done.append(config)
        return run_seed(config)

    monkeypatch.setattr(study, "run", counted)
    monkeypatch.setattr(study, "run_seed", counted_biases)
    return done


@pytest.mark.parametrize("positive", [0.3, 0.05, 0.001])
def test_the_best_log_likelihood_of_two_classes_equals_an_independent_integral(positive: float) -> None:
    mu = 0.8
    prior = {1: positive, 0: 1 - positive}

    def gain(t: float, label: int) -> float:
        """By densities along μ, rather than by log-odds."""
        joint = {c: prior[c] * norm.pdf(t, mu if c else -mu) for c in (0, 1)}
        return float(joint[label] * math.log(joint[label] / (joint[0] + joint[1])))

    expected = sum(quad(gain, -12, 12, args=(label,), epsabs=1e-13, epsrel=1e-13)[0] for label in (0, 1))
    assert TwoGaussians(positive).best_log_likelihood == pytest.approx(expected, abs=1e-10)


@pytest.mark.long
@ANY_POPULATION
def test_the_best_log_likelihood_is_that_of_the_true_probabilities_on_a_sample(population: Population) -> None:
    pi = population.prevalence.population
    x, y = population.sample(50_000, seed=17)
    by_class = population.log_probs(x)[np.arange(len(y)), y].reshape(len(pi), -1)
    error = math.sqrt((pi**2 * by_class.var(1)).sum() / by_class.shape[1])
    assert abs(pi @ by_class.mean(1) - population.best_log_likelihood) < 4 * error


def test_the_rating_population_has_the_prevalence_it_states() -> None:
    people, population, random = 400_000, FiveRatings(), np.random.default_rng(3)
    first, second = random.normal(size=(2, people))
    outputs = np.array(population.bias)[:, None] + np.array(population.weights) @ np.stack([first, second])
    rating = np.full(people, 2)
    left = np.ones(people, dtype=bool)
    for low, high, pair in ((0, 4, outputs[:2]), (1, 3, outputs[2:])):
        odds = np.exp(pair)
        share = odds / (1 + odds.sum(0))
        draw = random.uniform(size=people)
        rating[left & (draw < share[0])] = low
        rating[left & (draw > 1 - share[1])] = high
        left &= (draw >= share[0]) & (draw <= 1 - share[1])
    counted = np.bincount(rating, minlength=5) / people
    stated = population.prevalence.population
    assert (np.abs(counted - stated) < 4 * np.sqrt(stated * (1 - stated) / people)).all()
    assert stated == pytest.approx([0.07, 0.2, 0.45, 0.2, 0.08], abs=0.005)


def test_the_best_auc_is_that_of_the_true_log_odds_on_a_sample() -> None:
    population = TwoGaussians(0.05)
    x, y = population.sample(20_000, seed=4)
    score = population.log_probs(x)[:, 1]
    ranks = score.argsort().argsort().reshape(2, -1)
    within = ranks.argsort(1).argsort(1)
    placements = (ranks - within) / 20_000  # the share of the other class that is ranked below
    error = math.sqrt(placements.var(1).sum() / 20_000)
    assert abs(float(roc_auc_score(y, score)) - population.best_auc) < 4 * error
    assert population.best_auc == pytest.approx(0.87, abs=0.005)


@ANY_POPULATION
def test_a_sample_has_equal_classes_in_order_and_follows_its_seed(population: Population) -> None:
    x, y = population.sample(30, seed=5)
    assert y.tolist() == sorted(y.tolist())
    assert np.bincount(y).tolist() == [30] * population.prevalence.num_classes
    assert np.array_equal(x, population.sample(30, seed=5)[0])
    assert not np.array_equal(x, population.sample(30, seed=6)[0])


class Truth(nn.Module):
    """The outputs of the population itself, its bias moved by `shift`."""

    def __init__(self, population: Population, shift: float = 0.0) -> None:
        super().__init__()
        self.population, self.shift = population, shift

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.population, TwoGaussians):
            return torch.from_numpy(self.population.log_probs(x.double().numpy())) + torch.tensor([0.0, self.shift])
        slopes = torch.tensor(self.population.weights, dtype=torch.float64)
        return x[:, :2].double() @ slopes.T + torch.tensor(self.population.bias, dtype=torch.float64)


@ANY_POPULATION
def test_a_network_that_knows_the_truth_loses_nothing(population: Population) -> None:
    problem = ToyProblem(population, TINY[0], seed=0, test_examples=20_000)
    assert study._test(Truth(population), problem, corrected=False).lost == pytest.approx(0, abs=1e-12)


def test_the_truth_of_equal_classes_corrected_afterwards_loses_nothing() -> None:
    problem = ToyProblem(TwoGaussians(0.05), TINY[0], seed=0, test_examples=2_000)
    balanced = Truth(problem.population, shift=math.log(0.95 / 0.05))
    assert study._test(balanced, problem, corrected=True).lost == pytest.approx(0, abs=1e-6)
    assert study._test(balanced, problem, corrected=False).lost > 0.1


@ANY_POPULATION
def test_a_network_that_always_answers_the_prevalence_has_the_figures_of_that_row(
    population: Population,
) -> None:
    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return population.likelihood.starting_outputs(population.prevalence).expand(len(x), -1)

    figures = study._test(Constant(), ToyProblem(population, TINY[0], seed=0, test_examples=1_000), corrected=False)
    row = table.constant_rows(population)[1]
    assert row.method == CONSTANT
    assert figures.log_likelihood == pytest.approx(row.log_likelihood, abs=1e-12)
    assert figures.mean_prediction == pytest.approx(row.mean_prediction, abs=1e-12)
    assert figures.auc == row.auc
    assert figures.variance == pytest.approx(0, abs=1e-18)


@pytest.mark.long
def test_the_standard_error_is_the_spread_of_the_figure_over_test_sets() -> None:
    problems = [ToyProblem(TwoGaussians(0.3), TINY[0], seed, test_examples=400) for seed in range(200)]
    figures = [study._test(Truth(problem.population), problem, corrected=False) for problem in problems]
    spread = np.var([each.log_likelihood for each in figures], ddof=1)
    stated = np.mean([each.variance for each in figures])
    assert abs(spread / stated - 1) < 4 * math.sqrt(2 / 199)


@pytest.mark.parametrize("method", FULLY_LABELLED)
def test_a_run_is_a_function_of_its_config_and_leaves_the_process_as_it_was(method: str) -> None:
    config = ToyRun(ToyProblem(FiveRatings(), TINY[1], seed=1, test_examples=500), method)
    first = study.run(config)
    study._trained.cache_clear()
    study._examples.cache_clear()
    torch.rand(7)
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    assert study.run(config) == first
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.long
def test_no_example_is_used_twice_by_training_and_testing_or_by_two_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, examples = [], study._examples

    def recorded(population: Population, per_class: int, seed: int) -> tuple[Tensor, Tensor]:
        x, y = examples(population, per_class, seed)
        drawn.append(x)
        return x, y

    monkeypatch.setattr(study, "_examples", recorded)
    for seed in range(3):
        study.run(ToyRun(ToyProblem(FiveRatings(), TINY[0], seed, test_examples=500), DEFAULT))
    assert len(drawn) == 2 * 3
    assert len(torch.cat(drawn).unique(dim=0)) == sum(map(len, drawn))


def test_every_method_and_start_gives_figures_of_its_own_unless_its_starts_coincide() -> None:
    problem = ToyProblem(FiveRatings(), TINY[0], seed=0, test_examples=500)
    figures = {each: study.run(ToyRun(problem, *each)).log_likelihood for each in study.METHODS_AND_STARTS}
    for start in ("population", "equal"):  # the default loss is logit adjustment
        assert figures.pop(("logit-adjusted", start)) == figures["information-gain", start]
    assert len(set(figures.values())) == len(figures) == 2 * len(FULLY_LABELLED) - 4
    for method in ("plain", "corrected"):
        assert study.run(ToyRun(problem, method, "equal")).log_likelihood == figures[method, "population"]


@pytest.mark.long
def test_a_study_writes_its_files_and_every_row(own: Path) -> None:
    (own / "results.json").unlink()
    results = run_toy(tiny(), own)
    assert sorted(name for name in contents(own) if not name.startswith("runs/")) == sorted(FILES)
    assert len(results.rows) == 2 * (2 + 2 * len(study.METHODS_AND_STARTS))
    lines = list(csv.DictReader(io.StringIO((own / "table.csv").read_text(encoding="utf-8"))))
    assert [line["method"] for line in lines] == [row.method for row in results.rows]
    assert [float(line["log_likelihood"]) for line in lines] == pytest.approx(
        [row.log_likelihood for row in results.rows], rel=1e-5
    )
    report = (own / "report.md").read_text(encoding="utf-8")
    assert all(sentence in report for sentence in findings(results.rows, METHODS[DEFAULT].title))
    assert report.count("\n| ") == len(results.rows) + 2
    assert Results.read(own / "results.json") == results


def test_rows_are_means_over_their_own_seeds(finished: Path) -> None:
    config = tiny()
    rows = Results.read(finished / "results.json").rows
    problems = [ToyProblem(FiveRatings(), TINY[1], seed, config.test_examples) for seed in range(2)]
    figures = [study.run(ToyRun(problem, "weighted", "equal")) for problem in problems]
    (row,) = [row for row in rows if (row.prevalence, row.model, row.name) == ("5 ratings", "MLP", "weighted loss from equal")]
    assert row.log_likelihood_by_seed == [each.log_likelihood for each in figures]
    error = math.sqrt(figures[0].variance + figures[1].variance) / 2
    assert row.standard_error == pytest.approx(error)
    assert row.from_best == pytest.approx((row.log_likelihood - FiveRatings().best_log_likelihood) / error)


@pytest.mark.long
def test_a_study_that_lost_runs_does_those_again_and_ends_with_the_same_bytes(
    own: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in FILES:
        (own / name).unlink()
    lost = sorted((own / "runs").iterdir())[::5]
    for path in lost:
        path.unlink()
    done = count_runs(monkeypatch)
    run_toy(tiny(), own)
    assert sorted(config.file_name for config in done) == [path.name for path in lost]
    assert contents(own) == contents(finished)


@pytest.mark.long
@pytest.mark.parametrize("name", FILES)
def test_a_study_that_lost_a_table_makes_it_again_from_its_runs(
    name: str, own: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own / name).unlink()
    done = count_runs(monkeypatch)
    run_toy(tiny(), own)
    assert done == []
    assert contents(own) == contents(finished)


def test_a_finished_study_runs_and_writes_nothing(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stamps = {path: path.stat().st_mtime_ns for path in own.rglob("*")}
    done = count_runs(monkeypatch)
    assert run_toy(tiny(), own) == Results.read(own / "results.json")
    assert done == []
    assert {path: path.stat().st_mtime_ns for path in own.rglob("*")} == stamps


@pytest.mark.long
def test_a_study_with_more_seeds_keeps_the_runs_it_has(tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_toy(tiny(seeds=1), tmp_path)
    assert (tmp_path / "table.csv").read_bytes() != (finished / "table.csv").read_bytes()
    done = count_runs(monkeypatch)
    run_toy(tiny(seeds=2), tmp_path)
    assert {config.seed if isinstance(config, BiasRun) else config.problem.seed for config in done} == {1}
    assert contents(tmp_path) == contents(finished)


@pytest.mark.long
@pytest.mark.parametrize("stop_after", [1, 13])
def test_a_study_stopped_halfway_leaves_whole_files_and_goes_on(tmp_path: Path, finished: Path, stop_after: int) -> None:
    def stop(done: int, total: int, label: str) -> None:
        if done == stop_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_toy(tiny(), tmp_path, stop)
    left = contents(tmp_path)
    assert len(left) == stop_after
    assert all(json.loads(content)["figures"] for content in left.values())
    run_toy(tiny(), tmp_path)
    assert contents(tmp_path) == contents(finished)


@pytest.mark.long
def test_progress_counts_every_run(own: Path) -> None:
    (own / "results.json").unlink()
    seen: list[tuple[int, int, str]] = []
    run_toy(tiny(), own, lambda done, total, label: seen.append((done, total, label)))
    assert [done for done, _, _ in seen] == list(range(1, len(seen) + 1))
    assert {total for _, total, _ in seen} == {len(seen)} == {2 * 2 * 2 * len(study.METHODS_AND_STARTS) + 2}


def a_file_in_place_of_the_folder(out: Path) -> None:
    out.write_text("")


def foreign_results(out: Path) -> None:
    out.mkdir()
    (out / "results.json").write_text('{"study": "another"}')


def results_that_are_no_json(out: Path) -> None:
    out.mkdir()
    (out / "results.json").write_text("{")


def a_truncated_run(out: Path) -> None:
    for folder in ("runs", "figures"):
        (out / folder).mkdir(parents=True)
    (out / "runs" / tiny().runs()[0].file_name).write_text('{"config": {')


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (a_file_in_place_of_the_folder, "to be a folder"),
        (foreign_results, "choose another folder"),
        (results_that_are_no_json, "choose another folder"),
        (a_truncated_run, "delete it"),
    ],
)
def test_what_is_in_the_way_is_an_error_and_stays(prepare: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    prepare(tmp_path / "out")
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=message):
        run_toy(tiny(), tmp_path / "out")
    assert contents(tmp_path) == before


def test_no_seeds_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least 1 seed, but got 0"):
        ToyConfig(seeds=0)


@pytest.mark.parametrize(("width", "columns"), [(140, [*COLUMNS][2:]), (80, NARROW)])
def test_the_printed_table_fits_the_terminal_with_no_number_broken(
    width: int, columns: Sequence[str], finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    results = Results.read(finished / "results.json")
    table.print_results(results)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for each in results.rows:
        shown = table.cells(each)
        assert " ".join(shown[name] for name in columns) in lines


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_default_reaches_the_best_possible_and_cross_entropy_as_it_is_does_not(tmp_path: Path) -> None:
    default, plain = METHODS[DEFAULT].title, METHODS["plain"].title
    distances: dict[str, dict[str, float]] = {default: {}, plain: {}}
    for each in run_toy(ToyConfig(nets=(study.LINEAR,)), tmp_path).rows:
        if each.method in distances:
            assert each.from_best is not None
            distances[each.method][f"{each.prevalence} {each.start}"] = each.from_best
    assert len(distances[default]) == 2 * len(distances[plain]) == 8
    assert all(abs(distance) <= 3 for distance in distances[default].values()), distances
    assert all(distance < -30 for distance in distances[plain].values()), distances

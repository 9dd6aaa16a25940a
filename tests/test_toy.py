"""The toy study: its populations against independent integrals, its runs, its files, its table and sentences."""

import csv
import io
import json
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from members import assert_refused
from scipy.integrate import quad
from scipy.stats import norm
from sklearn.metrics import roc_auc_score
from study_work import contents
from torch import Tensor, nn

from rightloss.study import FiveRatings, ToyConfig, TwoGaussians, run_toy
from rightloss.study.methods import DEFAULT, FULLY_LABELLED, METHODS
from rightloss.study.toy import study, table
from rightloss.study.toy.biases import BiasConfig, BiasRow
from rightloss.study.toy.population import BY_LABEL, Population
from rightloss.study.toy.study import FILES, Net, ToyFigures, ToyProblem, ToyRun
from rightloss.study.toy.table import BEST, COLUMNS, CONSTANT, NARROW, Results, ToyRow

TINY = (
    Net("linear", hidden=0, examples=200, batch_size=20, steps=3, learning_rate=0.1),
    Net("MLP", hidden=3, examples=100, batch_size=20, steps=3, learning_rate=0.1),
)
ANY_POPULATION = pytest.mark.parametrize("population", [TwoGaussians(0.001), FiveRatings()], ids=lambda each: each.title)
TITLE, PLAIN = METHODS[DEFAULT].title, METHODS["plain"].title


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


def count_runs(monkeypatch: pytest.MonkeyPatch) -> list[ToyRun]:
    """A list that grows by each run that is done rather than read."""
    done, train = list[ToyRun](), study.run

    def counted(config: ToyRun) -> ToyFigures:
        done.append(config)
        return train(config)

    monkeypatch.setattr(study, "run", counted)
    return done


# Populations.


@pytest.mark.parametrize("positive", [0.3, 0.001])
def test_the_best_log_likelihood_of_two_classes_equals_an_independent_integral(positive: float) -> None:
    mu, prior = 0.8, {1: positive, 0: 1 - positive}

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
    assert y.tolist() == sorted(y.tolist())
    assert np.bincount(y).tolist() == [50_000] * len(pi)
    by_class = population.log_probs(x)[np.arange(len(y)), y].reshape(len(pi), -1)
    error = math.sqrt((pi**2 * by_class.var(1)).sum() / by_class.shape[1])
    assert abs(pi @ by_class.mean(1) - population.best_log_likelihood) < 4 * error
    assert np.array_equal(population.sample(30, seed=5)[0], population.sample(30, seed=5)[0])
    assert not np.array_equal(population.sample(30, seed=5)[0], population.sample(30, seed=6)[0])


def test_the_rating_population_has_the_prevalence_it_states() -> None:
    people, population, random = 400_000, FiveRatings(), np.random.default_rng(3)
    features = random.normal(size=(2, people))
    outputs = np.array(population.bias)[:, None] + np.array(population.weights) @ features
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
    placements = (ranks - ranks.argsort(1).argsort(1)) / 20_000  # the share of the other class that is ranked below
    error = math.sqrt(placements.var(1).sum() / 20_000)
    assert abs(float(roc_auc_score(y, score)) - population.best_auc) < 4 * error
    assert population.best_auc == pytest.approx(0.87, abs=0.005)


# Runs.


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


class Constant(nn.Module):
    """Always answers π."""

    def __init__(self, population: Population) -> None:
        super().__init__()
        self.outputs = population.likelihood.starting_outputs(population.prevalence)

    def forward(self, x: Tensor) -> Tensor:
        return self.outputs.expand(len(x), -1)


@ANY_POPULATION
def test_the_truth_loses_nothing_and_a_network_that_knows_nothing_is_the_constant_row(population: Population) -> None:
    problem = ToyProblem(population, TINY[0], seed=0, test_examples=2_000)
    assert study._test(Truth(population), problem, corrected=False).lost == pytest.approx(0, abs=1e-12)
    figures, row = study._test(Constant(population), problem, corrected=False), table.constant_rows(population)[1]
    assert row.method == CONSTANT
    assert figures.log_likelihood == pytest.approx(row.log_likelihood, abs=1e-12)
    assert figures.mean_prediction == pytest.approx(row.mean_prediction, abs=1e-12)
    assert figures.auc == row.auc
    assert figures.variance == pytest.approx(0, abs=1e-18)


def test_the_truth_of_equal_classes_corrected_afterwards_loses_nothing() -> None:
    problem = ToyProblem(TwoGaussians(0.05), TINY[0], seed=0, test_examples=2_000)
    balanced = Truth(problem.population, shift=math.log(0.95 / 0.05))
    assert study._test(balanced, problem, corrected=True).lost == pytest.approx(0, abs=1e-6)
    assert study._test(balanced, problem, corrected=False).lost > 0.1


@pytest.mark.long
def test_the_standard_error_is_the_spread_of_the_figure_over_test_sets() -> None:
    problems = [ToyProblem(TwoGaussians(0.3), TINY[0], seed, test_examples=400) for seed in range(200)]
    figures = [study._test(Truth(problem.population), problem, corrected=False) for problem in problems]
    spread = np.var([each.log_likelihood for each in figures], ddof=1)
    assert abs(spread / np.mean([each.variance for each in figures]) - 1) < 4 * math.sqrt(2 / 199)


@pytest.mark.parametrize("method", ["information-gain", "published-network", "corrected"])
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


# Files.


def test_a_study_writes_its_files_and_every_row_as_means_over_its_own_seeds(finished: Path) -> None:
    results, config = Results.read(finished / "results.json"), tiny()
    assert sorted(name for name in contents(finished) if not name.startswith("runs/")) == sorted(FILES)
    assert len(results.rows) == 2 * (2 + 2 * len(study.METHODS_AND_STARTS))
    lines = list(csv.DictReader(io.StringIO((finished / "table.csv").read_text(encoding="utf-8"))))
    assert [line["method"] for line in lines] == [row.method for row in results.rows]
    own = [row.log_likelihood for row in results.rows]
    assert [float(line["log_likelihood"]) for line in lines] == pytest.approx(own, rel=1e-5)
    report = (finished / "report.md").read_text(encoding="utf-8")
    assert all(sentence in report for sentence in table.findings(results.rows, TITLE))
    assert report.count("\n| ") == len(results.rows) + 2
    problems = [ToyProblem(FiveRatings(), TINY[1], seed, config.test_examples) for seed in range(2)]
    figures = [study.run(ToyRun(problem, "weighted", "equal")) for problem in problems]
    names = ("5 ratings", "MLP", "weighted loss from equal")
    (row,) = [row for row in results.rows if (row.prevalence, row.model, row.name) == names]
    assert row.log_likelihood_by_seed == [each.log_likelihood for each in figures]
    error = math.sqrt(figures[0].variance + figures[1].variance) / 2
    assert row.standard_error == pytest.approx(error)
    assert row.from_best == pytest.approx((row.log_likelihood - FiveRatings().best_log_likelihood) / error)


@pytest.mark.long
def test_a_study_that_lost_files_ends_with_the_same_bytes(own: Path, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done, expected = count_runs(monkeypatch), contents(finished)
    seen: list[tuple[int, int, str]] = []
    for name in ("results.json", "figures/biases.svg"):
        (own / name).unlink()
        run_toy(tiny(), own, lambda *each: seen.append(each))
        assert (done, contents(own)) == ([], expected), name
    assert [number for number, _, _ in seen[: len(seen) // 2]] == list(range(1, len(seen) // 2 + 1))
    assert {total for _, total, _ in seen} == {len(seen) // 2} == {2 * 2 * 2 * len(study.METHODS_AND_STARTS) + 2}
    stamps = {path: path.stat().st_mtime_ns for path in own.rglob("*")}
    assert run_toy(tiny(), own) == Results.read(own / "results.json")
    assert {path: path.stat().st_mtime_ns for path in own.rglob("*")} == stamps, "a finished study writes nothing"
    lost = sorted((own / "runs").iterdir())[::5]
    for path in (*lost, own / "results.json"):
        path.unlink()
    run_toy(tiny(), own)
    assert sorted(config.file_name for config in done) == [path.name for path in lost]
    assert contents(own) == expected


@pytest.mark.long
def test_a_study_stopped_halfway_goes_on_and_grows(tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(done: int, total: int, label: str) -> None:
        if done == 13:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_toy(tiny(seeds=1), tmp_path, stop)
    left = contents(tmp_path)
    assert len(left) == 13
    assert all(json.loads(content)["figures"] for content in left.values())
    run_toy(tiny(seeds=1), tmp_path)
    assert (tmp_path / "table.csv").read_bytes() != (finished / "table.csv").read_bytes()
    done = count_runs(monkeypatch)
    run_toy(tiny(seeds=2), tmp_path)
    assert {config.problem.seed for config in done} == {1}
    assert contents(tmp_path) == contents(finished)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("", "", "to be a folder"),
        ("results.json", '{"study": "another"}', "choose another folder"),
        ("results.json", "{", "choose another folder"),
        (f"runs/{tiny().runs()[0].file_name}", '{"config": {', "delete it"),
    ],
    ids=["a file", "foreign results", "no JSON", "a truncated run"],
)
def test_what_is_in_the_way_is_an_error_and_stays(name: str, text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    before = contents(tmp_path)
    assert_refused(lambda: run_toy(tiny(), tmp_path / "out"), message)
    assert contents(tmp_path) == before


def test_no_seeds_is_an_error() -> None:
    assert_refused(lambda: ToyConfig(seeds=0), "at least 1 seed, but got 0")


# The table and the sentences.


def made_up(method: str, by_seed: list[float], start: str = "π") -> ToyRow:
    mean = sum(by_seed) / len(by_seed)
    return ToyRow("0.05", "linear", method, start, mean, 0.001, 0.0, None, 0.0, None, 0.05, by_seed, [])


def findings(*rows: ToyRow) -> list[str]:
    ends = [
        ToyRow("0.05", "any", name, "", value, None, None, None, 0.0, None, 0.05, [], [])
        for name, value in ((BEST, -0.1), (CONSTANT, -0.2))
    ]
    return table.findings([*ends, *rows], TITLE)


def test_the_sentences_count_where_the_default_is_clearly_ahead_and_behind_from_the_same_start() -> None:
    rows = [made_up(TITLE, [-0.15, -0.152]), made_up(PLAIN, [-0.19, -0.18]), made_up("rival", [-0.11, -0.1121])]
    assert findings(*rows)[0] == (
        f"The {TITLE} is clearly better than the other losses in 1 of 2 comparisons and clearly worse in 1."
    )
    assert "clearly worse in none." in findings(*rows[:2])[0]
    starts = [made_up(TITLE, [-0.1, -0.1]), made_up(TITLE, [-0.3, -0.3], start="equal")]
    starts += [made_up("rival", [-0.2, -0.2], start=start) for start in ("π", "equal", "both")]  # both: as from π
    assert "clearly better than the other losses in 2 of 3 comparisons and clearly worse in 1." in findings(*starts)[0]
    assert any("One seed does not tell" in each for each in findings(made_up(TITLE, [-0.1]), made_up(PLAIN, [-0.4])))


@pytest.mark.parametrize(("value", "worse"), [(-0.21, True), (-0.202, False), (-0.19, False)])
def test_the_sentences_name_what_is_worse_than_always_answering_the_prevalence(value: float, worse: bool) -> None:
    last = findings(made_up(TITLE, [-0.15, -0.15]), made_up(PLAIN, [value, value]))[-1]
    assert (f"Worse than {CONSTANT}: {PLAIN} from π (1 of 1)." == last) is worse
    assert (f"No method is worse than {CONSTANT}" in last) is not worse


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
        assert list(shown) == list(COLUMNS)
        assert " ".join(shown[name] for name in columns) in lines


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_default_reaches_the_best_possible_and_cross_entropy_as_it_is_does_not(tmp_path: Path) -> None:
    distances: dict[str, dict[str, float]] = {TITLE: {}, PLAIN: {}}
    for each in run_toy(ToyConfig(nets=(study.LINEAR,)), tmp_path).rows:
        if each.method in distances:
            assert each.from_best is not None
            distances[each.method][f"{each.prevalence} {each.start}"] = each.from_best
    assert len(distances[TITLE]) == 2 * len(distances[PLAIN]) == 8
    assert all(abs(distance) <= 3 for distance in distances[TITLE].values()), distances
    assert all(distance < -30 for distance in distances[PLAIN].values()), distances

"""The engine of the large comparisons: pure cells, runs that resume, pages that follow from what is stored, fair verdicts."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from torch.autograd import grad

import rightloss as rl

sys.path.append(str(Path(__file__).parent.parent))

from evidence import claim, data_sets, engine, losses, streams, unlabelled
from evidence.__main__ import COMPARISONS, comparison
from evidence.claim_scores import Scores, averaged, moved
from evidence.claim_tables import GUESS, LOGIT_ADJUSTED, Compared, median_interval, verdict
from evidence.nets import Kind
from evidence.pages import paired, table

PI = torch.tensor([[0.8, 0.2], [0.99, 0.01]])
STORED = [name for name in COMPARISONS if (engine.DOCS / f"{name}.parquet").exists()]


class Cell(NamedTuple):
    set: str
    draw: int


class OneByOne:
    """The study's engines, whose types are checked in tests, without processes."""

    def run(self, work: Any, groups: Any, report: Any) -> Iterator[tuple[int, list[bytes]]]:
        yield from ((number, work(group, lambda share: None)) for number, group in enumerate(groups))


class Toy:
    """A comparison of two cells' draws that notes what it runs, and stops before a draw on request."""

    def __init__(self) -> None:
        self.ran, self.stop = list[Cell](), -1
        self.comparison = engine.Comparison("toy", self.cells, self.run, self.tables)

    def cells(self) -> Iterator[Cell]:
        yield from (Cell(name, draw) for name in ("a", "b, c") for draw in range(3))

    def run(self, cell: Cell) -> list[dict[str, Any]]:
        if len(self.ran) == self.stop:
            raise KeyboardInterrupt
        self.ran.append(cell)
        return [{"method": name, "figure": np.random.default_rng(cell.draw).normal() + len(name)} for name in ("x", "y")]

    def tables(self, rows: pd.DataFrame) -> dict[str, str]:
        return {"means": table(["set", "mean"], [[name, f"{part['figure'].mean():.6f}"] for name, part in rows.groupby("set")])}


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    for name in ("HERE", "OUT", "DOCS"):
        monkeypatch.setattr(engine, name, tmp_path / name)
    for folder in (engine.HERE / "pages", engine.OUT, engine.DOCS):
        folder.mkdir(parents=True)
    (engine.HERE / "pages/toy.md").write_text("{{ made }}.\n\n{{ means }}\n", encoding="utf-8")
    return Toy()


def test_a_stopped_run_loses_nothing_and_a_rerun_does_only_what_is_missing(toy: Toy) -> None:
    toy.stop = 4
    with pytest.raises(KeyboardInterrupt):
        engine.execute(toy.comparison, [], OneByOne(), "command")
    assert not [*engine.DOCS.iterdir()]
    toy.stop = -1
    engine.execute(toy.comparison, [], OneByOne(), "command")
    assert toy.ran == [*toy.cells()]
    again, found = Toy(), engine.stored("toy", engine.DOCS)
    assert found.about["command"] == "command"
    assert found.about["seeds"] == "0 to 2"
    expected = [{**cell._asdict(), **row} for cell in again.cells() for row in again.run(cell)]
    pd.testing.assert_frame_equal(found.rows, pd.DataFrame(expected))
    page = (engine.DOCS / "toy.md").read_text(encoding="utf-8")
    assert again.comparison.page(found) == page
    assert page.startswith("Made by `command` at commit ")


def test_a_part_of_the_cells_is_kept_apart_from_the_documentation(toy: Toy) -> None:
    engine.execute(toy.comparison, ["set=b, c", "draw=0,2"], OneByOne(), "command")
    assert toy.ran == [Cell("b, c", 0), Cell("b, c", 2)]
    assert not [*engine.DOCS.iterdir()]
    with pytest.raises(ValueError, match="the fields are set, draw"):
        engine.execute(toy.comparison, ["set=c"], OneByOne(), "command")


@pytest.mark.long
def test_a_cell_is_a_function_of_its_key_alone() -> None:
    cell = unlabelled.Cell("breast cancer", "linear", 50, 1)
    first = unlabelled.run_evidence(cell)
    torch.manual_seed(7)
    assert unlabelled.run_evidence(cell) == first
    assert unlabelled.run_evidence(cell._replace(draw=2)) != first


@pytest.mark.parametrize("name", STORED)
def test_every_stored_result_yields_its_page(name: str) -> None:
    found = engine.stored(name)
    assert {"command", "commit", "seeds"} <= {*found.about}
    assert comparison(name).page(found) == (engine.DOCS / f"{name}.md").read_text(encoding="utf-8")


def two_classes(z: torch.Tensor) -> torch.Tensor:
    return torch.stack([torch.zeros_like(z), z], 1)


def test_losses_written_out_for_stacks_of_nets_have_the_librarys_gradients() -> None:
    y, pi = torch.arange(42) % 3, torch.tensor([[0.7, 0.2, 0.1], [0.9, 0.09, 0.01]])
    z = (2 * torch.randn(42, 3, 3, generator=torch.Generator().manual_seed(0))).requires_grad_()
    jobs = [losses.Job(name, 1, 0.0) for name in (LOGIT_ADJUSTED, "weighted", losses.GAIN)]
    (found,) = grad(losses.Stack(jobs, pi, torch.full((3,), 1 / 3)).losses(z, y).sum(), [z])
    known = rl.Prevalence(pi[1].tolist(), evidence=0.0)
    gain = rl.InformationGainLoss(known, marginal=rl.BatchMarginal())
    for place, loss in enumerate((rl.LogitAdjustedLoss(known), rl.WeightedLoss(known), gain)):
        logits = (z.detach()[:, place] + (pi[1] * 3).log()).requires_grad_()
        torch.testing.assert_close(found[:, place], *grad(loss(logits, y), [logits]))


@pytest.mark.parametrize(("kind", "value"), [("stream", 7.0), ("evidence", 3.0), ("paper", 0.0), ("paper", 1.0)])
def test_losses_with_unlabelled_rows_have_the_librarys_gradients(kind: str, value: float) -> None:
    generator, y = torch.Generator().manual_seed(0), torch.arange(40) % 2
    z, others = (3 * torch.randn(rows, generator=generator, dtype=torch.float64) for rows in (40, 70))
    ours = [each[:, None].clone().requires_grad_() for each in (z, others)]
    theirs = [two_classes(each).requires_grad_() for each in (z, others)]
    mean = others.sigmoid().mean()
    told, setting, q = torch.full((1,), 0.1).double(), torch.tensor([value]).double(), torch.stack([1 - mean, mean])[:, None]
    prevalence = rl.Prevalence.binary(0.1, evidence=value if kind == "paper" else 1.0)
    if kind == "stream":
        mine = streams.stream_loss(ours[0], y, ours[1], told, setting)
        loss: Any = rl.LogitAdjustedLoss(prevalence, unlabelled_weight=value, unlabelled_evidence=0.0)
    elif kind == "evidence":
        mine = streams.evidence_loss(ours[0], y, ours[1], told, setting, q)
        loss = rl.LogitAdjustedLoss(prevalence, unlabelled_evidence=value)
    else:
        mine = streams.paper_loss(ours[0], y, ours[1], told, setting, q)
        loss = rl.InformationGainLoss(prevalence, reference=prevalence.population, unlabelled_evidence=0.0)
    both = grad(mine.sum(), ours), grad(loss(theirs[0], y, unlabelled=theirs[1]), theirs)
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one[:, 0], other[:, 1])


@pytest.mark.parametrize("name", [LOGIT_ADJUSTED, "by uncertainty", "by x, half"])
def test_weights_that_depend_on_x_alone_leave_the_truth_a_stationary_point(name: str) -> None:
    positives = torch.tensor([1, 3, 6])  # of ten rows at each of three x
    y = torch.cat([(torch.arange(10) < count).long() for count in positives])
    z = torch.stack([torch.zeros(3), (positives / (10 - positives)).log()], 1).repeat_interleave(10, 0)
    own = z[:, None].clone().requires_grad_()
    stack = losses.Stack([losses.Job(name, 1, 0.0)], PI, torch.bincount(y) / len(y))
    (found,) = grad(stack.losses(own, y).sum(), [own])
    torch.testing.assert_close(found[:, 0].reshape(3, 10, 2).sum(1), torch.zeros(3, 2), atol=1e-7, rtol=0)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["linear", "MLP"])
def test_unlabelled_rows_of_no_weight_leave_the_path_of_logit_adjustment(kind: Kind) -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 2
    x, others = torch.randn(120, 4, generator=generator) + y[:, None], torch.randn(300, 4, generator=generator)
    kept = losses.fit(
        kind, losses.Rows(x, y, x, y, x, y, x, y, {}, PI[:1], PI[0]), [losses.Job(LOGIT_ADJUSTED, None, 1e-3)], 3, steps=40
    )
    draw = streams.Draw(x, y, x, y, others, x, y, 0.2)
    theirs = streams.fit(kind, draw, [streams.Job("stream", "0", 0.0, 0.2, 1e-3)], 3, steps=40).z_test[:, 0]
    odds = (kept.table(x)[:, 0, 1] - kept.table(x)[:, 0, 0] + np.log(0.2 / 0.8)).float()
    torch.testing.assert_close(odds, theirs, atol=1e-5, rtol=1e-5)


def test_corrections_written_for_the_claim_do_what_they_say() -> None:
    x, y, z = torch.zeros(100, 1), torch.arange(2).repeat_interleave(50), np.linspace(-20, 20, 41)
    scores = Scores(losses.Rows(x, y, x, y, x, y, x, y, {}, PI, PI[0]))
    plain, rows = -np.logaddexp(0, np.stack([z, -z], 1)), np.log(np.random.default_rng(0).dirichlet([2, 2, 2], 200))
    for name, limit in (("capped", np.log(51)), ("smoothed", np.log(52))):
        ratio = np.diff(scores.bounds[name](plain, 1), axis=1)[:, 0] - np.log(0.01 / 0.99)
        assert np.abs(ratio).max() == pytest.approx(limit, abs=1e-3)
    pi, rho = np.array([0.6, 0.37, 0.03]), np.full(3, 1 / 3)
    np.testing.assert_allclose(moved(rows, rho, pi), rl.retarget(rows, rho, pi), atol=1e-12)
    np.testing.assert_allclose(averaged(plain, np.zeros(41)), plain, atol=1e-6)


def test_cells_are_planned_where_every_class_has_rows_enough() -> None:
    assert [size for size in claim.MOST_VALID if claim.enough("TV churn", size)] == [50, 0]
    assert claim.with_share(np.array([0.6, 0.3, 0.1]), 0.01) == pytest.approx([0.66, 0.33, 0.01])


def test_a_data_set_with_other_rows_than_it_should_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(data_sets.load("breast cancer").y) == 569
    monkeypatch.setitem(data_sets.SOURCES, "cancer", data_sets.SOURCES["breast cancer"]._replace(counts=(357, 211)))
    with pytest.raises(AssertionError, match="expected"):
        data_sets.load("cancer")


def compared(**likelihood: list[float]) -> Compared:
    base = {LOGIT_ADJUSTED: [-0.30, -0.31, -0.29], "weighted": [-0.32, -0.33, -0.30]}
    values = {name: np.array(each) for name, each in {**base, **likelihood}.items()}
    figures = {"likelihood": values, "auc": {name: np.zeros(3) for name in values}}
    return Compared("a", "linear", 50, 0, 0.1, 0.1, -0.325, figures, (1,), np.zeros(3))


def test_a_verdict_counts_what_is_level_ahead_and_below_the_guess() -> None:
    rivals, both = (LOGIT_ADJUSTED, "weighted"), compared(better=[-0.27, -0.285, -0.26], worse=[-0.40, -0.41, -0.42])
    found = verdict([both], "better", rivals)
    assert (found.cells, found.level, found.ahead, found.won, found.lost, found.below_guess) == (1, 1, 1, 1, 0, 0)
    found = verdict([both], "worse", rivals)
    assert (found.level, found.ahead, found.won, found.lost, found.below_guess) == (0, 0, 0, 1, 1)
    assert both.difference("worse", GUESS)[0] == pytest.approx(-0.085)
    itself = verdict([compared()], LOGIT_ADJUSTED, rivals)  # no rival of itself
    assert (itself.level, itself.ahead) == (1, 1)
    assert np.isnan(verdict([], "better", rivals).gain)


def test_the_medians_interval_covers_it_and_errors_are_those_of_paired_differences() -> None:
    random = np.random.default_rng(0)
    for size in (8, 20):
        ends = [median_interval(random.normal(size=size)) for _ in range(500)]
        assert np.mean([low <= 0 <= high for low, _, high in ends]) > 0.95 - 3 * np.sqrt(0.95 * 0.05 / 500)
    assert paired([1.0, 2.0, 3.0]) == pytest.approx((2, 1 / np.sqrt(3), 3))

"""Patients who lose their labels: who they are, what reaches which loss, and what the report says of them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from members import assert_mean_is, assert_refused
from nodule_files import small_archive
from study_results import fake_study
from test_cli import invoke
from test_cli_study import asked
from test_study_training import SHORT, assert_same, group_of

import rightloss
from rightloss.lidc.splits import split_labels
from rightloss.study.config import PRESETS, Group, RunConfig, Source, StudyConfig, Training, label_draw
from rightloss.study.datasets import StudyData, check_sources, study_data
from rightloss.study.execute import run_study
from rightloss.study.methods import ADJUSTED, ADJUSTED_LABELLED, METHODS
from rightloss.study.report import write_report, write_tables
from rightloss.study.report.page import command, settings
from rightloss.study.results import RunResult, read_study
from rightloss.study.summary import Summary, summarise, wording
from rightloss.study.training import Hardware, loop, train_group
from rightloss.study.training.batches import Batches
from rightloss.study.training.candidates import Model

SHARE = 0.5
LEARNING = tuple(name for name, method in METHODS.items() if method.takes_unlabelled and method.marginal is None)
OTHERS = ("weighted", ADJUSTED_LABELLED, "corrected", "plain")
LOSSES = (*LEARNING, *OTHERS)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return small_archive(tmp_path_factory.mktemp("archive") / "discs.npz")


def unlabelled_group(source: Source, training: Training = SHORT, **choices: Any) -> Group:
    return group_of(source, training, **{"nets": ("mlp",), "unlabelled": SHARE, **choices})


def batches_of(group: Group, *rates: float) -> Batches:
    populations: dict[float | None, np.ndarray] = {rate: np.array([1 - rate, rate]) for rate in rates}
    data = study_data(group.source, group.runs[0].task)
    return Batches(data, None, group.runs[0], torch.device("cpu"), populations=populations)


class TestWhoLosesTheirLabels:
    names = np.array([f"P{row // 3}" for row in range(120)])
    rows = torch.arange(0, 120)[torch.arange(120) % 7 > 0]

    @pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.8, 0.99])
    def test_they_are_that_share_of_the_patients_and_no_patient_is_split(self, share: float) -> None:
        labelled, unlabelled = split_labels(self.rows, self.names, share, "seed")
        people = [set(self.names[part].tolist()) for part in (labelled, unlabelled)]
        assert not people[0] & people[1]
        assert len(people[1]) == round(share * 40)
        assert sorted([*labelled.tolist(), *unlabelled.tolist()]) == self.rows.tolist()

    def test_a_larger_share_adds_patients_and_releases_none(self) -> None:
        few, more = (set(split_labels(self.rows, self.names, share)[1].tolist()) for share in (0.3, 0.7))
        assert few < more

    def test_another_seed_chooses_others_and_the_order_of_the_rows_does_not_matter(self) -> None:
        first, again, other = (
            set(split_labels(rows, self.names, 0.5, seed)[1].tolist())
            for rows, seed in ((self.rows, "a"), (self.rows.flip(0), "a"), (self.rows, "b"))
        )
        assert first == again
        assert first != other

    def test_nobody_loses_a_label_at_a_share_of_zero_and_patients_need_no_names(self) -> None:
        labelled, unlabelled = split_labels(self.rows, None, 0.0)
        assert torch.equal(labelled, self.rows)
        assert len(unlabelled) == 0

    @pytest.mark.parametrize("share", [-0.1, 1.0, 80, float("nan"), True, "0.5"])
    def test_what_is_no_share_is_refused(self, share: Any) -> None:
        assert_refused(lambda: split_labels(self.rows, self.names, share), "share")


class TestTheGrid:
    @pytest.mark.long
    def test_without_unlabelled_patients_configs_and_names_of_files_are_what_they_were(self) -> None:
        for config in PRESETS.values():
            assert "unlabelled" not in config.to_dict()
            run = config.runs()[-1]
            new = ("unlabelled", "unlabelled_weight")
            content = {name: value for name, value in dataclasses.asdict(run).items() if name not in new}
            digest = hashlib.sha256(json.dumps([rightloss.__version__, content], sort_keys=True).encode()).hexdigest()
            assert run.key.endswith(f"-{digest[:12]}")
            assert "unlabelled" not in run.key + run.label
            assert run.to_dict() == content
            assert RunConfig.from_dict(content) == run

    def test_with_them_everything_is_named_by_their_share(self) -> None:
        configs = [StudyConfig("quick", unlabelled=share) for share in (0.0, 0.5, 0.8)]
        runs = [config.runs()[0] for config in configs]
        assert len({run.key for run in runs}) == 3
        assert "-80-unlabelled-" in runs[2].key
        assert "80 % unlabelled" in runs[2].label
        for config in configs:
            assert StudyConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
        assert RunConfig.from_dict(json.loads(json.dumps(runs[2].to_dict()))) == runs[2]

    @pytest.mark.parametrize("share", [-0.1, 1.0, 80, float("nan"), True, "0.5"])
    def test_a_share_that_is_none_is_refused_with_an_example(self, share: Any) -> None:
        assert_refused(lambda: StudyConfig("quick", unlabelled=share), f"got {share!r}.*such as 0.8")

    @pytest.mark.parametrize("weight", [-1, 0, 0.0, float("nan"), float("inf"), True, "3"])
    def test_a_weight_that_is_none_is_refused_with_an_example(self, weight: Any) -> None:
        assert_refused(lambda: StudyConfig("quick", unlabelled=0.8, unlabelled_weight=weight), f"got {weight!r}.*such as 3")

    def test_without_a_weight_names_of_files_are_what_they_were_and_with_one_only_of_losses_that_it_matters_to(self) -> None:
        losses = LOSSES
        plain, weighed = (StudyConfig("quick", losses=losses, unlabelled=0.8, unlabelled_weight=each) for each in (None, 3.0))
        assert "unlabelled_weight" not in plain.to_dict()
        assert StudyConfig.from_dict(json.loads(json.dumps(weighed.to_dict()))) == weighed
        for one, two in zip(plain.runs(), weighed.runs(), strict=True):
            content = {name: value for name, value in dataclasses.asdict(one).items() if name != "unlabelled_weight"}
            digest = hashlib.sha256(json.dumps([rightloss.__version__, content], sort_keys=True).encode()).hexdigest()
            assert one.key.endswith(f"-{digest[:12]}")
            assert (one == two) == (one.loss not in ("information-gain", ADJUSTED))
            if one != two:
                assert "-80-unlabelled-weight-3-" in two.key
                assert "80 % unlabelled, weight 3, " in two.label
                assert RunConfig.from_dict(json.loads(json.dumps(two.to_dict()))) == two

    @pytest.mark.parametrize(
        ("changes", "came"),
        [
            ({"losses": (ADJUSTED, ADJUSTED_LABELLED)}, "add --unlabelled 0.8, say, or take 'logit-adjusted'"),
            ({"unlabelled": 0.8, "losses": ("published", "published-network")}, "but got published-network"),
            ({"unlabelled_weight": 3.0}, "got 3 and none: add --unlabelled 0.8, say, or leave the weight out"),
            (
                {
                    "unlabelled": 0.8,
                    "nets": ("mlp",),
                    "minibatches": ("raw",),
                    "inferences": ("map", "laplace"),
                    "losses": ("published-running",),
                },
                "the loss 'published' with unlabelled patients, but got published-running",
            ),
        ],
    )
    def test_what_cannot_go_with_it_is_refused(self, changes: dict[str, Any], came: str) -> None:
        assert_refused(lambda: StudyConfig("quick", **changes), came)

    @pytest.mark.parametrize(
        ("share", "came"),
        [(0.95, "with labels: take a lower share"), (0.02, "without: take a higher share"), (0.7, "with labels, trains on")],
    )
    def test_a_share_that_leaves_a_class_or_a_minibatch_without_nodules_is_refused(
        self, source: Source, share: float, came: str
    ) -> None:
        large = dataclasses.replace(SHORT, batch_size=30)
        config = StudyConfig("quick", sources=(source,), folds=1, num_folds=4, unlabelled=share, training=large)
        assert_refused(lambda: check_sources(config), came)


class TestMinibatches:
    def test_labelled_ones_are_the_same_for_every_run_and_of_labelled_patients_alone(self, source: Source) -> None:
        group = unlabelled_group(source)
        alone, beside = batches_of(group), batches_of(group, 0.3, 0.001)
        for one, other in zip(alone, beside, strict=True):
            assert torch.equal(one.inputs.metadata, other.inputs.metadata)
            assert torch.equal(one.target, other.target)
            assert set(other.with_unlabelled) == {0.3, 0.001}
        patients = study_data(source, "binary").patients
        people = [set(patients[rows].tolist()) for rows in (alone.parts.train, alone.unlabelled, alone.parts.valid)]
        assert sum(map(len, people)) == len(set().union(*people))

    @pytest.mark.parametrize("rate", [0.5, 0.1, 0.01])
    def test_unlabelled_ones_come_at_the_prevalence_whatever_it_is_in_the_data(self, source: Source, rate: float) -> None:
        group = unlabelled_group(source, dataclasses.replace(SHORT, steps=400))
        batches = batches_of(group, rate)
        drawn = study_data(source, "binary").labels[batches._drawn[rate]]
        assert set(batches._drawn[rate].tolist()) <= set(batches.unlabelled.tolist())
        assert_mean_is(drawn.double(), rate)

    def test_after_the_labelled_rows_there_are_as_many_unlabelled_ones(self, source: Source) -> None:
        batches = batches_of(unlabelled_group(source), 0.3)
        for number, batch in enumerate(batches):
            labelled, unlabelled = batch.with_unlabelled[0.3].metadata.split(SHORT.batch_size)
            rows = batches._drawn[0.3].split(SHORT.batch_size)[number]
            assert torch.equal(labelled, batch.inputs.metadata)
            assert torch.equal(unlabelled, batches.metadata[rows])
            assert bool((batch.target >= 0).all())

    @pytest.mark.parametrize("task", ["binary", "rating"])
    def test_hidden_labels_are_erased_once_patients_are_drawn_and_no_others(self, source: Source, task: str) -> None:
        rates: dict[str, Any] = {"populations": (None,)} if task == "rating" else {}
        batches = batches_of(unlabelled_group(source, task=task, losses=("weighted",), **rates))
        hidden = torch.zeros(len(batches.target), dtype=torch.bool)
        hidden[batches.unlabelled] = True
        data = study_data(source, task)
        kept = data.votes if task == "rating" else data.labels
        assert torch.equal(batches.target[~hidden], kept[~hidden])
        assert bool((batches.target[hidden].isnan() if task == "rating" else batches.target[hidden] == -1).all())

    def test_features_are_standardised_by_labelled_patients_alone(self, source: Source) -> None:
        batches = batches_of(unlabelled_group(source))
        assert float(batches.metadata[batches.parts.train].double().mean(0).abs().max()) < 1e-6


def forge(source: Source, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Let training read other data, with the parts as they were."""
    nodules, parts = study_data(source, "binary").sets[0], study_data(source, "binary").parts(0, 4)
    forged = StudyData(source, (dataclasses.replace(nodules, **changes),))
    monkeypatch.setattr(StudyData, "parts", lambda self, fold, num_folds: parts)
    monkeypatch.setattr("rightloss.study.training.loop.study_data", lambda *where: forged)


def lost_rows(source: Source) -> torch.Tensor:
    data = study_data(source, "binary")
    return split_labels(data.parts(0, 4).train, data.patients, SHARE, label_draw(source.name, 0, 0))[1]


def assert_others_alone_ignore_lost_patients(source: Source, group: Group, monkeypatch: pytest.MonkeyPatch) -> list[RunResult]:
    """Train again with other features of patients without labels; assert which losses notice, return the first results."""
    honest = train_group(group)
    columns = study_data(source, "binary").sets[0].features.clone()
    columns[lost_rows(source)] += 3.0
    forge(source, monkeypatch, features=columns)
    same = [np.array_equal(one.log_probs, two.log_probs) for one, two in zip(honest, train_group(group), strict=True)]
    assert same == [run.loss in OTHERS for run in group.runs]
    return honest


class TestTraining:
    @pytest.mark.long
    def test_hidden_labels_choose_who_is_drawn_and_reach_nothing_else(
        self, source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        group = unlabelled_group(source, losses=(*LEARNING, "weighted"))
        honest, draw = train_group(group), Batches._draws
        labels, lost = study_data(source, "binary").labels, lost_rows(source)
        other = labels.clone()
        other[lost] = 1 - other[lost]

        def drawn_by_honest_labels(self: Batches, rows: torch.Tensor, *others: Any) -> Any:
            self.target, own = labels, self.target
            sampler = draw(self, rows, *others)
            self.target = own
            return sampler

        forge(source, monkeypatch, labels=other, votes=torch.nn.functional.one_hot(other, 2).float())
        monkeypatch.setattr(Batches, "_draws", drawn_by_honest_labels)
        for one, two in zip(honest, train_group(group), strict=True):
            assert_same(one, two)
        monkeypatch.setattr(Batches, "_draws", draw)
        redrawn = train_group(group)
        assert [np.array_equal(one.log_probs, two.log_probs) for one, two in zip(honest, redrawn, strict=True)] == [
            run.loss == "weighted" for run in group.runs
        ]

    @pytest.mark.long
    def test_unlabelled_patients_reach_the_losses_that_learn_from_them_and_no_others(
        self, source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        group = unlabelled_group(source, losses=(*LEARNING, *OTHERS))
        assert_others_alone_ignore_lost_patients(source, group, monkeypatch)

    @pytest.mark.long
    def test_the_loss_without_them_is_logit_adjustment_on_fewer_patients(
        self, source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (without,) = train_group(unlabelled_group(source, losses=(ADJUSTED_LABELLED,)))
        parts, lost = study_data(source, "binary").parts(0, 4), set(lost_rows(source).tolist())
        few = parts._replace(train=torch.tensor([row for row in parts.train.tolist() if row not in lost]))
        monkeypatch.setattr(StudyData, "parts", lambda self, fold, num_folds: few)
        (plain,) = train_group(unlabelled_group(source, losses=(ADJUSTED,), unlabelled=0.0))
        np.testing.assert_array_equal(without.log_probs, plain.log_probs)
        assert without.validation == plain.validation

    @pytest.mark.long
    def test_a_run_gives_the_same_bits_alone_and_beside_other_populations_and_losses(self, source: Source) -> None:
        choices: dict[str, Any] = {"nets": ("convnet", "mlp"), "populations": (0.3, 0.001)}
        together = train_group(unlabelled_group(source, losses=("information-gain", ADJUSTED, "weighted"), **choices))
        for result in together[::2]:
            (alone,) = train_group(Group(source, (result.config,)))
            assert_same(result, alone)

    @pytest.mark.long
    def test_labelled_and_unlabelled_rows_go_through_the_net_in_one_pass(
        self, source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sizes: list[int] = []
        forward = Model.forward

        def counted(self: Model, features: Any, metadata: torch.Tensor) -> torch.Tensor:
            sizes.extend([len(metadata)] * self.training)
            return forward(self, features, metadata)

        monkeypatch.setattr(Model, "forward", counted)
        for loss, rows in ((ADJUSTED, 2 * SHORT.batch_size), (ADJUSTED_LABELLED, SHORT.batch_size)):
            sizes.clear()
            train_group(unlabelled_group(source, losses=(loss,)))
            assert sizes == [rows] * SHORT.steps

    @pytest.mark.long
    @pytest.mark.parametrize("inference", ["ensemble", "mc-dropout"])
    def test_ensembles_and_masks_of_dropout_train(self, source: Source, inference: str) -> None:
        for result in train_group(unlabelled_group(source, losses=LEARNING, inferences=(inference,))):
            assert np.isfinite(result.log_probs).all()

    @pytest.mark.long
    def test_a_weight_of_one_is_that_of_equal_minibatches_and_another_changes_the_losses_that_it_matters_to(
        self, source: Source
    ) -> None:
        losses = ("information-gain", "published", ADJUSTED, "weighted")
        found = [train_group(unlabelled_group(source, losses=losses, unlabelled_weight=each)) for each in (None, 1.0, 3.0)]
        for plain, one, three in zip(*found, strict=True):
            np.testing.assert_array_equal(plain.log_probs, one.log_probs)
            same = np.array_equal(plain.log_probs, three.log_probs)
            assert same == (plain.config.loss in ("published", "weighted"))

    @pytest.mark.long
    @pytest.mark.parametrize("inference", ["laplace", "variational", "sghmc"])
    def test_posteriors_of_features_learn_from_unlabelled_patients_where_the_loss_does(
        self, source: Source, inference: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        training = dataclasses.replace(SHORT, steps=10, batch_size=15, prior_scales=(1.0,))
        losses = (ADJUSTED, ADJUSTED_LABELLED) if inference == "sghmc" else ("information-gain", "published", *OTHERS[:2])
        choices: dict[str, Any] = {"losses": losses, "inferences": (inference,), "minibatches": ("raw",)}
        group = unlabelled_group(source, training, **choices)
        honest = assert_others_alone_ignore_lost_patients(source, group, monkeypatch)
        assert all(np.isfinite(each.log_probs).all() for each in honest)

    @pytest.mark.long
    @pytest.mark.parametrize("weight", [None, 3.0])
    def test_a_posterior_is_given_as_many_rows_as_lost_their_labels_at_the_mix_of_the_population(
        self, source: Source, weight: float | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given: list[dict[str, Any]] = []
        honest = loop.log_posterior

        def recorded(*arguments: Any, **options: Any) -> Any:
            given.append(options)
            return honest(*arguments, **options)

        monkeypatch.setattr(loop, "log_posterior", recorded)
        training = dataclasses.replace(SHORT, steps=20, batch_size=15, prior_scales=(1.0,))
        choices: dict[str, Any] = {"inferences": ("variational",), "minibatches": ("raw",), "populations": (0.5,)}
        losses = (ADJUSTED, "published", ADJUSTED_LABELLED)
        group = unlabelled_group(source, training, losses=losses, unlabelled_weight=weight, **choices)
        train_group(group)
        weighed, published, without = given
        rows, lost = weighed["unlabelled"], lost_rows(source)
        assert (len(rows), weighed["unlabelled_weight"]) == (len(lost), weight or 1.0)
        assert torch.equal(rows, published["unlabelled"])
        assert "unlabelled" not in without
        batches = batches_of(group, 0.5)
        labels = study_data(source, "binary").labels[batches.unlabelled_rows(0.5)]
        assert set(batches.unlabelled_rows(0.5).tolist()) <= set(lost.tolist())
        assert_mean_is(labels.double(), 0.5)
        assert bool((batches.target[batches.unlabelled_rows(0.5)] == -1).all())

    @pytest.mark.long
    def test_a_running_marginal_trains_from_each_start(self, source: Source) -> None:
        choices: dict[str, Any] = {"losses": ("published-running",), "starts": ("population", "equal")}
        first, second = train_group(unlabelled_group(source, **choices))
        assert np.isfinite(first.log_probs).all()
        assert not np.array_equal(first.log_probs, second.log_probs)

    @pytest.mark.long
    @pytest.mark.parametrize("likelihood", ["categorical", "onion-peeling", "cumulative-logit"])
    def test_ratings_are_learnt_from_votes_and_from_patients_without(self, source: Source, likelihood: str) -> None:
        training = dataclasses.replace(SHORT, steps=60, checkpoints=4, averaging=0.5)
        choices: dict[str, Any] = {"task": "rating", "populations": (None,), "likelihoods": (likelihood,)}
        votes = study_data(source, "rating").votes.double().numpy()
        for result in train_group(unlabelled_group(source, training, losses=LEARNING[::2], **choices)):
            gained = (votes[result.rows] * (result.log_probs - np.log(votes.mean(0)))).sum(1)
            assert gained.mean() > 0.05

    @pytest.mark.long
    def test_two_processes_give_what_one_gives(self, source: Source) -> None:
        training = dataclasses.replace(SHORT, steps=30, checkpoints=3)
        (run,) = unlabelled_group(source, training, nets=("metadata",), losses=(ADJUSTED,)).runs
        # With seed 0 the first minibatch has equal classes, and the gradient of the bias is only rounding, which Adam follows.
        group = Group(source, (dataclasses.replace(run, seed=1),))
        (single,), (double,) = (train_group(group, hardware=Hardware(devices=n)) for n in (1, 2))
        assert single.chosen == double.chosen
        np.testing.assert_allclose(double.log_probs, single.log_probs, rtol=0, atol=1e-5)


def contents(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


@pytest.mark.long
def test_a_study_that_was_stopped_ends_with_the_same_bytes_and_another_share_reuses_nothing(
    source: Source, tmp_path: Path
) -> None:
    losses = ("information-gain", ADJUSTED, ADJUSTED_LABELLED)
    settings: dict[str, Any] = {"nets": ("mlp",), "populations": (0.1,), "folds": 2, "num_folds": 4, "training": SHORT}
    config = StudyConfig("quick", sources=(source,), losses=losses, unlabelled=SHARE, **settings)
    run_study(config, tmp_path)
    before = contents(tmp_path)
    for run in config.runs()[2:]:
        (tmp_path / "runs" / f"{run.key}.json").unlink()
    run_study(config, tmp_path)
    assert contents(tmp_path) == before
    every = dataclasses.replace(config, losses=losses[:2], unlabelled=0.0)
    run_study(every, tmp_path)
    assert len(list((tmp_path / "runs").glob("*.json"))) == len(config.runs()) + len(every.runs())
    assert {name: contents(tmp_path)[name] for name in before if name != "study.json"} == {
        name: content for name, content in before.items() if name != "study.json"
    }


CONFIG = StudyConfig("quick", losses=LOSSES, unlabelled=0.8, folds=2, num_folds=4, seeds=2)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Summary]:
    out = tmp_path_factory.mktemp("study")
    fake_study(out, CONFIG)
    results = read_study(out)
    found = summarise(results)
    write_tables(found, out)
    write_report(results, found, out)
    return out, found


@pytest.mark.long
class TestTheReport:
    def test_tables_mark_the_share_and_each_loss_that_learnt_from_them(self, pages: tuple[Path, Summary]) -> None:
        texts = [table.read_text(encoding="utf-8") for table in (pages[0] / "tables").glob("*.md")]
        (text,) = (
            each for each in texts if each.startswith("**Figures by population, 80 % of the training patients unlabelled**")
        )
        lines = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
        marked = {line.removesuffix(", with unlabelled") for line in lines if line.endswith(", with unlabelled")}
        assert marked == {METHODS[name].title for name in LEARNING}
        assert "logit-adjusted loss, labelled only" in lines
        assert "(paper)" not in text

    def test_logit_adjustment_with_them_is_compared_with_that_without(self, pages: tuple[Path, Summary]) -> None:
        found = [each for each in pages[1].comparisons if each.about == "unlabelled"]
        assert [(each.ours.loss, each.theirs.loss, each.ours.population) for each in found] == [
            (ADJUSTED, ADJUSTED_LABELLED, rate) for rate in (0.3, 0.001)
        ]
        rivals = {each.theirs.loss for each in pages[1].comparisons if each.about == "loss"}
        assert rivals == set(CONFIG.losses) - {"information-gain"}
        assert wording.headline(pages[1])[1].startswith(
            "Logit adjustment with the unlabelled patients, against without: clearly"
        )

    def test_the_page_says_what_was_asked_and_leaves_the_papers_findings_out(self, pages: tuple[Path, Summary]) -> None:
        out, found = pages
        assert found.checks == ()
        text = (out / "report.html").read_text(encoding="utf-8")
        assert wording.title(CONFIG) in text
        assert "The population of the unlabelled patients is simulated" in text
        learnt = "information gain (default), information gain as published and logit-adjusted loss"
        assert settings(read_study(out))["Unlabelled"] == f"80 % of the training patients lost their labels; used by {learnt}"
        assert Summary.read(out / "summary.json").config == CONFIG

    def test_ratings_have_a_report_too(self, tmp_path: Path) -> None:
        losses = ("information-gain", ADJUSTED, ADJUSTED_LABELLED)
        config = StudyConfig("ratings", "rating", losses=losses, populations=(None,), unlabelled=0.5, folds=1, num_folds=4)
        fake_study(tmp_path, config)
        results = read_study(tmp_path)
        found = summarise(results)
        assert "The population of the unlabelled" in write_report(results, found, tmp_path).read_text(encoding="utf-8")


class TestTheCommand:
    @pytest.mark.long
    def test_it_adds_logit_adjustment_without_them_unless_losses_are_given(self, monkeypatch: pytest.MonkeyPatch) -> None:
        config = asked(monkeypatch, "quick", "--unlabelled", "0.8")
        assert config.unlabelled == 0.8
        assert config.losses == ("information-gain", "published", "weighted", "corrected", ADJUSTED, ADJUSTED_LABELLED)
        own = asked(monkeypatch, "quick", "--unlabelled", "0.8", "--loss", "information-gain", "--loss", "weighted")
        assert own.losses == ("information-gain", "weighted")
        assert asked(monkeypatch, "quick", "--unlabelled", "0") == PRESETS["quick"]
        words = command(config).split()
        assert asked(monkeypatch, "quick", *words[words.index("FOLDER") + 1 :]) == config

    @pytest.mark.long
    def test_it_takes_a_weight_and_the_reports_command_repeats_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        config = asked(monkeypatch, "quick", "--unlabelled", "0.8", "--unlabelled-weight", "3")
        assert config.unlabelled_weight == 3.0
        words = command(config).split()
        assert asked(monkeypatch, "quick", *words[words.index("FOLDER") + 1 :]) == config
        refused = invoke("study", "quick", "--out", "unused", "--unlabelled-weight", "3")
        assert (refused.exit_code, len(refused.stderr.splitlines())) == (2, 1)

    @pytest.mark.parametrize("share", ["1", "80", "-0.5", "nan"])
    def test_a_share_that_is_none_is_refused_in_one_line(self, share: str) -> None:
        result = invoke("study", "quick", "--out", "unused", "--unlabelled", share)
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
        assert "such as 0.8" in result.stderr

    @pytest.mark.long
    def test_a_dry_run_tells_the_share_and_who_learns_from_it(self, source: Source) -> None:
        arguments = "--engine in-process --steps 2 --checkpoints 1 --num-folds 4 --folds 1 --net mlp --batch-size 10".split()
        result = invoke("study", "quick", "--data", str(source.path), *arguments, "--unlabelled", "0.5", "--dry-run")
        assert result.exit_code == 0, result.stderr
        assert "unlabelled   50 % of the training patients; learnt from by: information gain (default); " in result.stdout
        assert "logit-adjusted loss, labelled only" in result.stdout
        assert "24 runs in 1 group" in result.stdout

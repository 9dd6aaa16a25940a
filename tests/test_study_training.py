"""Training side by side: each result is its own, chosen without the test part; and who learns from unlabelled patients."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from members import assert_mean_is, assert_refused
from nodule_files import small_archive

from rightloss.inference import Posterior, variational
from rightloss.lidc.splits import split_labels
from rightloss.predictive import retarget
from rightloss.prevalence import Prevalence
from rightloss.study.config import LIKELIHOODS, NETS, Group, RunConfig, Source, StudyConfig, Training, label_draw
from rightloss.study.datasets import parts_of, study_data, summary_of
from rightloss.study.methods import ADJUSTED, ADJUSTED_LABELLED, FULLY_LABELLED, METHODS
from rightloss.study.results import RunResult, StudyResults, matched, trace_steps
from rightloss.study.training import Hardware, loop, train_group
from rightloss.study.training.batches import Batches
from rightloss.study.training.candidates import Candidate, Net, tables_of

SHORT = Training(steps=6, batch_size=10, views=3, test_views=3, checkpoints=2, learning_rates=(1e-2,), members=2)
LONGER = replace(SHORT, steps=60, checkpoints=4, averaging=0.5)
STARTS = ("population", "equal")
POSTERIOR: dict[str, Any] = {"nets": ("mlp",), "inferences": ("laplace",), "minibatches": ("raw",)}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return small_archive(tmp_path_factory.mktemp("archive") / "discs.npz")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def group_of(source: Source, training: Training = SHORT, **choices: Any) -> Group:
    settings = {"populations": (0.1,), "folds": 1, "num_folds": 4, **choices}
    (group,) = StudyConfig("quick", sources=(source,), training=training, **settings).groups()
    return group


def assert_same(one: RunResult, other: RunResult) -> None:
    for name in ("config", "chosen", "validation", "matched", "trace"):
        assert getattr(one, name) == getattr(other, name)
    np.testing.assert_array_equal(one.rows, other.rows)
    np.testing.assert_array_equal(one.log_probs, other.log_probs)


def unchanged(some: list[RunResult], others: list[RunResult]) -> list[bool]:
    return [np.array_equal(one.log_probs, other.log_probs) for one, other in zip(some, others, strict=True)]


# Runs beside each other.


@pytest.mark.long
@pytest.mark.parametrize(
    ("unlabelled", "losses"),
    [
        (0.0, ("information-gain", "published", "published-running", "published-network", "weighted")),
        (0.5, ("information-gain", ADJUSTED, "weighted")),
    ],
)
def test_a_run_gives_the_same_bits_alone_and_beside_others(source: Source, unlabelled: float, losses: tuple[str, ...]) -> None:
    group = group_of(source, nets=("convnet", "mlp"), populations=(0.3, 0.001), losses=losses, unlabelled=unlabelled)
    together = train_group(group)
    assert [result.config for result in together] == list(group.runs)
    assert len({result.log_probs.tobytes() for result in together}) == len(group.runs)
    told: list[float] = []
    for result in together[::3]:
        torch.manual_seed(12345)
        (alone,) = train_group(Group(source, (result.config,)), told.append)
        assert_same(result, alone)
        assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(12345)))
    assert told[: SHORT.steps] == [step / SHORT.steps for step in range(1, SHORT.steps + 1)]


@pytest.mark.long
def test_one_cpu_without_fabric_gives_the_bits_of_fabric(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning.fabric import Fabric

    group = group_of(source, losses=("information-gain", "weighted"), inferences=("map", "mc-dropout"))
    without = train_group(group)
    monkeypatch.setattr(Hardware, "fabric", lambda *_: Fabric(accelerator="cpu", devices=1, precision="32-true"))
    for one, other in zip(without, train_group(group), strict=True):
        assert_same(one, other)


@pytest.mark.long
def test_runs_that_are_trained_in_the_same_way_share_their_nets(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    stepped: list[Net] = []
    update = Net.update

    def counted(net: Net, number: int) -> None:
        stepped.append(net)
        update(net, number)

    monkeypatch.setattr(Net, "update", counted)
    choices: dict[str, Any] = {"populations": (0.3, 0.001), "inferences": ("map", "mc-dropout"), "nets": ("mlp",)}
    group = group_of(source, losses=("corrected", "plain"), **choices)
    together = train_group(group)
    assert (len(group.runs), len(stepped)) == (8, SHORT.steps)
    for result in together:
        (alone,) = train_group(Group(source, (result.config,)))
        assert_same(result, alone)


@pytest.mark.long
def test_nothing_of_the_test_part_reaches_training_or_choice(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    group = group_of(source, losses=("information-gain", "weighted"))
    honest = train_group(group)
    data = study_data(source, "binary")
    parts, labels, images = parts_of(data, 0, 4), data.labels.clone(), data.images().clone()
    labels[parts.test] = 1 - labels[parts.test]
    images[parts.test] = 0
    forge(source, monkeypatch, labels=labels, votes=torch.nn.functional.one_hot(labels, 2).float())
    monkeypatch.setattr("rightloss.study.training.loop.study_images", lambda *where: images)
    forged = train_group(group)
    assert unchanged(honest, forged) == [False, False]
    assert [(one.validation, one.chosen) for one in honest] == [(one.validation, one.chosen) for one in forged]


def forge(source: Source, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Let training read other data, with the parts as they were."""
    data = study_data(source, "binary")
    parts, forged = parts_of(data, 0, 4), replace(data, **changes)
    monkeypatch.setattr("rightloss.study.training.batches.parts_of", lambda *which: parts)
    monkeypatch.setattr("rightloss.study.training.loop.study_data", lambda *where: forged)


@pytest.mark.long
def test_two_processes_give_what_one_gives(source: Source) -> None:
    training = replace(SHORT, steps=30, checkpoints=3)
    losses = ("information-gain", "published", "weighted", ADJUSTED)
    runs = group_of(source, training, nets=("metadata",), losses=losses, unlabelled=0.5).runs
    # With seed 0 the first minibatch has equal classes, and the gradient of the bias is only rounding, which Adam follows.
    group = Group(source, tuple(replace(run, seed=1) for run in runs))
    one, two = (train_group(group, hardware=Hardware(devices=n)) for n in (1, 2))
    for single, double in zip(one, two, strict=True):
        # A net that starts at a constant has no gradient in its bias under the information gain, and Adam takes a full step
        # along whatever rounding leaves there.
        noise = 0.03 if METHODS[single.config.loss].rival is None else 1e-5
        assert single.chosen == double.chosen
        np.testing.assert_allclose(double.log_probs, single.log_probs, rtol=0, atol=noise)


# What is chosen, and what is refused.


@pytest.mark.long
def test_the_checkpoint_with_the_best_validation_score_is_kept(source: Source) -> None:
    training = replace(LONGER, steps=40, checkpoints=8, learning_rates=(3e-2, 1e-3))
    for result in train_group(group_of(source, training, losses=("information-gain", "weighted"), nets=("mlp",))):
        best = max(max(scores) for scores in result.validation)
        candidate = training.learning_rates.index(float(result.chosen["learning_rate"]))
        assert result.validation[candidate][int(result.chosen["step"]) // 5 - 1] == best


def hopeless(source: Source) -> Group:
    """A group whose only step size ends in NaN."""
    return group_of(source, replace(SHORT, learning_rates=(1e30,)), nets=("mlp",), losses=("weighted",))


def test_a_step_size_that_ends_in_nan_is_left_for_one_that_does_not_and_refused_if_there_is_none(source: Source) -> None:
    training = replace(SHORT, learning_rates=(1e30, 1e-2), checkpoints=SHORT.steps)
    for result in train_group(group_of(source, training, nets=("mlp",), losses=FULLY_LABELLED)):
        assert result.chosen["learning_rate"] == 1e-2, result.config.loss
        assert np.isfinite(result.log_probs).all()
    assert_refused(lambda: train_group(hopeless(source)), "--learning-rate")
    found = loop._plain(None, hopeless(source), loop.silent)
    assert isinstance(found, ValueError), "so that it can come back from another process"


def test_a_training_that_ends_early_is_that_of_its_best_checkpoint_and_its_trace_ends_there(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Net.loss
    monkeypatch.setattr(Net, "loss", lambda net, batch, step: honest(net, batch, step) * (math.nan if step > 4 else 1))
    (result,) = train_group(group_of(source, SHORT, nets=("mlp",), losses=("weighted",)))
    assert (result.chosen["step"], len(result.validation[0]), len(result.trace)) == (3, 1, 4)


@pytest.mark.slow
def test_a_users_error_comes_back_from_other_processes_as_it_is(source: Source) -> None:
    assert_refused(lambda: train_group(hopeless(source), hardware=Hardware(devices=2)), "--learning-rate")


def test_devices_that_are_not_there_or_cannot_share_a_batch_are_refused_and_fabric_is_asked_for(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_refused(lambda: Hardware(accelerator="tpu").fabric(), "tpu")
    odd = group_of(source, replace(SHORT, batch_size=15), nets=("mlp",), losses=("weighted",))
    assert_refused(lambda: train_group(odd, hardware=Hardware(devices=2)), "got 15")
    for name in ("lightning_fabric", "lightning", "lightning.fabric"):
        monkeypatch.setitem(sys.modules, name, None)
    assert Hardware().fabric() is None
    for hardware, precision in ((Hardware(devices=2), "32-true"), (Hardware(), "bf16-mixed")):
        with pytest.raises(ImportError, match=r"lightning-fabric: .*\.\[fabric\]"):
            hardware.fabric(precision)


@pytest.mark.long
@pytest.mark.parametrize(("precision", "noise"), [("64-true", 1e-4), ("bf16-mixed", 0.05), ("bf16-true", 0.2)])
def test_weights_may_be_wider_or_narrower(source: Source, precision: str, noise: float) -> None:
    group = group_of(source, nets=("both",), losses=("information-gain",))
    (run,) = group.runs
    at = replace(run, training=replace(run.training, precision=precision))
    (whole,), (other,) = (train_group(Group(source, (each,))) for each in (run, at))
    assert not np.array_equal(whole.log_probs, other.log_probs)
    np.testing.assert_allclose(other.log_probs, whole.log_probs, rtol=0, atol=noise)
    assert np.ptp(whole.log_probs[:, 1]) > 0.1, "there is something to come close to"


# What is learnt.


@pytest.mark.long
def test_every_net_learns_to_tell_large_discs_from_small_ones(source: Source) -> None:
    for result in train_group(group_of(source, LONGER, losses=("information-gain",), nets=NETS, populations=(0.5,))):
        labels = study_data(source, "binary").labels.numpy()[result.rows]
        own = result.log_probs[np.arange(len(labels)), labels]
        assert own.mean() > math.log(0.5) + 0.02, result.config.net


@pytest.mark.long
@pytest.mark.parametrize(
    "choices",
    [
        {"likelihoods": LIKELIHOODS, "losses": ("information-gain",)},
        {"likelihoods": ("onion-peeling",), "losses": FULLY_LABELLED[1:]},
        {"likelihoods": ("categorical", "cumulative-logit"), "losses": ("information-gain", ADJUSTED), "unlabelled": 0.5},
    ],
    ids=["likelihoods", "losses", "unlabelled"],
)
def test_ratings_are_learnt_from_votes(source: Source, choices: dict[str, Any]) -> None:
    votes = study_data(source, "rating").votes.double().numpy()
    for result in train_group(group_of(source, LONGER, task="rating", populations=(None,), nets=("mlp",), **choices)):
        np.testing.assert_allclose(np.exp(result.log_probs).sum(1), 1, atol=1e-6)
        gained = (votes[result.rows] * (result.log_probs - np.log(votes.mean(0)))).sum(1)
        assert gained.mean() > 0.05, result.config.label


def test_minibatches_have_equal_classes_or_those_of_the_training_part_or_of_the_votes(source: Source) -> None:
    training = replace(SHORT, steps=300)
    data = study_data(source, "binary")
    for draws in ("rebalanced", "raw"):
        (run,) = group_of(source, training, losses=("weighted",), minibatches=(draws,)).runs
        batches = Batches(data, None, run, torch.device("cpu"))
        expected = 0.5 if draws == "rebalanced" else float(data.labels[batches.parts.train].double().mean())
        assert float(batches.sampling[1]) == pytest.approx(expected)
        labels = torch.cat([batch.target for batch in batches]).double()
        assert len(labels) == training.steps * training.batch_size
        assert_mean_is(labels, expected)
    (run,) = group_of(source, training, task="rating", populations=(None,), losses=("weighted",)).runs
    batches = Batches(study_data(source, "rating"), None, run, torch.device("cpu"))
    votes = torch.cat([batch.target for batch in batches]).double()
    for rating in range(5):
        assert_mean_is(votes[:, rating], float(batches.sampling[rating]))


@pytest.mark.long
def test_correcting_afterwards_moves_cross_entropy_and_logit_adjustment_does_it_beforehand(source: Source) -> None:
    training = replace(SHORT, checkpoints=1, weight_decay=0.0)
    plain, corrected, adjusted = train_group(group_of(source, training, losses=("plain", "corrected", ADJUSTED)))
    moved = retarget(torch.from_numpy(plain.log_probs), 0.5, 0.1)
    np.testing.assert_allclose(corrected.log_probs, moved.numpy(), rtol=1e-12)
    np.testing.assert_allclose(adjusted.log_probs, corrected.log_probs, rtol=1e-3, atol=1e-5)


def candidate_of(run: RunConfig, source: Source) -> tuple[Candidate, Batches]:
    """An untrained one."""
    data = study_data(source, run.task)
    batches = Batches(data, data.images(), run, torch.device("cpu"))
    return Candidate(run, 1e-3, batches.sampling, np.array([0.9, 0.1]), len(data.feature_names)), batches


@pytest.mark.long
def test_an_ensemble_of_one_is_a_single_net_and_masks_of_dropout_are_averaged_as_probabilities(source: Source) -> None:
    for members, same in ((1, True), (2, False)):
        training = replace(SHORT, members=members)
        choices: dict[str, Any] = {"inferences": ("map", "ensemble"), "nets": ("mlp",)}
        single, several = train_group(group_of(source, training, losses=("weighted",), **choices))
        assert np.array_equal(single.log_probs, several.log_probs) == same
    (run,) = group_of(source, losses=("weighted",), nets=("mlp",), inferences=("mc-dropout",)).runs
    candidate, batches = candidate_of(run, source)
    valid = batches.fixed(batches.parts.valid)
    masks = []
    for mask in range(2):
        candidate.nets[0].seed("mask", mask)
        masks.append(tables_of(candidate.nets, valid, dropout=True)[candidate.nets[0]].exp())
    assert not torch.equal(*masks)
    torch.testing.assert_close(candidate.log_probs(valid).exp(), (masks[0] + masks[1]) / 2)


# Where a net starts, and what its intercept does afterwards.


@pytest.mark.parametrize("loss", FULLY_LABELLED)
def test_untrained_nets_predict_the_classes_of_their_start_and_differ_in_the_bias_alone(source: Source, loss: str) -> None:
    nets = {}
    for start, usual in zip(STARTS, (0.1, 0.5), strict=True):
        (run,) = group_of(source, losses=(loss,), starts=(start,)).runs
        candidate, batches = candidate_of(run, source)
        nets[start] = candidate.nets[0].module
        found = candidate.log_probs(batches.fixed(batches.parts.valid)).exp()[:, 1]
        expected = {"plain": 0.5, "corrected": 0.1}.get(loss, usual)  # their logits are for minibatches with equal classes
        torch.testing.assert_close(found, torch.full_like(found, expected), rtol=1e-6, atol=0)
    one, other = (dict(net.named_parameters()) for net in nets.values())
    differing = [one[name] for name in one if not torch.equal(one[name], other[name])]
    assert [id(each) for each in differing] in ([id(nets["population"].head.bias)], [])


@pytest.mark.long
def test_the_trace_begins_where_the_net_started(source: Source) -> None:
    training = replace(SHORT, learning_rates=(1e-4,))
    losses = ("information-gain", "published-network", "weighted")
    for result in train_group(group_of(source, training, losses=losses, starts=STARTS, nets=("mlp",), populations=(0.02,))):
        assert len(result.trace) == len(trace_steps(training.steps)) == 6
        start = 0.02 if result.config.start == "population" else 0.5
        odds, expected = (math.log(each / (1 - each)) for each in (result.trace[0], start))
        assert odds == pytest.approx(expected, abs=0.5)


@pytest.mark.long
@pytest.mark.parametrize(("inference", "loss"), [("map", "published"), ("laplace", "corrected")])
def test_matched_predictions_have_the_prevalence_as_their_mean_on_the_validation_part(
    source: Source, inference: str, loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = parts_of(study_data(source, "binary"), 0, 4)
    monkeypatch.setattr("rightloss.study.training.batches.parts_of", lambda *which: parts._replace(test=parts.valid))
    choices = {**POSTERIOR, "inferences": (inference,), "losses": (loss,), "starts": ("equal",)}
    found = train_group(group_of(source, **choices))
    data = summary_of(source, "binary")
    moved = matched(StudyResults(StudyConfig("quick", sources=(source,)), {source.name: data}, tuple(found)))
    for result, plain in zip(moved.runs, found, strict=True):
        means = [np.exp(run.log_probs[:, 1]) for run in (result, plain)]
        labels = data.labels[result.rows]
        at_population = [0.9 * mean[labels == 0].mean() + 0.1 * mean[labels == 1].mean() for mean in means]
        assert at_population[0] == pytest.approx(0.1, rel=1e-6)
        assert at_population[1] != pytest.approx(0.1, rel=1e-3)


# Posteriors over the weights of nets of features.


@pytest.mark.long
@pytest.mark.parametrize("inference", ["laplace", "variational", "sghmc"])
def test_posteriors_choose_their_prior_on_the_validation_part(source: Source, inference: str) -> None:
    training = replace(SHORT, steps=30 if inference == "sghmc" else 60, batch_size=30, prior_scales=(0.03, 1.0))
    losses = ("corrected",) if inference == "sghmc" else ("information-gain", "corrected")  # chains take long to tune
    told: list[float] = []
    found = train_group(group_of(source, training, **{**POSTERIOR, "inferences": (inference,), "losses": losses}), told.append)
    for result in found:
        assert result.chosen == {"prior_scale": 1.0}, "the narrow prior keeps the weights at nothing"
        (narrow,), (wide,) = result.validation
        assert wide > narrow
        np.testing.assert_allclose(np.exp(result.log_probs).sum(1), 1, atol=1e-6)
    assert told == [number / len(found) for number in range(1, len(found) + 1)]


@pytest.mark.parametrize("loss", ["information-gain", "published", "weighted", "corrected"])
def test_the_prior_is_centred_at_the_mix_of_the_logits(source: Source, monkeypatch: pytest.MonkeyPatch, loss: str) -> None:
    fit, given = loop.FIT["laplace"], list[tuple[Any, dict[str, Any]]]()

    def recorded(target: Any, *others: Any, **settings: Any) -> Posterior:
        given.append((target, settings))
        return fit(target, *others, **settings)

    monkeypatch.setitem(loop.FIT, "laplace", recorded)
    (run,) = group_of(source, **POSTERIOR, losses=(loss,), starts=("equal",)).runs
    batches = Batches(study_data(source, "binary"), None, run, torch.device("cpu"))
    prevalence = Prevalence.binary(0.1, sampling=float(batches.sampling[1]))
    loop._fit(run, 1.0, batches, prevalence)
    ((target, settings),) = given
    mix = prevalence.sampling if loss == "corrected" else prevalence.population
    bias = torch.tensor(mix).log().float().requires_grad_()
    (slope,) = torch.autograd.grad(target.log_prior({**target.parameters(), "3.bias": bias}), bias)
    torch.testing.assert_close(slope, torch.zeros(2), rtol=0, atol=1e-6)
    assert (settings["steps"], settings["lr"]) == (SHORT.steps, 0.01)


@pytest.mark.long
def test_predictions_of_a_posterior_are_corrected_draw_by_draw(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted: list[Posterior] = []

    def fit(*given: Any, **settings: Any) -> Posterior:
        fitted.append(variational(*given, **settings))
        return fitted[-1]

    monkeypatch.setitem(loop.FIT, "variational", fit)
    training = replace(SHORT, steps=60, batch_size=30, prior_scales=(1.0,))
    (result,) = train_group(group_of(source, training, **{**POSTERIOR, "inferences": ("variational",)}, losses=("corrected",)))
    data = study_data(source, "binary")
    parts = parts_of(data, 0, 4)
    sampled = float(data.labels[parts.train].double().mean())
    tables = torch.cat(list(fitted[0].tables(data.standardised(parts.train)[parts.test]))).double()
    moved = torch.stack([retarget(table, sampled, 0.1) for table in tables]).exp().mean(0)
    np.testing.assert_allclose(np.exp(result.log_probs), moved, rtol=1e-5)


@pytest.mark.long
def test_a_prior_whose_predictions_are_nan_is_left_for_another(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, told = loop._log_probs, list[bool]()
    monkeypatch.setattr(loop, "_log_probs", lambda *given: honest(*given) * (math.nan if told.pop(0) else 1))
    training = replace(SHORT, prior_scales=(0.3, 1.0))
    group = group_of(source, training, **POSTERIOR, losses=("weighted",))
    told += [True, False, False, False]  # each scale, then the best on both parts
    (result,) = train_group(group)
    assert result.chosen == {"prior_scale": 1.0}
    told += [True, True, True, True]
    assert_refused(lambda: train_group(group), "finite predictions, but got others for .*weighted loss.*another --inference")


# Patients who lose their labels.

SHARE = 0.5
LEARNING = tuple(name for name, method in METHODS.items() if method.takes_unlabelled and method.marginal is None)
OTHERS = ("weighted", ADJUSTED_LABELLED, "corrected", "plain")


def unlabelled_group(source: Source, training: Training = SHORT, **choices: Any) -> Group:
    return group_of(source, training, **{"nets": ("mlp",), "unlabelled": SHARE, **choices})


def batches_of(group: Group, *rates: float) -> Batches:
    populations: dict[float | None, np.ndarray] = {rate: np.array([1 - rate, rate]) for rate in rates}
    data = study_data(group.source, group.runs[0].task)
    return Batches(data, None, group.runs[0], torch.device("cpu"), populations=populations)


def lost_rows(source: Source) -> torch.Tensor:
    data = study_data(source, "binary")
    return split_labels(parts_of(data, 0, 4).train, data.patients, SHARE, label_draw(source.name, 0, 0))[1]


def test_labelled_minibatches_are_of_labelled_patients_alone_whatever_unlabelled_rows_come_after_them(source: Source) -> None:
    group = unlabelled_group(source)
    alone, beside = batches_of(group), batches_of(group, 0.3, 0.001)
    for number, (one, other) in enumerate(zip(alone, beside, strict=True)):
        assert torch.equal(one.inputs.metadata, other.inputs.metadata)
        assert torch.equal(one.target, other.target)
        assert bool((one.target >= 0).all())
        assert set(other.with_unlabelled) == {0.3, 0.001}
        labelled, unlabelled = other.with_unlabelled[0.3].metadata.split(SHORT.batch_size)
        assert torch.equal(labelled, other.inputs.metadata)
        assert torch.equal(unlabelled, beside.metadata[beside._drawn[0.3].split(SHORT.batch_size)[number]])
    patients = study_data(source, "binary").patients
    assert patients is not None
    people = [set(patients[rows].tolist()) for rows in (alone.parts.train, alone.unlabelled, alone.parts.valid)]
    assert sum(map(len, people)) == len(set().union(*people))
    assert float(alone.metadata[alone.parts.train].double().mean(0).abs().max()) < 1e-6, "standardised by labelled ones alone"


@pytest.mark.parametrize("rate", [0.5, 0.01])
def test_unlabelled_ones_come_at_the_prevalence_whatever_it_is_in_the_data(source: Source, rate: float) -> None:
    batches = batches_of(unlabelled_group(source, replace(SHORT, steps=400)), rate)
    assert set(batches._drawn[rate].tolist()) <= set(batches.unlabelled.tolist())
    assert_mean_is(study_data(source, "binary").labels[batches._drawn[rate]].double(), rate)


@pytest.mark.parametrize("task", ["binary", "rating"])
def test_hidden_labels_are_erased_once_patients_are_drawn_and_no_others(source: Source, task: str) -> None:
    rates: dict[str, Any] = {"populations": (None,)} if task == "rating" else {}
    batches = batches_of(unlabelled_group(source, task=task, losses=("weighted",), **rates))
    hidden = torch.zeros(len(batches.target), dtype=torch.bool)
    hidden[batches.unlabelled] = True
    data = study_data(source, task)
    kept = data.votes if task == "rating" else data.labels
    assert torch.equal(batches.target[~hidden], kept[~hidden])
    assert bool((batches.target[hidden].isnan() if task == "rating" else batches.target[hidden] == -1).all())


@pytest.mark.long
def test_hidden_labels_choose_who_is_drawn_and_reach_nothing_else(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert unchanged(honest, train_group(group)) == [run.loss == "weighted" for run in group.runs]


@pytest.mark.long
@pytest.mark.parametrize(
    ("inferences", "losses"),
    [
        (("map", "ensemble", "mc-dropout"), (*LEARNING, "published-running", *OTHERS)),
        (("laplace",), ("information-gain", "published", *OTHERS[:2])),
        (("variational",), (ADJUSTED, ADJUSTED_LABELLED)),
    ],
    ids=["trained", "laplace", "variational"],
)
def test_unlabelled_patients_reach_the_losses_that_learn_from_them_and_no_others(
    source: Source, inferences: tuple[str, ...], losses: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    training = replace(SHORT, steps=10, batch_size=15, prior_scales=(1.0,))
    minibatches = ("rebalanced",) if "map" in inferences else ("raw",)
    group = unlabelled_group(source, training, losses=losses, inferences=inferences, minibatches=minibatches)
    honest = train_group(group)
    columns = study_data(source, "binary").features.clone()
    columns[lost_rows(source)] += 3.0
    forge(source, monkeypatch, features=columns)
    assert unchanged(honest, train_group(group)) == [run.loss in OTHERS for run in group.runs]
    assert all(np.isfinite(each.log_probs).all() for each in honest)


@pytest.mark.long
def test_the_loss_without_them_is_logit_adjustment_on_fewer_patients(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    (without,) = train_group(unlabelled_group(source, losses=(ADJUSTED_LABELLED,)))
    parts, lost = parts_of(study_data(source, "binary"), 0, 4), set(lost_rows(source).tolist())
    few = parts._replace(train=torch.tensor([row for row in parts.train.tolist() if row not in lost]))
    monkeypatch.setattr("rightloss.study.training.batches.parts_of", lambda *which: few)
    (plain,) = train_group(unlabelled_group(source, losses=(ADJUSTED,), unlabelled=0.0))
    np.testing.assert_array_equal(without.log_probs, plain.log_probs)
    assert without.validation == plain.validation


@pytest.mark.long
def test_a_weight_of_one_is_that_of_equal_minibatches_and_another_changes_the_losses_that_it_matters_to(source: Source) -> None:
    losses = ("information-gain", "published", ADJUSTED, "weighted")
    plain, one, three = (
        train_group(unlabelled_group(source, losses=losses, unlabelled_weight=each)) for each in (None, 1.0, 3.0)
    )
    assert all(unchanged(plain, one))
    assert unchanged(plain, three) == [False, True, False, True]


@pytest.mark.long
@pytest.mark.parametrize("weight", [None, 3.0])
def test_a_posterior_is_given_as_many_rows_as_lost_their_labels_at_the_mix_of_the_population(
    source: Source, weight: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, Any]] = []
    honest = loop.log_posterior

    def recorded(*arguments: Any, **options: Any) -> Any:
        given.append(options)
        return honest(*arguments, **options)

    monkeypatch.setattr(loop, "log_posterior", recorded)
    training = replace(SHORT, steps=20, batch_size=15, prior_scales=(1.0,))
    choices = {**POSTERIOR, "inferences": ("variational",), "populations": (0.5,), "unlabelled_weight": weight}
    group = unlabelled_group(source, training, losses=(ADJUSTED, "published", ADJUSTED_LABELLED), **choices)
    train_group(group)
    weighed, published, without = given
    rows, lost = weighed["unlabelled"], lost_rows(source)
    assert (len(rows), weighed["unlabelled_weight"]) == (len(lost), weight or 1.0)
    assert torch.equal(rows, published["unlabelled"])
    assert "unlabelled" not in without
    batches = batches_of(group, 0.5)
    drawn = batches.unlabelled_rows(0.5)
    assert set(drawn.tolist()) <= set(lost.tolist())
    assert_mean_is(study_data(source, "binary").labels[drawn].double(), 0.5)
    assert bool((batches.target[drawn] == -1).all())

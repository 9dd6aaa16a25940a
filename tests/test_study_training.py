"""Training side by side: every run's result is its own, chosen without the test part."""

import dataclasses
import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from members import assert_mean_is, assert_refused
from nodule_files import small_archive

from rightloss.inference import Posterior, variational
from rightloss.predictive import retarget
from rightloss.prevalence import Prevalence
from rightloss.study.config import IMAGE_NETS, LIKELIHOODS, Group, RunConfig, Source, StudyConfig, Training
from rightloss.study.datasets import StudyData, study_data, summary_of
from rightloss.study.methods import FULLY_LABELLED, METHODS
from rightloss.study.results import RunResult, StudyResults, matched, trace_steps
from rightloss.study.training import Hardware, loop, train_group
from rightloss.study.training.batches import Batches
from rightloss.study.training.candidates import Candidate, Net, tables_of

SHORT = Training(steps=6, batch_size=10, views=3, test_views=3, checkpoints=2, learning_rates=(1e-2,), members=2)


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
    assert one.config == other.config
    np.testing.assert_array_equal(one.rows, other.rows)
    np.testing.assert_array_equal(one.log_probs, other.log_probs)
    assert one.chosen == other.chosen
    assert one.validation == other.validation


@pytest.mark.long
def test_a_run_gives_the_same_bits_whatever_is_trained_beside_it(source: Source) -> None:
    group = group_of(source, nets=("convnet", "inception"), populations=(0.3, 0.001), losses=("information-gain", "weighted"))
    together = train_group(group)
    assert [result.config for result in together] == list(group.runs)
    for result in together[::3]:
        (alone,) = train_group(Group(source, (result.config,)))
        assert_same(result, alone)


@pytest.mark.long
def test_one_cpu_without_fabric_gives_the_bits_of_fabric(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning.fabric import Fabric

    group = group_of(source, losses=("information-gain", "weighted"), inferences=("map", "mc-dropout"))
    without = train_group(group)
    monkeypatch.setattr(Hardware, "fabric", lambda *_: Fabric(accelerator="cpu", devices=1, precision="32-true"))
    for one, other in zip(without, train_group(group), strict=True):
        assert_same(one, other)


@pytest.mark.long
def test_runs_that_are_trained_in_the_same_way_share_their_nets_and_are_chosen_by_their_own_scores(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped: list[Net] = []
    update = Net.update

    def counted(net: Net, number: int) -> None:
        stepped.append(net)
        update(net, number)

    monkeypatch.setattr(Net, "update", counted)
    group = group_of(source, populations=(0.3, 0.001), losses=("corrected", "plain"), inferences=("map", "mc-dropout"))
    together = train_group(group)
    assert len(group.runs) == 8
    assert len(stepped) == SHORT.steps
    for result in together:
        (alone,) = train_group(Group(source, (result.config,)))
        assert_same(result, alone)


@pytest.mark.long
def test_the_users_random_numbers_are_left_alone(source: Source) -> None:
    group = group_of(source, losses=("weighted",))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train_group(group)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.long
def test_neither_labels_nor_images_of_the_test_part_reach_training_or_choice(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = group_of(source, losses=("information-gain", "weighted"))
    honest = train_group(group)
    data = study_data(source, "binary")
    parts, nodules = data.parts(0, 4), data.sets[0]
    labels, images = nodules.labels.clone(), data.images().clone()
    labels[parts.test] = 1 - labels[parts.test]
    images[parts.test] = 0
    votes = torch.nn.functional.one_hot(labels, 2).float()
    forged = StudyData(source, (dataclasses.replace(nodules, labels=labels, votes=votes),))
    monkeypatch.setattr(StudyData, "parts", lambda self, fold, num_folds: parts)
    monkeypatch.setattr("rightloss.study.training.loop.study_data", lambda *where: forged)
    monkeypatch.setattr("rightloss.study.training.loop.study_images", lambda *where: images)
    for one, other in zip(honest, train_group(group), strict=True):
        assert (one.validation, one.chosen) == (other.validation, other.chosen)
        assert not np.array_equal(one.log_probs, other.log_probs)


@pytest.mark.long
def test_the_checkpoint_with_the_best_validation_score_is_kept(source: Source) -> None:
    training = dataclasses.replace(SHORT, steps=40, checkpoints=8, learning_rates=(3e-2, 1e-3), averaging=0.5)
    for result in train_group(group_of(source, training, losses=("information-gain", "weighted"))):
        best = max(max(scores) for scores in result.validation)
        candidate = training.learning_rates.index(float(result.chosen["learning_rate"]))
        assert result.validation[candidate][int(result.chosen["step"]) // 5 - 1] == best


def test_rebalanced_minibatches_have_equal_classes_and_raw_ones_those_of_the_training_part(source: Source) -> None:
    training = dataclasses.replace(SHORT, steps=200)
    data = study_data(source, "binary")
    for draws in ("rebalanced", "raw"):
        (run,) = group_of(source, training, losses=("weighted",), minibatches=(draws,)).runs
        batches = Batches(data, None, run, torch.device("cpu"))
        labels = torch.cat([batch.target for batch in batches]).double()
        expected = 0.5 if draws == "rebalanced" else float(data.labels[batches.parts.train].double().mean())
        assert float(batches.sampling[1]) == pytest.approx(expected)
        assert_mean_is(labels, expected)


def test_of_ratings_the_sampled_mix_is_that_of_the_votes(source: Source) -> None:
    training = dataclasses.replace(SHORT, steps=300)
    (run,) = group_of(source, training, task="rating", populations=(None,), losses=("weighted",)).runs
    batches = Batches(study_data(source, "rating"), None, run, torch.device("cpu"))
    votes = torch.cat([batch.target for batch in batches]).double()
    for rating in range(5):
        assert_mean_is(votes[:, rating], float(batches.sampling[rating]))


def untrained(run: RunConfig, source: Source) -> tuple[Candidate, Batches]:
    data = study_data(source, run.task)
    batches = Batches(data, data.images(), run, torch.device("cpu"))
    population = np.array([0.9, 0.1])
    return Candidate(run, 1e-3, batches.sampling, population, len(data.feature_names)), batches


@pytest.mark.parametrize("loss", FULLY_LABELLED)
@pytest.mark.parametrize(("start", "usual"), [("population", 0.1), ("equal", 0.5)])
def test_untrained_nets_predict_the_classes_of_their_start(source: Source, loss: str, start: str, usual: float) -> None:
    (run,) = group_of(source, losses=(loss,), starts=(start,)).runs
    candidate, batches = untrained(run, source)
    found = candidate.log_probs(batches.fixed(batches.parts.valid)).exp()[:, 1]
    expected = {"plain": 0.5, "corrected": 0.1}.get(loss, usual)  # their logits are for minibatches with equal classes
    torch.testing.assert_close(found, torch.full_like(found, expected), rtol=1e-6, atol=0)


@pytest.mark.long
def test_correcting_afterwards_moves_what_plain_cross_entropy_says(source: Source) -> None:
    training = dataclasses.replace(SHORT, checkpoints=1)
    plain, corrected = train_group(group_of(source, training, losses=("plain", "corrected")))
    moved = retarget(torch.from_numpy(plain.log_probs), 0.5, 0.1)
    np.testing.assert_allclose(corrected.log_probs, moved.numpy(), rtol=1e-12)


@pytest.mark.long
def test_logit_adjustment_is_correction_beforehand(source: Source) -> None:
    training = dataclasses.replace(SHORT, checkpoints=1, weight_decay=0.0)
    before, after = train_group(group_of(source, training, losses=("logit-adjusted", "corrected")))
    np.testing.assert_allclose(before.log_probs, after.log_probs, rtol=1e-3, atol=1e-5)


@pytest.mark.long
def test_an_ensemble_of_one_is_a_single_net_and_one_of_two_is_not(source: Source) -> None:
    for members, same in ((1, True), (2, False)):
        training = dataclasses.replace(SHORT, members=members)
        single, several = train_group(group_of(source, training, losses=("weighted",), inferences=("map", "ensemble")))
        assert np.array_equal(single.log_probs, several.log_probs) == same


def test_masks_of_dropout_are_averaged_as_probabilities(source: Source) -> None:
    (run,) = group_of(source, losses=("weighted",), nets=("mlp",), inferences=("mc-dropout",)).runs
    candidate, batches = untrained(run, source)
    valid = batches.fixed(batches.parts.valid)
    both = candidate.log_probs(valid).exp()
    masks = []
    for mask in range(2):
        torch.manual_seed(candidate._seed("mask", mask))
        masks.append(tables_of(candidate.nets, valid, dropout=True)[candidate.nets[0]].exp())
    assert not torch.equal(*masks)
    torch.testing.assert_close(both, (masks[0] + masks[1]) / 2)


@pytest.mark.parametrize("loss", FULLY_LABELLED)
def test_a_step_size_that_ends_in_nan_is_left_for_one_that_does_not(source: Source, loss: str) -> None:
    training = dataclasses.replace(SHORT, learning_rates=(1e30, 1e-2), checkpoints=SHORT.steps)
    (result,) = train_group(group_of(source, training, nets=("mlp",), losses=(loss,)))
    assert result.chosen["learning_rate"] == 1e-2
    assert np.isfinite(result.log_probs).all()


@pytest.mark.long
@pytest.mark.parametrize("net", [*IMAGE_NETS, "both", "metadata", "mlp"])
def test_every_net_learns_to_tell_large_discs_from_small_ones(source: Source, net: str) -> None:
    training = dataclasses.replace(SHORT, steps=60, checkpoints=4, averaging=0.5)
    choices: dict[str, Any] = {"losses": ("information-gain",), "nets": (net,), "populations": (0.5,)}
    (result,) = train_group(group_of(source, training, **choices))
    labels = study_data(source, "binary").labels.numpy()[result.rows]
    own = result.log_probs[np.arange(len(labels)), labels]
    assert own.mean() > math.log(0.5) + 0.02


@pytest.mark.long
@pytest.mark.parametrize(
    ("likelihood", "loss"),
    [
        *((likelihood, "information-gain") for likelihood in LIKELIHOODS),
        *(("onion-peeling", loss) for loss in FULLY_LABELLED[1:]),
    ],
)
def test_ratings_are_learnt_from_votes_under_every_likelihood_and_loss(source: Source, likelihood: str, loss: str) -> None:
    training = dataclasses.replace(SHORT, steps=60, checkpoints=4, averaging=0.5)
    group = group_of(
        source, training, task="rating", populations=(None,), nets=("mlp",), likelihoods=(likelihood,), losses=(loss,)
    )
    (result,) = train_group(group)
    data = study_data(source, "rating")
    votes = data.votes.double().numpy()
    np.testing.assert_allclose(np.exp(result.log_probs).sum(1), 1, atol=1e-6)
    shares = votes.mean(0)
    gained = (votes[result.rows] * (result.log_probs - np.log(shares))).sum(1)
    assert gained.mean() > 0.05


@pytest.mark.long
def test_every_marginal_trains_whatever_random_numbers_the_user_has_drawn(source: Source) -> None:
    forms = [name for name, method in METHODS.items() if method.published]
    found = train_group(group_of(source, losses=tuple(forms), nets=("mlp",)))
    assert len({result.log_probs.tobytes() for result in found}) == len(forms) == 3
    for result in found:
        torch.manual_seed(12345)
        (again,) = train_group(Group(source, (result.config,)))
        assert_same(result, again)


# Where a net starts, and what its intercept does afterwards.

STARTS = ("population", "equal")


@pytest.mark.parametrize("loss", FULLY_LABELLED)
def test_starts_differ_in_the_output_bias_alone_which_gives_their_classes(loss: str) -> None:
    population, sampling = np.array([0.9, 0.1]), np.array([0.6, 0.4])
    nets = {}
    for start in STARTS:
        (group,) = StudyConfig("quick", losses=(loss,), starts=(start,), nets=("mlp",), populations=(0.1,), folds=1).groups()
        nets[start] = Candidate(group.runs[0], 1e-2, sampling, population, 4).nets[0].module
    one, other = (dict(net.named_parameters()) for net in nets.values())
    assert one.keys() == other.keys()
    differing = [one[name] for name in one if not torch.equal(one[name], other[name])]
    assert [id(each) for each in differing] in ([id(nets["population"].head.bias)], [])
    classes = {start: torch.softmax(net.head.bias.detach().double(), 0)[1].item() for start, net in nets.items()}
    own = population if METHODS[loss].mix == "population" else sampling
    assert classes == pytest.approx({"population": own[1].item(), "equal": 0.5}, rel=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("loss", ["information-gain", "published-network", "weighted"])
def test_the_trace_begins_where_the_net_started(source: Source, loss: str) -> None:
    training = dataclasses.replace(SHORT, learning_rates=(1e-4,))
    group = group_of(source, training, losses=(loss,), starts=STARTS, nets=("mlp",), populations=(0.02,))
    for result, start in zip(train_group(group), (0.02, 0.5), strict=True):
        assert len(result.trace) == len(trace_steps(training.steps)) == 6
        odds, expected = (math.log(each / (1 - each)) for each in (result.trace[0], start))
        assert odds == pytest.approx(expected, abs=0.5)


@pytest.mark.long
@pytest.mark.parametrize(("inference", "loss"), [("map", "published"), ("laplace", "corrected")])
def test_matched_predictions_have_the_prevalence_as_their_mean_on_the_validation_part(
    source: Source, inference: str, loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = StudyData.parts

    def tested_on_validation(data: StudyData, fold: int, num_folds: int) -> Any:
        found = parts(data, fold, num_folds)
        return found._replace(test=found.valid)

    monkeypatch.setattr(StudyData, "parts", tested_on_validation)
    choices: dict[str, Any] = {"inferences": (inference,), "minibatches": ("raw",), "losses": (loss,)}
    found = train_group(group_of(source, starts=("equal",), nets=("mlp",), **choices))
    data = summary_of(source, "binary")
    config = StudyConfig("quick", sources=(source,))
    moved = matched(StudyResults(config, {source.name: data}, tuple(found)))
    for result, plain in zip(moved.runs, found, strict=True):
        means = [np.exp(run.log_probs[:, 1]) for run in (result, plain)]
        labels = data.labels[result.rows]
        at_population = [0.9 * mean[labels == 0].mean() + 0.1 * mean[labels == 1].mean() for mean in means]
        assert at_population[0] == pytest.approx(0.1, rel=1e-6)
        assert at_population[1] != pytest.approx(0.1, rel=1e-3)


@pytest.mark.long
@pytest.mark.parametrize("inference", ["laplace", "variational", "sghmc"])
def test_posteriors_choose_their_prior_on_the_validation_part(source: Source, inference: str) -> None:
    training = dataclasses.replace(SHORT, steps=30 if inference == "sghmc" else 60, batch_size=30, prior_scales=(0.03, 1.0))
    losses = ("corrected",) if inference == "sghmc" else ("information-gain", "corrected")  # chains take long to tune
    group = group_of(source, training, nets=("mlp",), inferences=(inference,), minibatches=("raw",), losses=losses)
    for result in train_group(group):
        assert result.chosen == {"prior_scale": 1.0}, "the narrow prior keeps the weights at nothing"
        scores = [score for (score,) in result.validation]
        assert scores[1] > scores[0]
        np.testing.assert_allclose(np.exp(result.log_probs).sum(1), 1, atol=1e-6)


@pytest.mark.parametrize("loss", FULLY_LABELLED)
def test_the_prior_is_centred_at_the_mix_that_the_logits_are_for_wherever_the_loss_starts(
    source: Source, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    fit, targets = loop.FIT["laplace"], list[Any]()

    def recorded(target: Any, *given: Any, **settings: Any) -> Posterior:
        targets.append(target)
        return fit(target, *given, **settings)

    monkeypatch.setitem(loop.FIT, "laplace", recorded)
    choices: dict[str, Any] = {"inferences": ("laplace",), "minibatches": ("raw",), "losses": (loss,), "starts": ("equal",)}
    (run,) = group_of(source, nets=("mlp",), **choices).runs
    batches = Batches(study_data(source, "binary"), None, run, torch.device("cpu"))
    prevalence = Prevalence.binary(0.1, sampling=float(batches.sampling[1]))
    loop._fit(run, 1.0, batches, prevalence)
    (target,) = targets
    mix = prevalence.sampling if loss in ("corrected", "plain") else prevalence.population
    bias = torch.tensor(mix).log().float().requires_grad_()
    (slope,) = torch.autograd.grad(target.log_prior({**target.parameters(), "3.bias": bias}), bias)
    torch.testing.assert_close(slope, torch.zeros(2), rtol=0, atol=1e-6)


@pytest.mark.long
def test_predictions_of_a_posterior_are_corrected_draw_by_draw(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted: list[Posterior] = []

    def fit(*given: Any, **settings: Any) -> Posterior:
        fitted.append(variational(*given, **settings))
        return fitted[-1]

    monkeypatch.setitem(loop.FIT, "variational", fit)
    training = dataclasses.replace(SHORT, steps=60, batch_size=30, prior_scales=(1.0,))
    group = group_of(source, training, nets=("mlp",), inferences=("variational",), minibatches=("raw",), losses=("corrected",))
    (result,) = train_group(group)
    data = study_data(source, "binary")
    parts = data.parts(0, 4)
    sampled = float(data.labels[parts.train].double().mean())
    tables = torch.cat(list(fitted[0].tables(data.standardised(parts.train)[parts.test]))).double()
    moved = torch.stack([retarget(table, sampled, 0.1) for table in tables]).exp().mean(0)
    np.testing.assert_allclose(np.exp(result.log_probs), moved, rtol=1e-5)


@pytest.mark.long
def test_a_prior_whose_predictions_are_nan_is_left_for_another(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = loop._log_probs
    told = iter([True, False, False, False])  # each scale, then the best on both parts

    def log_probs(*given: Any) -> torch.Tensor:
        return honest(*given) * (math.nan if next(told) else 1)

    monkeypatch.setattr(loop, "_log_probs", log_probs)
    training = dataclasses.replace(SHORT, prior_scales=(0.3, 1.0))
    group = group_of(source, training, nets=("mlp",), inferences=("laplace",), minibatches=("raw",), losses=("weighted",))
    (result,) = train_group(group)
    assert result.chosen == {"prior_scale": 1.0}


def at(group: Group, precision: str) -> Group:
    (run,) = group.runs
    return Group(group.source, (dataclasses.replace(run, training=dataclasses.replace(run.training, precision=precision)),))


@pytest.mark.long
def test_half_precision_comes_close_to_the_whole(source: Source) -> None:
    group = group_of(source, losses=("information-gain",))
    (whole,), (half,) = (train_group(at(group, each)) for each in ("32-true", "bf16-mixed"))
    assert not np.array_equal(whole.log_probs, half.log_probs)
    np.testing.assert_allclose(half.log_probs, whole.log_probs, rtol=0, atol=0.05)
    assert np.ptp(whole.log_probs[:, 1]) > 0.2, "there is something to come close to"


@pytest.mark.long
@pytest.mark.parametrize("precision", ["64-true", "bf16-true"])
def test_weights_may_be_wider_or_narrower(source: Source, precision: str) -> None:
    group = group_of(source, nets=("both",), losses=("weighted",))
    (whole,), (other,) = (train_group(at(group, each)) for each in ("32-true", precision))
    np.testing.assert_allclose(other.log_probs, whole.log_probs, rtol=0, atol=1e-4 if precision == "64-true" else 0.2)


@pytest.mark.long
def test_progress_rises_and_ends_at_one(source: Source) -> None:
    told: list[float] = []
    group = group_of(source, nets=("mlp",), losses=("weighted",), inferences=("map", "laplace"), minibatches=("raw",))
    train_group(group, told.append)
    assert told == sorted(told)
    assert told[-1] == 1
    assert len(told) > SHORT.steps


def test_devices_that_are_not_there_are_refused() -> None:
    assert_refused(lambda: Hardware(accelerator="tpu").fabric(), "tpu")


@pytest.mark.parametrize(("hardware", "precision"), [(Hardware(devices=2), "32-true"), (Hardware(), "bf16-mixed")])
def test_only_one_cpu_in_single_precision_is_served_without_fabric(
    hardware: Hardware, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("lightning_fabric", "lightning", "lightning.fabric"):
        monkeypatch.setitem(sys.modules, name, None)
    assert Hardware().fabric() is None
    with pytest.raises(ImportError, match=r"lightning-fabric: .*\.\[fabric\]"):
        hardware.fabric(precision)


def test_a_batch_that_devices_cannot_share_is_refused(source: Source) -> None:
    odd = group_of(source, dataclasses.replace(SHORT, batch_size=15), nets=("mlp",), losses=("weighted",))
    assert_refused(lambda: train_group(odd, hardware=Hardware(devices=2)), "got 15")


def hopeless(source: Source) -> Group:
    """A group whose only step size ends in NaN."""
    return group_of(source, dataclasses.replace(SHORT, learning_rates=(1e30,)), nets=("mlp",), losses=("weighted",))


def test_step_sizes_that_all_end_in_nan_are_refused(source: Source) -> None:
    assert_refused(lambda: train_group(hopeless(source)), "--learning-rate")
    found = loop._plain(None, hopeless(source), loop.silent)
    assert isinstance(found, ValueError), "so that it can come back from another process"


@pytest.mark.slow
def test_a_users_error_comes_back_from_other_processes_as_it_is(source: Source) -> None:
    assert_refused(lambda: train_group(hopeless(source), hardware=Hardware(devices=2)), "--learning-rate")


@pytest.mark.long
def test_two_processes_give_what_one_gives(source: Source) -> None:
    losses = ("information-gain", "published", "weighted")
    training = dataclasses.replace(SHORT, steps=30, checkpoints=3)
    group = group_of(source, training, nets=("metadata",), losses=losses)
    one, two = (train_group(group, hardware=Hardware(devices=n)) for n in (1, 2))
    for single, double in zip(one, two, strict=True):
        # A net that starts at a constant has no gradient in its bias under the information gain, and Adam takes a full step
        # along whatever rounding leaves there.
        noise = 0.03 if METHODS[single.config.loss].takes_marginal else 1e-5
        assert single.chosen == double.chosen
        np.testing.assert_allclose(double.log_probs, single.log_probs, rtol=0, atol=noise)

"""The grid: what a run is, which runs there are, and what is refused."""

import dataclasses
import hashlib
import json
from typing import Any

import pytest
from members import assert_refused

import rightloss
from rightloss.study.config import PRESETS, RunConfig, Source, StudyConfig, Training
from rightloss.study.methods import ADJUSTED, ADJUSTED_LABELLED

UNLABELLED = StudyConfig("quick", losses=("information-gain", "published", ADJUSTED, "weighted"), unlabelled=0.8)
WEIGHED = dataclasses.replace(UNLABELLED, unlabelled_weight=3.0)
OF_TABLES: dict[str, Any] = {"nets": ("mlp",), "minibatches": ("raw",), "inferences": ("laplace",)}


def another(value: Any) -> Any:
    """A value of a run's or its training's field that is not its own."""
    if isinstance(value, bool | str):
        return "64-true" if isinstance(value, str) else not value
    if isinstance(value, tuple):
        return (*value, 0.5)
    return value + 3 if isinstance(value, int) else (value or 0.0) + 0.001


def through_json(content: Any) -> Any:
    return json.loads(json.dumps(content))


@pytest.mark.parametrize("config", [PRESETS["ratings"], PRESETS["features"], WEIGHED], ids=lambda config: config.preset)
def test_a_config_and_its_runs_come_back_from_json_as_they_were(config: StudyConfig) -> None:
    assert StudyConfig.from_dict(through_json(config.to_dict())) == config
    for run in config.runs()[-2:]:
        assert RunConfig.from_dict(through_json(run.to_dict())) == run


def test_everything_that_a_result_depends_on_is_in_its_files_name() -> None:
    run = PRESETS["quick"].runs()[0]
    fields = {name: value for name, value in vars(run).items() if name != "training"}
    others = [dataclasses.replace(run, **{name: another(value)}) for name, value in fields.items()]
    for name, value in vars(run.training).items():
        others.append(dataclasses.replace(run, training=dataclasses.replace(run.training, **{name: another(value)})))
    assert len({run.key, *(each.key for each in others)}) == 1 + len(others)


def test_names_of_files_are_what_they_were_before_there_were_unlabelled_patients_and_weights_of_them() -> None:
    """By a digest of the fields that were there."""
    for config, new in ((PRESETS["quick"], ("unlabelled", "unlabelled_weight")), (UNLABELLED, ("unlabelled_weight",))):
        run = config.runs()[0]
        content = {name: value for name, value in dataclasses.asdict(run).items() if name not in new}
        digest = hashlib.sha256(json.dumps([rightloss.__version__, content], sort_keys=True).encode()).hexdigest()
        assert run.key.endswith(f"-{digest[:12]}")
        assert (run.to_dict(), RunConfig.from_dict(content)) == (content, run)
        assert not set(new) & set(config.to_dict())


def test_a_share_and_a_weight_of_unlabelled_patients_are_in_names_where_they_matter() -> None:
    for one, two in zip(UNLABELLED.runs(), WEIGHED.runs(), strict=True):
        assert "-80-unlabelled-" in one.key
        assert "80 % unlabelled" in one.label
        assert (one == two) == (one.loss not in ("information-gain", ADJUSTED))
        assert ("weight 3, " in two.label) == ("-weight-3-" in two.key) == (one != two)


def test_where_a_file_lies_is_not_part_of_a_run_nor_of_the_kept_config() -> None:
    configs = [StudyConfig("quick", sources=(Source("scans", "1234", path),)) for path in ("one/scans.npz", "two/scans.npz")]
    assert configs[0].runs() == configs[1].runs()
    assert configs[0].to_dict() == configs[1].to_dict()
    assert "one" not in json.dumps(configs[0].to_dict())


def test_groups_hold_every_run_of_the_product_once_and_share_data_fold_seed_and_minibatches() -> None:
    config = StudyConfig(
        "quick",
        sources=(Source("contours"), Source("scans", "1")),
        nets=("convnet", "inception"),
        losses=("published", "plain"),
        starts=("population", "equal"),
        minibatches=("raw", "rebalanced"),
        folds=3,
        seeds=2,
    )
    groups = config.groups()
    assert config.runs() == [run for group in groups for run in group.runs]
    assert len({run.key for run in config.runs()}) == len(config.runs()) == 2**7 * 3
    assert len(groups) == 2 * 2 * 3 * 2
    for group in groups:
        assert {(run.data, run.fold, run.seed, run.minibatches) for run in group.runs} == {
            (group.source.name, group.runs[0].fold, group.runs[0].seed, group.runs[0].minibatches)
        }


def test_the_papers_tables_have_both_nets_both_prevalences_and_five_of_ten_folds() -> None:
    for name, minibatches in (("table1", ("rebalanced",)), ("table2", ("raw",))):
        config = PRESETS[name]
        assert (config.nets, config.populations, config.minibatches) == (("convnet", "inception"), (0.3, 0.001), minibatches)
        assert (config.folds, config.num_folds, config.training.views, config.training.small) == (5, 10, 9, False)


@pytest.mark.parametrize(
    ("changes", "came"),
    [
        ({"populations": (0.0,)}, "got 0.0"),
        ({"populations": (2,)}, "got 2"),
        ({"populations": (float("nan"),)}, "got nan"),
        ({"populations": (0.1, 0.1)}, "twice"),
        ({"nets": ("resnet",)}, "'resnet'"),
        ({"nets": ()}, "got none"),
        ({"task": "ternary"}, "'ternary'"),
        ({"folds": 11}, "got 11"),
        ({"num_folds": 2, "folds": 1}, "got 2"),
        ({"seeds": 10**9}, r"in 1\.\.1000"),
        ({"evidence": -1.0}, "got -1.0"),
        ({"likelihoods": ("onion-peeling",)}, "onion-peeling"),
        ({"task": "rating"}, "no prevalence for ratings"),
        ({"populations": (None,)}, "two classes"),
        ({"inferences": ("laplace",)}, "laplace for convnet"),
        ({"nets": ("mlp",), "inferences": ("laplace",)}, "got rebalanced"),
        ({"unlabelled": 1.0}, "got 1.0: .* such as 0.8"),
        ({"unlabelled": True}, "got True"),
        ({"unlabelled": 0.8, "unlabelled_weight": 0}, "got 0: .* such as 3"),
        ({"unlabelled": 0.8, "unlabelled_weight": float("inf")}, "got inf"),
        ({"unlabelled_weight": 3.0}, "got 3 and none"),
        ({"losses": (ADJUSTED, ADJUSTED_LABELLED)}, "add --unlabelled 0.8, say, or take 'logit-adjusted'"),
        ({"unlabelled": 0.8, "losses": ("published", "published-network")}, "but got published-network"),
        ({"unlabelled": 0.8, "losses": ("published-running",), **OF_TABLES}, "but got published-running"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(changes: dict[str, Any], came: str) -> None:
    assert_refused(lambda: StudyConfig("quick", **changes), came)


@pytest.mark.parametrize(
    "changes",
    [
        *({"steps": 0}, {"views": 4}, {"checkpoints": 301}, {"weight_decay": -1.0}, {"averaging": 1.0}, {"precision": "7-bit"}),
        *({"learning_rates": ()}, {"learning_rates": [0.001]}, {"prior_scales": (0.0,)}, {"prior_scales": (float("inf"),)}),
    ],
)
def test_training_that_makes_no_sense_is_refused(changes: dict[str, Any]) -> None:
    assert_refused(lambda: Training(**changes), next(iter(changes)))

"""The grid: what a run is, which runs there are, and what is refused."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from members import assert_refused

from rightloss.study.config import PRESETS, RunConfig, Source, StudyConfig, Training
from rightloss.study.results import read_config

OTHER: dict[str, Any] = {
    "data": "elsewhere",
    "digest": "1234",
    "task": "balanced",
    "net": "inception",
    "likelihood": "onion-peeling",
    "loss": "weighted",
    "start": "equal",
    "inference": "ensemble",
    "population": 0.25,
    "evidence": 0.5,
    "minibatches": "raw",
    "fold": 3,
    "num_folds": 7,
    "seed": 5,
    "training": Training(steps=77),
    "unlabelled": 0.5,
    "unlabelled_weight": 3.0,
}


@pytest.mark.parametrize("name", PRESETS)
def test_a_config_and_its_runs_come_back_from_json_as_they_were(name: str) -> None:
    config = PRESETS[name]
    assert StudyConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    run = config.runs()[-1]
    assert RunConfig.from_dict(json.loads(json.dumps(dataclasses.asdict(run)))) == run


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(RunConfig)])
def test_everything_that_a_result_depends_on_is_in_its_files_name(field: str) -> None:
    run = PRESETS["quick"].runs()[0]
    assert dataclasses.replace(run, **{field: OTHER[field]}).key != run.key


OTHER_TRAINING: dict[str, Any] = {
    "steps": 77,
    "batch_size": 8,
    "views": 6,
    "test_views": 3,
    "learning_rates": (0.5,),
    "checkpoints": 2,
    "weight_decay": 0.0,
    "averaging": 0.5,
    "small": False,
    "members": 2,
    "prior_scales": (0.5,),
    "precision": "bf16-mixed",
}


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Training)])
def test_every_field_of_the_training_is_in_the_files_name(field: str) -> None:
    run = PRESETS["quick"].runs()[0]
    other = dataclasses.replace(run.training, **{field: OTHER_TRAINING[field]})
    assert dataclasses.replace(run, training=other).key != run.key


def test_where_a_file_lies_is_not_part_of_a_run_nor_of_the_kept_config() -> None:
    configs = [StudyConfig("quick", sources=(Source("scans", "1234", path),)) for path in ("one/scans.npz", "two/scans.npz")]
    assert configs[0].runs() == configs[1].runs()
    assert "one" not in json.dumps(configs[0].to_dict())
    assert configs[0].to_dict() == configs[1].to_dict()


@pytest.mark.parametrize("name", PRESETS)
def test_groups_hold_every_run_once_and_share_data_fold_seed_and_minibatches(name: str) -> None:
    groups = PRESETS[name].groups()
    runs = [run for group in groups for run in group.runs]
    assert runs == PRESETS[name].runs()
    assert len({run.key for run in runs}) == len(runs)
    for group in groups:
        assert len({(run.data, run.fold, run.seed, run.minibatches, run.training) for run in group.runs}) == 1
    shared = {(group.source, group.runs[0].fold, group.runs[0].seed, group.runs[0].minibatches) for group in groups}
    assert len(shared) == len(groups)


def test_the_grid_is_the_product_of_its_choices() -> None:
    config = StudyConfig("quick", nets=("convnet", "inception"), losses=("weighted", "corrected"), folds=3, seeds=2)
    assert len(config.runs()) == 2 * 2 * 2 * 3 * 2


def test_every_loss_has_every_start() -> None:
    config = StudyConfig("quick", losses=("published", "plain"), starts=("population", "equal"), populations=(0.1,), folds=1)
    assert [(run.loss, run.start) for run in config.runs()] == [
        (loss, start) for loss in ("published", "plain") for start in ("population", "equal")
    ]


@pytest.mark.parametrize("name", ["table1", "table2"])
def test_the_papers_tables_have_both_nets_both_prevalences_and_five_of_ten_folds(name: str) -> None:
    config = PRESETS[name]
    assert (config.nets, config.populations, config.folds, config.num_folds) == (
        ("convnet", "inception"),
        (0.3, 0.001),
        5,
        10,
    )
    assert config.training.views == 9
    assert not config.training.small
    assert config.minibatches == (("rebalanced",) if name == "table1" else ("raw",))


@pytest.mark.parametrize(
    ("changes", "came"),
    [
        ({"populations": (0.0,)}, "got 0.0"),
        ({"populations": (2,)}, "got 2"),
        ({"populations": (float("nan"),)}, "got nan"),
        ({"populations": (0.1, 0.1)}, "twice"),
        ({"populations": ()}, "each once"),
        ({"nets": ("resnet",)}, "'resnet'"),
        ({"nets": ()}, "got none"),
        ({"losses": ("focal",)}, "'focal'"),
        ({"task": "ternary"}, "'ternary'"),
        ({"folds": 11}, "got 11"),
        ({"folds": 0}, "got 0"),
        ({"num_folds": 2, "folds": 1}, "got 2"),
        ({"seeds": 0}, "got 0"),
        ({"seeds": 10**9}, r"in 1\.\.1000"),
        ({"evidence": -1.0}, "got -1.0"),
        ({"likelihoods": ("onion-peeling",)}, "onion-peeling"),
        ({"task": "rating"}, "prevalence"),
        ({"inferences": ("laplace",)}, "laplace"),
        ({"nets": ("mlp",), "inferences": ("laplace",)}, "rebalanced"),
        ({"populations": (None,)}, "two classes"),
        ({"starts": ("zero",)}, "'zero'"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(changes: dict[str, Any], came: str) -> None:
    assert_refused(lambda: StudyConfig("quick", **changes), came)


@pytest.mark.parametrize("content", ["", "[]", "null", "{}", '{"version": "1", "sources": [], "training": []}'])
def test_a_study_file_that_holds_no_config_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "study.json").write_text(content)
    assert_refused(lambda: read_config(tmp_path), "study.json")


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 0},
        {"views": 4},
        {"test_views": 0},
        {"checkpoints": 301},
        {"learning_rates": ()},
        {"learning_rates": (0.0,)},
        {"learning_rates": [0.001]},
        {"prior_scales": (float("inf"),)},
        {"members": 0},
        {"weight_decay": -1.0},
        {"averaging": 1.0},
        {"precision": "7-bit"},
    ],
)
def test_training_that_makes_no_sense_is_refused(changes: dict[str, Any]) -> None:
    assert_refused(lambda: Training(**changes), next(iter(changes)))

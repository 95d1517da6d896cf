"""Real jobs of MindFormers 1.9: killed in mid-epoch, started again, and in the end as if nothing had happened."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ckptstore import Policy
from tests import ckpt_bytes
from tests.mindformers.running import EXAMPLE, RUN, TEXT, Job, run

Undisturbed = dict[tuple[int, bool], Job]

FORMATS = pytest.mark.parametrize("newer", [False, True], ids=["1.0", "newer"])


@FORMATS
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_job_that_is_killed_twice_in_mid_epoch(
    job: Job, undisturbed: Undisturbed, ranks: int, *, newer: bool
) -> None:
    """The second launch of format 1.0 gives its files MindSpore's `_1`, the third `_2`."""
    job.ranks, job.newer = ranks, newer
    job.trains(kill_at=8, kill_rank=ranks - 1)
    assert job.newest() == 5
    job.trains(kill_at=6, kill_rank=ranks - 1)
    assert job.newest() == 10
    told = job.trains()
    assert f"ckptstore: run {RUN}: going on after step 10 (epoch 1, step 10 of {24 // ranks})" in told
    assert job.ends_as(undisturbed[ranks, newer])
    names = {path.name for path in job.root.rglob("*") if "_rank_0_2-" in path.name}
    assert bool(names) != newer


def test_a_job_that_saves_ckpt_files(job: Job) -> None:
    calm = Job(job.home / "calm", job.text, ranks=2, form="ckpt", url=f"sqlite:///{job.home}/calm.db")
    calm.trains()
    job.ranks, job.form = 2, "ckpt"
    job.trains(kill_at=8, kill_rank=1)
    assert f"run {RUN}: going on after step 5 " in job.trains()
    assert job.ends_as(calm)


def test_a_job_that_evaluates_while_it_trains(job: Job) -> None:
    """Every 3 steps and at the end of an epoch, on other data: MindFormers' EvalCallBack."""
    home = job.home / "evaluated"
    home.mkdir()
    run([str(TEXT), str(home / "text.mindrecord"), "32"])  # an evaluation takes no token more than it predicts
    data = yaml.safe_load((EXAMPLE / "llama.yaml").read_text())["train_dataset"]
    data["data_loader"] |= {"dataset_dir": str(home), "shuffle": False}
    task = {"type": "CausalLanguageModelDataset", "dataset_config": data}
    every = {"do_eval": True, "eval_step_interval": 3, "eval_epoch_interval": 1, "metric": {"type": "PerplexityMetric"}}
    job.settings = {**every, "eval_dataset": data, "eval_dataset_task": task}
    calm = replace(job, home=job.home / "calm", url=f"sqlite:///{job.home}/calm.db")
    assert "Eval result" in calm.trains()
    job.trains(kill_at=8)
    assert f"run {RUN}: going on after step 5 " in job.trains()
    assert job.ends_as(calm)


def zero(path: Path) -> None:
    path.chmod(0o600)
    path.write_bytes(b"")


@FORMATS
def test_the_newest_set_is_not_whole_on_one_rank_and_notes_lie(
    job: Job, undisturbed: Undisturbed, *, newer: bool
) -> None:
    """Rank 1 has an empty file of step 10; MindFormers' own notes lie, or are of no use.

    In data parallel the file of rank 0 serves both. Nothing stands in for a part of an iteration.
    """
    job.ranks, job.newer = 2, newer
    job.trains(kill_at=11, kill_rank=1)
    assert job.newest() == 10
    zero(job.files(10, 1)[-1])
    if newer:
        (job.root / "latest_checkpointed_iteration.txt").write_text("99")
    else:
        os.truncate(job.root / "rank_0" / "meta.json", 20)
        stale = {"last_epoch": 1, "last_step": 3, "last_ckpt_file": "llama_rank_1-1_3.safetensors"}
        (job.root / "rank_1" / "meta.json").write_text(json.dumps(stale))
    expected = 5 if newer else 10
    assert job.newest() == expected
    assert f"run {RUN}: going on after step {expected} " in job.trains()
    assert job.ends_as(undisturbed[2, newer])


@FORMATS
def test_one_start_more_than_there_is_to_train(job: Job, *, newer: bool) -> None:
    """A job that was killed between its last save and its end ends well at its next start, and not with an error."""
    job.newer = newer
    job.trains()
    assert f"run {RUN}: all 2 epochs were trained before: nothing left to train" in job.trains()


@FORMATS
def test_what_gc_removes_and_what_mindformers_goes_on_from_then(
    job: Job, undisturbed: Undisturbed, *, newer: bool
) -> None:
    job.newer = newer
    job.trains(kill_at=18)
    catalog = job.catalog()
    done = catalog.execute(catalog.plan_gc(RUN, Policy(keep_last=1, floor=1)), allow_mass_delete=True)
    assert done.removed
    if newer:
        assert sorted(path.name for path in job.root.glob("iteration_*")) == ["iteration_00000015"]
        assert (job.root / "latest_checkpointed_iteration.txt").read_text() == "15"
    job.trains()
    assert job.ends_as(undisturbed[1, newer])
    assert catalog.undo(RUN).files


@FORMATS
def test_another_batch_size_goes_on_at_the_same_sample(job: Job, *, newer: bool) -> None:
    """Step 5 of batches of 4 is step 10 of batches of 2. MindFormers scales the optimizer's counter too."""
    job.newer = newer
    job.trains(kill_at=8)
    job.settings = {"runner_config": {"epochs": 2, "batch_size": 2, "sink_mode": False, "sink_size": 1}}
    told = job.trains(kill_at=8)
    assert f"run {RUN}: going on after step 10 (epoch 1, step 10 of 48), saved as step 5" in told
    assert job.newest() == 15


def test_a_yaml_with_which_the_data_would_go_on_elsewhere_stops_the_start(job: Job) -> None:
    job.trains(kill_at=8)
    for settings in ({"data_skip_steps": 3}, {"ignore_data_skip": True}):
        job.settings = settings
        code, told = job.start()
        assert code != 0
        (name,) = settings
        assert f"the YAML has {name}: {settings[name]}, with which the data would" in told
        assert job.newest() == 5


@pytest.mark.parametrize(
    ("newer", "is_file"), [(False, False), (False, True), (True, False)], ids=["1.0", "a file of 1.0", "newer"]
)
def test_a_yaml_that_asks_to_resume_from_what_the_catalog_does_not_know(
    job: Job, *, newer: bool, is_file: bool
) -> None:
    job.newer = newer
    asked = job.root / "rank_0" / "llama_rank_0-1_5.safetensors" if is_file else job.root
    job.root.mkdir(parents=True)
    if is_file:
        ckpt_bytes.write(asked, 5)
    own = {"checkpoint": {"load_path": str(asked), "no_load_optim": False}}
    job.settings = own if newer else {"load_checkpoint": str(asked), "resume_training": True}
    code, said = job.start()
    assert code != 0
    assert f"the YAML asks to resume from {asked}, and run {RUN} has no state to go on from" in said
    anew = f"; to begin anew: leave out {'checkpoint.load_path' if newer else 'resume_training'}"
    adopts = f"ckptstore scan {job.root} --run {RUN}, and start again"
    assert f"{'iterations that a scan finds are never restored' if newer else adopts}{anew}" in said


def test_a_new_run_that_would_write_over_the_iterations_of_another_one(job: Job) -> None:
    """Both runs give their directories the same names."""
    job.newer = True
    job.trains(kill_at=8)
    config = yaml.safe_load((EXAMPLE / "llama.yaml").read_text())
    config["callbacks"][-1]["run"] = "mistyped"
    job.settings = {"callbacks": config["callbacks"]}
    said = job.trains(kill_at=3)
    assert f"run mistyped is new, and {job.root} has checkpoints of run {RUN}, up to step 5: to go" in said

"""The simulator of trees names and numbers files as MindSpore does."""

from tests.scan.simulated_trees import Job, Saver, Start


def names(job: Job, launch: int) -> dict[str, int]:
    return {path.rpartition("/")[2]: step for path, (of, _, step) in job.truth.items() if of == launch}


def test_it_names_files_as_mindspore_does() -> None:
    """Domain §3 and §4, seen in real runs of 10 steps an epoch."""
    job = Job(10, 1, [Saver("lenet", 1)])
    job.launch(Start(17))
    job.launch(Start(13))
    assert names(job, 2)["lenet_1-3_9.ckpt"] == 26
    assert names(job, 2)["lenet_1-3_3.ckpt"] == 30
    truthful = Job(10, 1, [Saver("l", 1)])
    truthful.launch(Start(15))
    truthful.launch(Start(6, truthful=True))
    assert names(truthful, 2)["l_1-2_6.ckpt"] == 16
    assert names(truthful, 2)["l_1-3_1.ckpt"] == 21
    raised = Job(10, 1, [Saver("l", 5)])
    raised.launch(Start(17, end="raise before"))
    assert raised.truth["/out/rank_0/l-2_8_breakpoint.ckpt"] == (1, 0, 17)

"""A restore plan in the words of other tools."""

import json
from dataclasses import replace

from ckptstore.core.model import Assignment, RestorePlan
from ckptstore.core.replicas import Layout
from ckptstore.resume import resolver
from ckptstore.resume.export import meta_json, restore_ranks
from tests.resume.builders import as_recorded, file, launch, state


def plan(ranks: tuple[int, ...] = (0, 5, 2, 11)) -> RestorePlan:
    """12 ranks in groups {0,4,8} … {3,7,11}, of which one each saved: 11 must not be taken for 1."""
    of = launch(world_size=12, layout=Layout("stated", ((0, 4, 8), (1, 5, 9), (2, 6, 10), (3, 7, 11))))
    saved = state(of, *(replace(file(of, rank), epoch=2, step_in_epoch=5) for rank in ranks))
    verdict = resolver.judge(saved, as_recorded(saved))
    assert isinstance(verdict, RestorePlan)
    return verdict


def test_the_variables_of_the_fault_tolerance_controller() -> None:
    told = restore_ranks(plan())
    assert told["RESTORE_RANKS"] == "0,2,5,11"
    assert json.loads(told["RESTORE_RANKS_MAP"]) == {"0,4,8": 0, "1,5,9": 5, "2,6,10": 2, "3,7,11": 11}
    assert restore_ranks(None) == {"RESTORE_RANKS": "-1", "RESTORE_RANKS_MAP": "{}"}


def test_meta_json_names_a_file_in_its_own_directory_and_the_path_of_any_other() -> None:
    metas = meta_json(plan(), "/ckpt/L1/")
    assert len(metas) == 12
    assert metas["/ckpt/L1/rank_0/meta.json"] == {"last_epoch": 2, "last_step": 5, "last_ckpt_file": "periodic-15.ckpt"}
    assert metas["/ckpt/L1/rank_1/meta.json"]["last_ckpt_file"] == "/ckpt/L1/rank_5/periodic-15.ckpt"


def test_meta_json_has_the_numbers_of_the_name_since_mindformers_makes_the_name_of_them() -> None:
    """After a start inside an epoch, the file of step 10 is `…_1-1_5`, and `…_1-1_10` is that of step 15."""
    relaunched = replace(plan().ranks[0].source, path="/ckpt/rank_0/llama_rank_0_1-1_5.ckpt", epoch=1, step_in_epoch=10)
    metas = meta_json(replace(plan(), ranks=(Assignment(0, relaunched),)), "/ckpt")
    assert metas == {
        "/ckpt/rank_0/meta.json": {"last_epoch": 1, "last_step": 5, "last_ckpt_file": "llama_rank_0_1-1_5.ckpt"}
    }

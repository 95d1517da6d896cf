"""How MindSpore goes on after a fault, in the same process: `_handle_tft` in its `train/model.py`."""

from __future__ import annotations

from typing import Any


def repaired_step(params: Any, steps_of_epochs: int) -> int:
    """The step that MindSpore goes on after, having repaired a fault in the same process.

    It calls `_train` again: with `initial_step` counted in the epoch, or from the beginning where data sinks; a
    training result error leaves it in the callback parameters (`_handle_tft`, `_calc_cb_initial_step` in
    `train/model.py`).
    """
    from_the_beginning = int(params.get("initial_step") or 0)
    if from_the_beginning:
        return from_the_beginning
    given = int(params.cur_step_num)
    return given if params.get("dataset_sink_mode") else steps_of_epochs + given


def is_wrong_result(error: object) -> bool:
    """Whether MindSpore ended training since it found what was computed to be wrong: a training result error.

    `_handle_tft` tells it by "TREError" in the text of a `RuntimeError`, and each rank loads an older state by its
    `ckpt_load_fn`, or its snapshot. All else (UCEError, HCCEError, ForceStopError, "ARF FINISH") it leaves to MindIO's
    controller (`_handle_exception_info`): hardware failed there, and what was saved before is as good as ever.
    """
    return isinstance(error, RuntimeError) and "TREError" in str(error)

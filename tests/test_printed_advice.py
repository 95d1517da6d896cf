"""Every command, option, variable and Python call that a message prints is there, and takes what is printed."""

import ast
import inspect
import re
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import click
import mindspore
import pytest
from mindspore.train import Model

import ckptstore
from ckptstore.cli.main import cli
from ckptstore.mindspore import Start, TrainingLaunch
from tests import printed
from tests.cli.advice import commands_in

OF_ITSELF = {"does", "failed", "has", "here", "keeps", "looks", "needs", "restores", printed.FILLER}
"""How sentences go on that are about ckptstore; what else follows its name is a command."""

OF_ALL = {"--help", "--version"}
OF_OTHERS = {"--worker_num", "--local_worker_num", "--master_port", "--join", "--log_dir", "--mkpath"}
"""Options of msrun and rsync."""
NAMES = {"ckptstore": ckptstore, "mindspore": mindspore, "launch": TrainingLaunch, "model": Model, "start": Start}
CALLS = {name: getattr(TrainingLaunch, name) for name in ("resume", "begin_fresh", "registrar")}
CALLS["join"] = ckptstore.mindspore.join


FOLLOWED = {
    "scan/test_foreign.py::test_mindspore_does_not_start_from_what_it_cannot_load": [
        "resume/remedies.py: resolve 7 --step 7 --format paths",
    ],
    "cli/test_retention.py::test_a_directory_that_is_gone_for_good": [
        "cli/retention_text.py: scan DIRECTORY --run 7",
    ],
    "cli/test_advice.py::test_a_catalog_that_is_made_anew_knows_the_trash": ["cli/scanning.py: undo 7"],
    "cli/test_advice.py::test_a_catalog_that_is_not_there_or_empty": [
        "catalog/postgres.py: db upgrade", "catalog/schema.py: runs", "catalog/versions.py: db upgrade",
    ],
    "cli/test_advice.py::test_a_damaged_catalog_is_made_anew": [
        "catalog/engine.py: doctor", "catalog/engine.py: scan DIR", "doctor/check_database.py: scan DIR",
    ],
    "cli/test_advice.py::test_a_directory_for_a_run": [
        "retention/gc.py: runs", "retention/gc.py: scan 7", "retention/gc.py: scan DIRECTORY",
    ],
    "cli/test_advice.py::test_a_file_that_no_catalog_knows": ["verify/verify.py: scan DIRECTORY"],
    "cli/test_advice.py::test_a_policy_is_stored_as_the_message_says": ["retention/plan.py: policy 7 --keep-last 5"],
    "cli/test_advice.py::test_a_rank_of_which_nothing_was_recorded": ["resume/remedies.py: scan DIRECTORY"],
    "cli/test_advice.py::test_a_start_that_passes_over_a_state": ["doctor/check_launch.py: history 7"],
    "cli/test_advice.py::test_doctor_where_files_were_deleted": ["doctor/check_launch.py: resolve 7"],
    "cli/test_advice.py::test_names_that_are_not_there": [
        "catalog/runs.py: runs", "resume/overview.py: list 7", "resume/resolve.py: list 7",
    ],
    "cli/test_advice.py::test_starts_that_are_refused": [
        "resume/start.py: resolve 7 --all", "resume/start.py: resolve 7 --explain",
        "resume/start.py: resolve 7 --step 7 --explain",
    ],
    "cli/test_advice.py::test_steps_of_which_nothing_is_left": ["retention/protect.py: list 7"],
    "cli/test_advice.py::test_undo_brings_back_what_gc_removed": [
        "resume/faults.py: undo 7", "resume/remedies.py: undo 7",
    ],
    "cli/test_advice.py::test_verify_takes_note_of_what_was_brought_back": ["resume/faults.py: verify 7"],
    "cli/test_advice.py::test_what_doctor_says_of_journals_trash_and_copies": [
        "doctor/check_storage.py: purge 7", "doctor/check_storage.py: resolve 7", "doctor/check_storage.py: sync 7",
    ],
    "cli/test_advice.py::test_what_is_in_the_trash": [
        "disk/places.py: undo RUN", "resume/start.py: undo 7", "retention/protect.py: undo 7",
        "retention/protect.py: untag 7 7",
    ],
    "cli/test_advice.py::test_what_is_said_where_a_run_is_forgotten": [
        "catalog/runs.py: forget 7 --undo", "cli/names.py: forget 7 --undo", "cli/names.py: purge 7 --now",
        "resume/join.py: forget 7 --undo", "scan/plan.py: forget 7 --undo",
    ],
    "cli/test_names.py::test_a_catalog_made_anew_knows_what_was_forgotten_and_renamed": [
        "journal/accept.py: forget 7 --apply",
    ],
    "doctor/test_database.py::test_the_rest_of_the_page_without_the_catalog": ["doctor/check_storage.py: sync"],
    "doctor/test_disks.py::test_a_catalog_on_the_disk_that_its_checkpoints_have_filled": [
        "catalog/sqlite.py: --db OTHER.db gc RUN --keep-last 2 --apply --now",
        "catalog/sqlite.py: --db OTHER.db purge RUN --now", "catalog/sqlite.py: --db OTHER.db scan DIR --run RUN",
    ],
    "doctor/test_disks.py::test_room_for_more_saves": [
        "doctor/check_storage.py: gc 7 --keep-last 2", "doctor/check_storage.py: gc 7 --keep-last 2 --apply --now",
        "doctor/check_storage.py: purge 7 --now",
    ],
    "doctor/test_doctor.py::test_a_moved_tree_that_was_scanned": ["doctor/check_storage.py: scan NEW --run 7"],
    "doctor/test_doctor.py::test_newer_states_that_cannot_be_restored": [
        "doctor/check_launch.py: resolve 7 --explain",
    ],
    "journal/test_whose_word.py::test_what_a_journal_says_of_a_run_that_the_catalog_has_waits_for_somebody": [
        "journal/accept.py: policy 7", "journal/accept.py: unpin 7 7", "journal/accept.py: untag 7 7",
    ],
    "mindspore/test_arguments.py::test_join_says_what_it_needs": ["mindspore/launch.py: ckptstore.connect()"],
    "mindspore/test_arguments.py::test_resume_says_what_it_needs": ["mindspore/resume.py: launch.resume()"],
    "mindspore/test_conversion.py::test_shares_are_put_together_as_printed": [
        "resume/remedies.py: mindspore.unified_safetensors(merge_with_redundancy=, file_suffix=)",
    ],
    "mindspore/test_conversion.py::test_what_is_printed_converts_every_value": [
        "resume/remedies.py: mindspore.load_checkpoint(format=)",
        "resume/remedies.py: mindspore.merge_pipeline_strategys()",
        "resume/remedies.py: mindspore.rank_list_for_transform()",
        "resume/remedies.py: mindspore.save_checkpoint()",
        "resume/remedies.py: mindspore.transform_checkpoint_by_rank()",
    ],
    "mindspore/test_dying_gasp.py::test_a_state_whose_loss_is_not_finite_is_passed_over": [
        "resume/remedies.py: resume(take_quarantined=)", "resume/start.py: resume(take_quarantined=)",
    ],
    "mindspore/test_exact_data.py::test_in_debug_mode_every_iterator_begins_anew_and_the_start_is_refused": [
        "mindspore/exact_data.py: mindspore.dataset.config.set_debug_mode()",
    ],
    "mindspore/test_faults.py::test_a_tree_that_was_moved": ["resume/faults.py: scan NEW --run 7"],
    "mindspore/test_forgotten_lines.py::test_a_loop_of_single_epochs": [
        "mindspore/train_call.py: model.train()", "mindspore/train_call.py: model.train(callbacks=, initial_epoch=)",
    ],
    "mindspore/test_forgotten_lines.py::test_a_dataset_that_shuffles_without_a_seed": [
        "mindspore/exact_data.py: mindspore.set_seed()",
    ],
    "mindspore/test_forgotten_lines.py::test_the_first_way_out_of_it": ["mindspore/training.py: launch.resume()"],
    "mindspore/test_forgotten_lines.py::test_registrar_forgotten__before_began_again_at_step_0__now_is_said": [
        "mindspore/launch.py: launch.registrar()", "mindspore/launch.py: model.train(callbacks=)",
    ],
    "mindspore/test_forgotten_lines.py::test_the_registrar_is_forgotten_and_it_is_said_again_at_exit": [
        "mindspore/launch.py: scan 7 --run 7",
    ],
    "mindspore/test_forgotten_lines.py::test_to_begin_anew_on_purpose": [
        "mindspore/training.py: launch.begin_fresh()",
    ],
    "mindspore/test_full_disks.py::test_what_is_printed_frees_room_for_the_next_start": [
        "mindspore/registrar.py: gc 7 --keep-last 2", "mindspore/registrar.py: gc 7 --keep-last 2 --apply --now",
    ],
    "mindspore/test_mistakes.py::the_name_is_mistyped": ["training/save_places.py: join()"],
    "mindspore/test_mistakes.py::the_same_job_twice": ["training/life_signs.py: join(take_over=)"],
    "mindspore/test_overlooked_saves.py::test_a_first_start_beside_older_files_is_told_of_them": [
        "training/save_places.py: scan 7 --run 7",
    ],
    "mindspore/test_overlooked_saves.py::test_saves_that_nobody_knew_of_do_not_stop_a_training_that_has_begun": [
        "training/save_places.py: resume(lineage=)",
    ],
    "mindspore/test_resume.py::test_a_run_that_was_renamed_is_called_by_its_name": [
        "resume/start.py: resume(fresh=)",
    ],
    "mindspore/test_resume.py::test_data_that_grew_goes_on_at_the_end_of_an_epoch": ["resume/start.py: resume(step=)"],
    "resume/test_resolve.py::test_a_start_says_which_history_it_leaves_behind": ["resume/start.py: resume(lineage=)"],
    "resume/test_rollback.py::test_a_launch_that_asks_for_an_older_step_gives_up_what_came_after": [
        "resume/remedies.py: resume(lineage=)",
    ],
    "scan/test_experiments.py::test_ten_experiments__before_became_one_run__now_ten_by_the_printed_commands": [
        "scan/experiments.py: scan 7 --run 77", "scan/experiments.py: scan 77",
        "scan/plan.py: scan 7 --run 7 --world-size 7",
    ],
    "scan/test_experiments.py::test_who_says_that_they_are_one_run_is_believed_unless_the_networks_differ": [
        "scan/plan.py: scan 7 --run 7", "scan/plan.py: scan 7 --run 77",
    ],
    "scan/test_grades.py::test_a_start_beside_what_has_no_place_may_be_told_its_step": [
        "cli/explanation.py: resume(step=)",
    ],
    "scan/test_grades.py::test_a_state_that_does_not_fit_the_dataset_is_passed_over_with_that_reason": [
        "resume/remedies.py: resume(step=)",
    ],
    "scan/test_grades.py::test_what_gets_no_place_is_known_and_stops_a_start_until_it_has_one": [
        "cli/text.py: resolve 7 --explain", "resume/unplaced.py: scan 7 --run 7",
    ],
    "scan/test_scan_names_used_again.py::test_what_gc_moved_to_the_trash_has_its_path_until_it_is_purged": [
        "scan/known_files.py: purge 7 --now",
    ],
    "training/test_begin.py::test_a_launch_that_went_on_from_a_scanned_state_is_not_followed_by_a_fresh_start": [
        "resume/start.py: scan DIRECTORY --run 7",
    ],
}  # fmt: skip
"""The test that follows an advice in the situation that prints it."""

NOT_FOLLOWED = {
    "catalog/schema.py: db upgrade": "there is one schema so far, and no older one",
    "journal/accept.py: rename 7 7": "another name takes no protection away: that is never printed",
    "mindspore/communication.py: ckptstore.mindspore.join()": "each job of several ranks calls it in that order",
    "mindspore/communication.py: mindspore.communication.init()": "the same",
    "mindspore/data.py: resume(step=)": "the CPU has no data sink",
    "resume/remedies.py: mindspore.unified_safetensors(merge_with_redundancy=)": "the one with file_suffix is followed",
}
"""What is held against the commands and signatures only, and why."""


@cache
def messages() -> list[tuple[str, str]]:
    """What may be printed, and where that stands."""
    return [(module.name, text) for module in printed.modules() for text in module.printed()]


def commands() -> dict[tuple[str, str], list[str]]:
    """Where a command stands and what it is, with its arguments."""
    found = {}
    for where, text in messages():
        for words in commands_in(text):
            arguments = words[2:] if words[0] == "--db" else words
            if arguments and arguments != ["--help"] and arguments[0] not in OF_ITSELF:
                found[where, " ".join(words)] = arguments
    return found


def test_each_command_takes_what_is_printed_with_it() -> None:
    found = commands()
    assert len(found) > 50
    for (where, line), (name, *arguments) in found.items():
        command: Any = cli.commands.get(name)
        if isinstance(command, click.Group):
            command = command.commands.get(arguments.pop(0))
        assert command is not None, f"{where}: ckptstore {line}"
        try:
            command.make_context(name, arguments)
        except click.UsageError as error:
            pytest.fail(f"{where}: ckptstore {line}: {error.format_message()}")


def test_each_option_is_one_of_some_command() -> None:
    groups = [command for command in cli.commands.values() if isinstance(command, click.Group)]
    every = chain(cli.commands.values(), *(group.commands.values() for group in groups))
    parameters = [parameter for command in every for parameter in command.params]
    known = {option for each in parameters for option in (*each.opts, *each.secondary_opts)} | OF_ALL | OF_OTHERS
    for where, text in messages():
        assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text)) <= known, (where, text)


def test_each_variable_is_one_that_is_read() -> None:
    known = {text for _, text in messages() if re.fullmatch(r"CKPTSTORE_[A-Z_]+", text)}
    for where, text in messages():
        for name in re.findall(r"CKPTSTORE_[A-Z_]+", text):
            assert name in known, (where, text)


def test_each_python_call_takes_what_is_printed_with_it() -> None:
    found = calls()
    assert len(found) > 30
    for where, call in found:
        function = called(ast.unparse(call.func))
        assert function is not None, (where, ast.unparse(call))
        signature = inspect.signature(function)
        given = [None] * (len(call.args) + ("self" in signature.parameters))
        signature.bind_partial(*given, **{each.arg or "": None for each in call.keywords})


def test_each_advice_has_a_test_that_follows_it() -> None:
    """A new one fails here until it has: what is parsed may still not help."""
    every = {f"{where}: {line}" for where, line in commands()}
    every |= {
        f"{where}: {ast.unparse(call.func)}({', '.join(f'{each.arg}=' for each in call.keywords)})"
        for where, call in calls()
    }
    assert sorted([*chain.from_iterable(FOLLOWED.values()), *NOT_FOLLOWED]) == sorted(every)
    for name in FOLLOWED:
        file, _, function = name.partition("::")
        assert f"def {function}(" in (Path(__file__).parent / file).read_text(), name


def test_each_name_of_a_launch_a_start_or_a_model_is_there() -> None:
    for where, text in messages():
        for name in re.findall(r"(?<![\w./])((?:launch|start|model)\.[a-z]\w+)", text):
            assert called(name) is not None, (where, text)


@cache
def calls() -> list[tuple[str, ast.Call]]:
    """The calls in messages, and in their arguments, and where they stand."""
    found = []
    for where, text in messages():
        said = text.replace("…", "...")
        for begin in re.finditer(r"(?<![\w.])(?:[a-z]\w*\.)*[a-z]\w*(?=\()", said):
            if begin[0] in CALLS or begin[0].split(".")[0] in NAMES:
                wholes = (said[begin.start() : end.end()] for end in re.finditer(r"\)", said))
                call = next(each for each in map(parsed, wholes) if each is not None)
                found += [(where, each) for each in ast.walk(call) if isinstance(each, ast.Call) and is_ours(each)]
    return found


def parsed(text: str) -> ast.AST | None:
    """An expression; None for a text that is none."""
    try:
        return ast.parse(text, mode="eval")
    except SyntaxError:
        return None


def is_ours(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    return name in CALLS or name.split(".")[0] in NAMES


def called(name: str) -> Any:
    """What a name leads to; None if that is not there."""
    if name in CALLS:
        return CALLS[name]
    first, *rest = name.split(".")
    found: Any = NAMES[first]
    for each in rest:
        found = getattr(found, each, None)
    return found

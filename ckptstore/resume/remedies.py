"""Tells the operator how to make a rejected state restorable, or how to place a file: one line for each part."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import partial
from posixpath import commonprefix
from typing import TYPE_CHECKING

from ckptstore.core.classify import bare_rank
from ckptstore.core.hints import Call, Command
from ckptstore.core.model import Content, FileState, Reason, Rule
from ckptstore.core.naming import FOREIGN, ONE_FILE, PYTORCH, TENSORFLOW, format_of, parse_rank_directory
from ckptstore.core.replicas import show
from ckptstore.core.text import count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ckptstore.core.model import Checkpoint, State, Unplaced

BY_MOVING = "move it to the directory of its rank and scan that, or out of the run's directories"
"""What to do about a file of which no option of `ckptstore scan` tells the rank."""

_PATHS_SHOWN = 4
_RANK = re.compile(r"rank_(\d+)")
_NO_STRATEGY = "None"
_LOST = {Rule.MISSING_FILE, Rule.SIZE_MISMATCH, Rule.DIGEST_MISMATCH, Rule.UNREADABLE, Rule.QUARANTINED}


def of_state(reason: Reason, state: State) -> str:
    """What to do about a state that is rejected as a whole; empty: nothing."""
    if reason.rule is Rule.QUARANTINED:
        shown = f"{Command('resolve', state.launch.run, '--take-quarantined')} shows what a start then loads"
        return f"to take it all the same, write {Call('resume', take_quarantined=True)} in the script; {shown}"
    if reason.rule is Rule.NOT_LINEAGE:
        launch, step = state.launch.id, state.global_step
        call = Call("resume", lineage=launch, step=step)
        branch = Command("resolve", f"{state.launch.run}/{launch}@{step}", "--branch")
        return f"to go back to it: {branch}, or in a script {call}"
    if reason.rule is Rule.FOREIGN_FORMAT and any(file.format in FOREIGN for file in state.files):
        command = Command("resolve", state.launch.run, "--step", state.global_step, "--format", "paths")
        return f"to pass its files to a program that can load them: {command}"
    if reason.rule is Rule.OTHER_EPOCHS:
        return f"if it is of this data all the same: {Call('resume', step=state.global_step)}"
    return ""


def of_ranks(
    missing: Sequence[int],
    group: Sequence[int],
    files: Iterable[Checkpoint],
    faults: Mapping[str, Reason],
    *,
    in_shares: bool,
) -> str:
    """How the `missing` ranks get a file: by repair of `files` with `faults`, their replica `group`'s or their own."""
    broken = [file for file in files if file.id in faults and (not in_shares or file.rank in missing)]
    by_way: dict[str, list[str]] = defaultdict(list)
    is_marked = False  # as damaged, until a verification finds the file whole
    for file in broken:
        way = _way(file, faults[file.id].rule)
        by_way[way].append(file.path)
        is_marked |= way == "bring" and file.state is FileState.DAMAGED
    ways = []
    if by_way["look"]:
        ways.append(f"make {_of(by_way['look'], in_shares=in_shares)} readable: check permissions and the disk")
    if by_way["undo"]:
        ways.append(f"{Command('undo', broken[0].run)} brings back {_paths(by_way['undo'])}, while it is in the trash")
    if by_way["bring"]:
        then = f", then run: {Command('verify', broken[0].run)}" if is_marked else ""
        ways.append(f"bring back {_of(by_way['bring'], in_shares=in_shares, what='the original')} from a backup{then}")
    who = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {show(missing)}"
    if ways:
        return f"for {who}: {(', and ' if in_shares else ', or ').join(ways)}"
    if by_way["wait"]:
        return f"for {who}: wait until {_paths(by_way['wait'])} is written, if its process is alive"
    others = () if in_shares else [rank for rank in group if rank not in missing]
    replica = f", or of a replica (rank {show(others)})," if others else ""
    return f"if a file of {who}{replica} is on a disk, record it: {Command('scan', 'DIRECTORY')}"


def _way(file: Checkpoint, rule: Rule) -> str:
    """The way to repair a file that breaks a rule."""
    if rule is Rule.IN_PROGRESS:
        return "wait"
    if rule is Rule.UNREADABLE and file.state is not FileState.DAMAGED:
        return "look"
    if rule is Rule.MISSING_FILE and file.state is FileState.TRASHED:
        return "undo"
    return "bring" if rule in _LOST else "no way"


def _of(paths: Sequence[str], *, in_shares: bool, what: str = "") -> str:
    if len(paths) == 1:
        return f"{what} {paths[0]}".lstrip()
    every = "all" if in_shares else "any one"
    return f"{every} of {what and f'{what}s '}{_paths(paths)}"


def _paths(paths: Sequence[str]) -> str:
    shown = ", ".join(paths[:_PATHS_SHOWN])
    return shown if len(paths) <= _PATHS_SHOWN else f"{shown} … ({len(paths)} in all)"


def of_unplaced(run: str, found: Sequence[Unplaced], steps_per_epoch: int | None = None) -> tuple[str, str]:
    """The message about newer files without a certain step or rank, and what to do about the first."""
    first = found[0]
    guess = "" if first.best_guess is None else f", perhaps of step {first.best_guess}"
    many = count(len(found), "newer file has", "newer files have")
    what = f"{many} no certain step or rank: {first.path}{guess}: {first.reason}"
    if not first.remedy:
        return what, BY_MOVING
    return what, f"{how_to_place(run, first, steps_per_epoch=steps_per_epoch)} places it"


def how_to_place(
    run: str, file: Unplaced, *, steps_per_epoch: int | None = None, directory: str | None = None
) -> Command:
    """The command that places a file, by a scan of a directory (None: the one that all ranks' files are below).

    If the file has no remedy, no option of a scan places it: see `BY_MOVING`.
    `steps_per_epoch` is that of the dataset, if it is known.
    """
    step = "STEP" if file.best_guess is None else str(file.best_guess)
    words = file.remedy.split()
    if "E" in words and steps_per_epoch is not None:
        words[words.index("E")] = str(steps_per_epoch)
    words = [f"{file.path}={step}" if word == "FILE=STEP" else word for word in words]
    home = file.path.rpartition("/")[0] or "/"
    above, _, name = home.rpartition("/")
    form = PYTORCH if format_of(file.path) == PYTORCH else TENSORFLOW  # a prefix has no ending
    is_of_rank = bare_rank([name], form) is not None or parse_rank_directory(name) is not None
    below = directory or (above or "/" if is_of_rank else home)
    return Command("scan", below, "--run", run, *words)


def how_to_convert(state: State) -> str:
    """The calls of MindSpore 2.10 that convert a state for another number of ranks: Python, filled in as far as known.

    `transform_checkpoint_by_rank` makes each new rank's file from a map of files. `transform_checkpoints` is avoided:
    it takes the last file of a directory by name, and from `.safetensors` to `.safetensors` it writes wrong bytes
    (mindspore.md §12). `.safetensors` are converted to `.ckpt` first, since `transform_checkpoint_by_rank` reads no
    others. Only `unified_safetensors` merges shares.
    """
    files = [file for file in state.files if file.content is not Content.WEIGHTS]
    formats = {file.format for file in files}
    shares = any(file.content is Content.SHARE for file in files)
    of_ranks = {file.rank: file.path for file in sorted(files, key=lambda file: (-file.rank, file.path), reverse=True)}
    strategy, first = _strategy(state, files)
    if shares and formats == {"safetensors"} and strategy != _NO_STRATEGY:  # without one it crashes
        return f"{as_many_ranks(state)}, or convert it: {first}{_unified(of_ranks, strategy)}"
    if shares or formats not in ({one} for one in ONE_FILE):
        return f"{as_many_ranks(state)}: MindSpore converts no such files"
    if formats == {"safetensors"}:
        read = f"mindspore.load_checkpoint({_file_of(of_ranks)}, format='safetensors')"
        made = "f'{DST_DIR}/src_rank_{R}.ckpt'"
        first += f"for R in {_ranks(of_ranks)}: mindspore.save_checkpoint({read}, {made}), then "
    else:
        made = _file_of(of_ranks)
    needed = f"{{R: {made} for R in mindspore.rank_list_for_transform(N, {strategy}, DST_STRATEGY)}}"
    out = f"f'{{DST_DIR}}/{_converted(files)}'"
    call = f"mindspore.transform_checkpoint_by_rank(N, {needed}, {out}, {strategy}, DST_STRATEGY)"
    record = Command("scan", "DST_DIR", "--run", "NEW_RUN", "--world-size", "NEW_RANKS")
    return f"{as_many_ranks(state)}, or convert it: {first}for N in range(NEW_RANKS): {call}, then {record}"


def _converted(files: Sequence[Checkpoint]) -> str:
    """The name of the file of rank N, from which a scan reads the rank and the step."""
    file = files[0]
    epoch, step = (1, file.global_step) if file.epoch is None else (file.epoch, file.step_in_epoch)
    return f"converted_rank_{{N}}-{epoch}_{step}.ckpt"


def _unified(of_ranks: Mapping[int, str], strategy: str) -> str:
    """The call that merges shares. It finds the file in each `rank_R` by the end of its name."""
    root = _root(of_ranks)
    names = [path.rpartition("/")[2].removesuffix(".safetensors") for path in of_ranks.values()]
    suffix = commonprefix([name[::-1] for name in names])[::-1]
    named = f", file_suffix={suffix!r}" if suffix else ""
    source = repr(root) if root else "SRC_DIR"
    call = f"mindspore.unified_safetensors({source}, {strategy}, DST_DIR, merge_with_redundancy=False{named})"
    return call if root else f"with the files as SRC_DIR/rank_R/*.safetensors, {call}"


def _ranks(of_ranks: Mapping[int, str]) -> str:
    """The ranks that saved, as Python."""
    return f"range({len(of_ranks)})" if len(of_ranks) == max(of_ranks) + 1 else repr(sorted(of_ranks))


def _file_of(of_ranks: Mapping[int, str]) -> str:
    """The path of rank R's file as Python: an f-string if all paths follow one pattern, else a dict of all paths."""
    if len(of_ranks) == 1:
        return repr(next(iter(of_ranks.values())))
    patterns = {_RANK.sub(partial(_unranked, rank), path) for rank, path in of_ranks.items()}
    pattern = patterns.pop()
    literal = pattern.replace("{R}", "")
    if not patterns and literal.isprintable() and not {*literal} & {*"{}"}:
        return f"f{pattern!r}"
    return f"{dict(sorted(of_ranks.items()))!r}[R]" if len(of_ranks) <= _PATHS_SHOWN else "FILES[R]"


def _unranked(rank: int, found: re.Match[str]) -> str:
    return "rank_{R}" if found[1] == str(rank) else found[0]


def as_many_ranks(state: State) -> str:
    """The remedy without a conversion: start as many ranks as saved the state."""
    return f"start with {count(state.launch.world_size, 'rank', 'ranks')}"


def _root(of_ranks: Mapping[int, str]) -> str:
    """The directory that has the files of each rank R in `rank_R`; empty if there is none."""
    roots = {path.rpartition(f"/rank_{rank}/") for rank, path in of_ranks.items()}
    if len({root for root, _, _ in roots}) == 1 and all("/" not in name and found for _, found, name in roots):
        return next(iter(roots))[0] or "/"
    return ""


def _strategy(state: State, files: Iterable[Checkpoint]) -> tuple[str, str]:
    """The argument for the strategy that the files were saved with, and the call that makes its file, if needed."""
    if state.launch.any_file_serves:
        return _NO_STRATEGY, ""
    named = sorted({file.strategy_file for file in files if file.strategy_file})
    if len(named) == 1:
        return repr(named[0]), ""
    if not named:
        return "SRC_STRATEGY", ""
    directories = {path.rpartition("/")[0] for path in named}
    merged = repr(directories.pop()) if len(directories) == 1 else "STRATEGY_DIR"
    return "SRC_STRATEGY", f"mindspore.merge_pipeline_strategys({merged}, SRC_STRATEGY), then "

"""What each command prints with --json, as data: the page of JSON is made from it, and each test holds outputs to it.

Types are written as those of the API's schemas, `ckptstore.serve.openapi`.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING, Any

import click

from ckptstore.cli import values

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

COMMANDS: dict[str, str] = {
    "runs": "Run[]",
    "list": "Save[]; with `--files` File[]",
    "show": "File[]",
    "history": "Launch[]",
    "resolve": "Resolution",
    "gc": "GcPlan; with `--all` GcPlan[]; with `--tier` of a level above 0 TierGcPlan[]",
    "undo": "Undone; with `--tier` TierDone",
    "purge": "Purged; with `--tier` TierDone",
    "policy": "StoredPolicy",
    "pin": "Pinned",
    "unpin": "Pinned",
    "tag": "Tagged",
    "untag": "Untagged",
    "rename": "Renamed",
    "forget": "Forgotten; with `--undo` BroughtBack",
    "scan": "Scanned",
    "sync": "Synced",
    "export": "Exported",
    "import": "Imported",
    "tier add": "TierChanged",
    "tier remove": "TierChanged",
    "tier list": "TierListed[]",
    "replicate": "Replicated; with `--watch` one after each round that copied",
    "verify": "Verified; with `--tier` TierVerified",
    "inspect": "CkptHeader of a .ckpt, SafetensorsHeader of a .safetensors, Strategy of a strategy file, GroupInfo of "
    "a group info file",
    "diff": "Compared",
    "exit": "Asked; with `--from-env` Asked[]; with `--cancel` Cancelled",
    "doctor": "Checkup",
    "advise": "Advice",
    "watch": "Notice for each notice, one a line",
    "db current": "Schema",
    "db check": "Schema",
    "db upgrade": "Schema",
    "selftest": "Promise[]",
}
"""Each type of what the command prints, and when it prints which. Each word with a capital letter is a type."""

FIELDS = {
    "TierGcPlan": "run:string tier:string applied:boolean keep:Kept[] remove:Removed[] bytes_freed:integer "
    "policy:Policy refused:string? skipped:Skipped[] purged_bytes:integer troubles:PathReason[]",
    "TierDone": "run:string tier:string copies:integer bytes:integer purged:integer purged_bytes:integer "
    "skipped:Skipped[] troubles:PathReason[]",
    "Purged": "run:string files:integer bytes:integer waiting:integer waiting_bytes:integer next_at:date-time? "
    "troubles:PathReason[]",
    "Renamed": "run:string before:string changed:boolean",
    "Forgotten": "run:string launches:integer bytes:integer directories:string[] trash_files:integer "
    "trash_bytes:integer forgotten:boolean changed:boolean",
    "BroughtBack": "run:string forgotten:boolean changed:boolean",
    "Scanned": "run:string world_size:integer? files:Counts known:integer from_journals:integer adopted:File[] "
    "damaged:File[] missing:File[] uncertain:Uncertain[] regraded:File[] skipped:PathReason[] opaque:Opaque[] "
    "trash:FoundTrash[] warnings:string[]",
    "Uncertain": "path:string best_guess:integer? reason:string contradicted:boolean place_with:string?",
    "Opaque": "path:string rank:integer? size:integer modified:date-time",
    "FoundTrash": "collection:string run:string files:integer bytes:integer",
    "Synced": "runs:string[] journals:integer read:integer records:integer spoiled_lines:integer skipped:PathReason[]",
    "Exported": "run:string launch:string global_step:integer target:string holds:string files:integer bytes:integer",
    "Imported": "run:string exported_run:string launch:string global_step:integer directory:string holds:string "
    "files:integer bytes:integer",
    "TierChanged": "name:string url:string level:integer changed:boolean",
    "TierListed": "name:string url:string level:integer declared:boolean ready:integer bytes:integer pending:integer "
    "failed:integer",
    "Replicated": "files:integer bytes:integer held:integer elsewhere:integer undigested:integer troubles:PathReason[]",
    "Verified": "checked:integer bytes:integer damaged:Damage[] troubles:PathReason[] skipped:PathReason[] "
    "unknown:PathReason[] whole_again:string[] new_digests:integer missing_before:integer",
    "Damage": "path:string rule:string detail:string",
    "TierVerified": "tier:string checked:integer bytes:integer damaged:PathReason[] troubles:PathReason[] "
    "whole:string[] failed_before:integer",
    "CkptHeader": "path:string format:string parameters:Described[] info:Values optimizer_step:integer? "
    "complete:boolean?",
    "SafetensorsHeader": "path:string format:string parameters:Described[] info:Values optimizer_step:integer? "
    "complete:boolean metadata:Values",
    "Described": "name:string dtype:string shape:integer[]",
    "Strategy": "path:string format:string parameters:ParameterLayout[] stages:integer[]",
    "ParameterLayout": "name:string stage:integer? dev_matrix:integer[] tensor_map:Axes[] "
    "opt_weight_shard_step:integer opt_weight_shard_size:integer param_split_shape:integer[] indices_offset:integer[] "
    "field:integer",
    "GroupInfo": "path:string format:string restore_ranks:integer[] groups:Group[]",
    "Group": "name:string ranks:integer[]",
    "Compared": "first:Side second:Side ranks:RankCompared[] unmatched_ranks:integer[]",
    "Side": "name:string run:string? launch:string? global_step:integer? epoch:integer? step_in_epoch:integer? "
    "optimizer_step:integer? metrics:Metrics world_size:integer? layout:Layout?",
    "RankCompared": "ranks:integer[] paths:string[][] same_bytes:boolean same:integer? new:Described[] "
    "gone:Described[] reshaped:Reshaped[] changed:Changed[]",
    "Reshaped": "name:string first:Described second:Described",
    "Changed": "name:string dtype:string shape:integer[] relative:Norm? l2:Norm? max_abs:Norm? nan:integer[] "
    "inf:integer[]",
    "Asked": "run:string launch:string? world_size:integer? ended_before:string? directories:string[] "
    "unreached:Values by_catalog:boolean signalled:integer[] whole:boolean? step:integer? missing_ranks:integer[]? "
    "ended:string? restart_step:integer?",
    "Cancelled": "run:string cancelled:boolean",
    "Advice": "run:string pause_seconds:number written_seconds:number? step_seconds:number state_bytes:integer "
    "policy:Policy? failures:integer trained_seconds:number failures_mtbf_low_seconds:number "
    "failures_mtbf_high_seconds:number? mtbf_seconds:number? mtbf_given:boolean present:Interval? best:Interval? "
    "others:Interval[] grace_seconds:number grace_given_seconds:number?",
    "Interval": "steps:integer seconds:number mtbf_seconds:number? lost_steps_a_week:number? states_bytes:integer "
    "trash_bytes:integer more_bytes_a_week:integer",
    "Notice": "id:string kind:string run:string status:string detail:string hint:string text:string catalog:string",
    "Schema": "catalog:string schema:string? needed:string",
    "Promise": "promise:string held:boolean? seen:string",
}
"""The objects that only commands print. Those of the API are in `ckptstore.serve.openapi`."""

_OTHERS: dict[str, Any] = {
    "Counts": {"type": "object", "additionalProperties": {"type": "integer"}},
    "Values": {"type": "object"},
    "Norm": {"type": ["number", "string"]},
    "Axes": {"type": ["integer", "array"], "items": {"type": "integer"}},
}

SEEN: set[tuple[str, str]] = set()
"""The commands that printed a document in this process, with its type."""


def types_of(command: str) -> list[str]:
    """The types of the documents that a command prints."""
    return re.findall(r"\b[A-Z]\w+(?:\[\])?", COMMANDS[command])


def note() -> None:
    """From now on, each document that a command prints in this process is held to its type."""
    write = values.write

    def held(value: Any) -> None:
        context = click.get_current_context(silent=True)
        if context is not None:
            check(context.command_path.partition(" ")[2], json.dumps(value, default=values.plain))
        write(value)

    values.write = held


def check(command: str, printed: str) -> None:
    """Raise `AssertionError` unless what a command printed is JSON of one of its types."""
    value = json.loads(printed, parse_constant=_no_number)
    wrong = {each: _first_error(each, value) for each in types_of(command)}
    assert None in wrong.values(), f"{command} --json: no document of the page of JSON: {wrong}"
    SEEN.update((command, each) for each, error in wrong.items() if error is None)


def _no_number(text: str) -> None:
    raise AssertionError(f"JSON has no number {text}")


def _first_error(of: str, value: Any) -> str | None:
    error = next(_validator(of).iter_errors(value), None)
    return None if error is None else f"{error.json_path}: {error.message}"


@cache
def _validator(of: str) -> Draft202012Validator:
    from jsonschema import Draft202012Validator  # environments of other targets lack these

    from ckptstore.serve import openapi

    schemas = {
        **openapi.document("/")["components"]["schemas"],
        **{name: openapi._object(fields) for name, fields in FIELDS.items()},
        **_OTHERS,
    }
    return Draft202012Validator({**openapi._typed(of), "components": {"schemas": schemas}})

"""The OpenAPI document of the server. Tests check each answer against it."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from ckptstore.serve.questions import COUNTS, WORDS

# The fields of each schema, as NAME:TYPE. A type is one of JSON's, or another schema here; `?`: it may be null.
_FIELDS = {
    "Run": "run:string status:string launches:integer launches_last_day:integer last_step:integer? last_kind:string? "
    "bytes:integer trash_bytes:integer restorable_step:integer? restorable_kind:string? "
    "restorable_created_at:date-time?",
    "Save": "run:string launch:string kind:string global_step:integer epoch:integer? step_in_epoch:integer? "
    "ranks:integer world_size:integer bytes:integer restorable:boolean abandoned:boolean pinned:boolean tags:string[] "
    "began:string[] tiers:Metrics quarantine:string? metrics:Metrics grade:string? doubt:string? created_at:date-time",
    "File": "run:string launch:string kind:string global_step:integer optimizer_step:integer? epoch:integer? "
    "step_in_epoch:integer? rank:integer path:string size:integer? digest:string? format:string strategy_file:string? "
    "state:string quarantine:string? metrics:Metrics grade:string? doubt:string? timing:Timing? created_at:date-time?",
    "Timing": "pause:number written:number? step:number?",
    "Launch": "run:string launch:string began_at:date-time? hosts:string[] world_size:integer decided:boolean "
    "from_launch:string? from_step:integer? start_step:integer? initial:Initial? went_back:boolean "
    "passed_over:PassedOver[] last_step:integer? ending:string? heard_at:date-time? seconds:integer?",
    "Initial": "run:string launch:string global_step:integer reference:string",
    "PassedOver": "launch:string global_step:integer rule:string detail:string",
    "Resolution": "run:string restorable:boolean why_none:string? launch:string? global_step:integer? "
    "epoch:integer? step_in_epoch:integer? initial_epoch:integer? layout:Layout? metrics:Metrics ranks:Rank[] "
    "grade:string? doubt:string? to_fetch:ToFetch rejected:Rejected[] unplaced:Unplaced[]",
    "ToFetch": "bytes:integer files:FetchedFile[] without:StateName?",
    "FetchedFile": "path:string tier:string key:string bytes:integer",
    "StateName": "global_step:integer launch:string",
    "Rank": "rank:integer source_rank:integer kind:string path:string size:integer? strategy_file:string?",
    "Rejected": "launch:string kind:Kinds global_step:integer reasons:RankReason[] remedies:string[]",
    "RankReason": "rank:integer? rule:string detail:string",
    "Unplaced": "path:string best_guess:integer? reason:string place_with:string?",
    "GcPlan": "run:string applied:boolean keep:Kept[] remove:Removed[] debris:Debris[] bytes_freed:integer "
    "unknown:PathReason[] policy:Policy refused:string? skipped:Skipped[] purged_bytes:integer purge_after:date-time? "
    "trash:Trash troubles:PathReason[]",
    "Kept": "launch:string kind:Kinds global_step:integer reasons:RuleDetail[]",
    "Removed": "launch:string kind:Kinds global_step:integer reasons:RuleDetail[] files:integer bytes:integer",
    "RuleDetail": "rule:string detail:string",
    "Debris": "path:string reason:string bytes:integer",
    "PathReason": "path:string reason:string",
    "Skipped": "state:string reason:string",
    "Trash": "files:integer bytes:integer next_at:date-time? unmoved:integer",
    "Pinned": "run:string global_step:integer pinned:boolean changed:boolean",
    "Tagged": "run:string global_step:integer tag:string changed:boolean",
    "Untagged": "run:string tag:string changed:boolean",
    "StoredPolicy": "run:string policy:Policy?",
    "Undone": "run:string files:integer bytes:integer gone:integer passed_over:date-time[] troubles:PathReason[]",
    "Tag": "tag:string",
    "PolicyToStore": "policy:Policy?",
    "Checkup": "checks:Check[]",
    "Check": "name:string run:string? status:string detail:string hint:string",
    "Problem": "title:string status:integer hint:string?",
}
_OTHERS: dict[str, Any] = {
    "Nothing": {"type": "object", "additionalProperties": False},
    "Metrics": {"type": "object", "additionalProperties": {"type": "number"}},
    "Layout": {"type": "object"},
    "Policy": {"type": "object"},
    "Kinds": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
}
_JSON_TYPES = ("string", "integer", "number", "boolean")
_PAGES = ("limit:integer", "cursor:string")
_OF_POLICY = (*(f"{rule}:integer" for rule in COUNTS), *(f"{rule}:string" for rule in WORDS))
_PATHS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("/runs", "Every run, by name.", "Run[]", _PAGES),
    ("/runs/{run}", "One run.", "Run", ()),
    ("/runs/{run}/saves", "Its saves, newest first.", "Save[]", _PAGES),
    ("/runs/{run}/saves/{step}", "The files of a step.", "File[]", _PAGES),
    ("/runs/{run}/resolution", "Where it would go on, and why not from a newer state.", "Resolution", ()),
    ("/runs/{run}/history", "Its launches, oldest first.", "Launch[]", _PAGES),
    (
        "/runs/{run}/gc",
        "What gc would do, by these rules (none: the stored policy). No file is touched.",
        "GcPlan",
        _OF_POLICY,
    ),
    ("/runs/{run}/policy", "The stored policy.", "StoredPolicy", ()),
    ("/doctor", "What doctor finds.", "Checkup", ()),
)


_POSTS = (
    ("/runs/{run}/saves/{step}/pin", "Protect a step from gc.", "Pinned", "Nothing"),
    ("/runs/{run}/saves/{step}/unpin", "Take that protection back.", "Pinned", "Nothing"),
    ("/runs/{run}/saves/{step}/tag", "Give a step a name, which protects it.", "Tagged", "Tag"),
    ("/runs/{run}/untag", "Take a name away, and its protection.", "Untagged", "Tag"),
    ("/runs/{run}/policy", "Store a policy, or forget it (null).", "StoredPolicy", "PolicyToStore"),
    ("/runs/{run}/gc", "Carry out the plan that If-Match names: what goes is moved to the trash.", "GcPlan", "Nothing"),
    ("/runs/{run}/undo", "Bring back what the last gc removed.", "Undone", "Nothing"),
)
"""The changes. They need a server with --allow-changes."""


def document(base: str) -> dict[str, Any]:
    """The OpenAPI document of the API at the address `base`."""
    paths: dict[str, dict[str, Any]] = {path: {"get": _operation(path, *told)} for path, *told in _PATHS}
    for path, summary, answer, body in _POSTS:
        paths.setdefault(path, {})["post"] = _change(path, summary, answer, body)
    paths["/runs/{run}/gc"]["get"]["responses"]["200"]["headers"] = {"ETag": {"schema": {"type": "string"}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "ckptstore", "version": metadata.version("ckptstore")},
        "servers": [{"url": base}],
        "paths": paths,
        "components": {
            "schemas": {**{name: _object(fields) for name, fields in _FIELDS.items()}, **_OTHERS},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(path: str, summary: Any, answer: Any, asked: Any) -> dict[str, Any]:
    in_path = [each.strip("{}") for each in path.split("/") if each.startswith("{")]
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": _typed("integer" if name == "step" else "string")}
        for name in in_path
    ]
    for each in asked:
        name, _, kind = each.partition(":")
        parameters.append({"name": name, "in": "query", "schema": _typed(kind)})
    schema = _typed(answer)
    if answer.endswith("[]"):
        schema = _fields({"items": schema, "next": {"type": ["string", "null"]}})
    return {
        "summary": summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": summary, "content": {"application/json": {"schema": schema}}},
            "default": {
                "description": "What went wrong, and what to do.",
                "content": {"application/problem+json": {"schema": _typed("Problem")}},
            },
        },
    }


def _change(path: str, summary: str, answer: str, body: str) -> dict[str, Any]:
    is_gc = path.endswith("/gc")
    made = _operation(path, summary, answer, _OF_POLICY if is_gc else ())
    if is_gc:
        match = {"name": "If-Match", "in": "header", "required": True, "schema": _typed("string")}
        made["parameters"].append(match | {"description": "The ETag of the plan: another plan gives 412."})
    made["requestBody"] = {"required": True, "content": {"application/json": {"schema": _typed(body)}}}
    made["responses"]["202"] = {
        "description": "It takes longer than 30 s, and goes on.",
        "content": {"application/problem+json": {"schema": _typed("Problem")}},
    }
    return made


def _object(fields: str) -> dict[str, Any]:
    return _fields({name: _typed(kind) for name, _, kind in (each.partition(":") for each in fields.split())})


def _fields(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _typed(kind: str) -> dict[str, Any]:
    if kind.endswith("?"):
        return {"oneOf": [_typed(kind[:-1]), {"type": "null"}]}
    if kind.endswith("[]"):
        return {"type": "array", "items": _typed(kind[:-2])}
    if kind in _JSON_TYPES:
        return {"type": kind}
    return {"type": "string", "format": kind} if kind == "date-time" else {"$ref": f"#/components/schemas/{kind}"}

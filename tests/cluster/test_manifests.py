"""The manifests of `examples/kubernetes`: of the published schemas; what they name is there; their commands parse."""

import copy
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from ckptstore.cli.main import cli
from ckptstore.errors import NothingRestorableError, RefusedError, UsageError

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "kubernetes"
KUBERNETES = ("1.31", "1.37")
"""The first with `podFailurePolicy` for good, and the newest that there are schemas of."""

LEFT = 75
REFUSALS = sorted(error.exit_code for error in (UsageError, NothingRestorableError, RefusedError))


def thing(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "additionalProperties": False}


EVENTS = ["*", "PodPending", "PodRunning", "PodFailed", "PodEvicted", "Unknown", "TaskCompleted", "OutOfSync"]
ACTIONS = ["AbortJob", "RestartJob", "RestartTask", "RestartPod", "RestartPartition", "TerminateJob", "CompleteJob"]
COUNT = {"type": "integer", "minimum": 0}
VOLCANO = thing(
    apiVersion={"const": "batch.volcano.sh/v1alpha1"},
    kind={"const": "Job"},
    metadata={"type": "object"},
    spec=thing(
        schedulerName={"type": "string", "maxLength": 63},
        minAvailable=COUNT,
        maxRetry=COUNT,
        plugins={"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}},
        policies={
            "type": "array",
            "items": thing(event={"enum": EVENTS}, exitCode={"type": "integer"}, action={"enum": ACTIONS}),
        },
        tasks={
            "type": "array",
            "minItems": 1,
            "items": thing(
                name={"type": "string", "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"},
                replicas=COUNT,
                template={"type": "object"},
            ),
        },
    ),
)
"""What is used of Volcano's Job, by hand after `config/crd/volcano/bases/batch.volcano.sh_jobs.yaml` of Volcano 1.15.1,
with the actions that its admission takes. No package has it. A pod's template is checked as one of Kubernetes."""


def manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


NAMES = sorted(path.name for path in FOLDER.glob("*.yaml"))
ALL = list(chain.from_iterable(manifests(name) for name in NAMES))
(VOLCANO_JOB,) = manifests("volcano-job.yaml")
SERVICE, JOB = manifests("indexed-job.yaml")
CRONJOBS = manifests("cronjobs.yaml")


def check(manifest: dict[str, Any], version: str) -> None:
    """Raise `jsonschema.ValidationError` where a field is not there, or has a wrong type."""
    if "volcano" not in manifest["apiVersion"]:
        kubernetes_validate.validate(manifest, version, strict=True)
        return
    jsonschema.validate(manifest, VOLCANO)
    for task in manifest["spec"]["tasks"]:
        of_task = {"metadata": {**manifest["metadata"], "name": task["name"]}, "template": task["template"]}
        kubernetes_validate.validate({"apiVersion": "v1", "kind": "PodTemplate", **of_task}, version, strict=True)


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("name", NAMES)
def test_the_published_schemas(name: str, version: str) -> None:
    for manifest in manifests(name):
        check(manifest, version)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("spec.maxRetries", 3),
        ("spec.maxRetry", "3"),
        ("spec.policies.0.exitCodes", 75),
        ("spec.policies.0.action", "Restart"),
        ("spec.policies.4.event", "PodEvict"),
        ("spec.tasks.0.replica", 2),
        ("spec.tasks.0.template.spec.containers.0.lifecycle.prestop", {}),
    ],
)
def test_a_wrong_field_of_a_volcano_job_is_found(place: str, value: object) -> None:
    broken = copy.deepcopy(VOLCANO_JOB)
    *way, last = (int(step) if step.isdigit() else step for step in place.split("."))
    inside: Any = broken
    for step in way:
        inside = inside[step]
    inside[last] = value
    with pytest.raises(jsonschema.ValidationError):
        check(broken, KUBERNETES[-1])


def pod_of(manifest: dict[str, Any]) -> dict[str, Any]:
    """The pod's spec in a Volcano job, a Job or a CronJob."""
    spec = manifest["spec"]
    spec = spec["tasks"][0] if "tasks" in spec else spec.get("jobTemplate", manifest)["spec"]
    return spec["template"]["spec"]


PODS = [VOLCANO_JOB, JOB, *CRONJOBS]
JOBS = [VOLCANO_JOB, JOB]


def name_of(manifest: dict[str, Any]) -> str:
    return f"{manifest['kind']} {manifest['apiVersion'].partition('/')[0]} {manifest['metadata']['name']}"


def environment(pod: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in pod["containers"][0]["env"]}


@pytest.mark.parametrize("manifest", PODS, ids=name_of)
def test_what_a_pod_may_do(manifest: dict[str, Any]) -> None:
    """Not root, nothing to write to but the checkpoints and memory, and all as one user: files are their owner's."""
    pod = pod_of(manifest)
    (container,) = pod["containers"]
    user = {key: pod["securityContext"][key] for key in ("runAsNonRoot", "runAsUser", "runAsGroup")}
    assert user == {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 1000}
    assert "fsGroup" not in pod["securityContext"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: volumes.pop(mount["name"]) for mount in container["volumeMounts"]}
    assert volumes == {}
    assert mounts["/tmp"]["emptyDir"] == {}  # noqa: S108
    assert environment(pod)["HOME"] == "/tmp"  # noqa: S108
    assert pod["restartPolicy"] == "Never"


def test_what_is_named_is_there() -> None:
    kinds = {(each["kind"], each["metadata"]["name"]): each for each in manifests("setup.yaml")}
    for manifest in PODS:
        pod = pod_of(manifest)
        secret = environment(pod)["CKPTSTORE_URL"]["secretKeyRef"]
        url = kinds["Secret", secret["name"]]["stringData"][secret["key"]]
        assert url.startswith("postgresql://")
        for volume in pod["volumes"]:
            claim = volume.get("persistentVolumeClaim")
            assert claim is None or ("PersistentVolumeClaim", claim["claimName"]) in kinds
    assert {each["metadata"].get("namespace") for each in ALL if each["kind"] != "Namespace"} == {"training"}
    assert SERVICE["metadata"]["name"] == pod_of(JOB)["subdomain"]
    assert SERVICE["spec"]["selector"] == {"batch.kubernetes.io/job-name": JOB["metadata"]["name"]}
    first = f"{JOB['metadata']['name']}-0.{SERVICE['metadata']['name']}"
    assert environment(pod_of(JOB))["MASTER"] == first
    job, (task,) = VOLCANO_JOB["metadata"]["name"], VOLCANO_JOB["spec"]["tasks"]
    assert environment(pod_of(VOLCANO_JOB))["MASTER"] == f"{job}-{task['name']}-0.{job}"
    assert {"env", "svc"} <= VOLCANO_JOB["spec"]["plugins"].keys()  # they give VC_TASK_INDEX and the names of pods


def test_the_rules_of_a_job() -> None:
    """What Kubernetes asks for and no schema says: pods are not restarted in place, codes are in order."""
    spec = JOB["spec"]
    assert (spec["completionMode"], spec["podReplacementPolicy"]) == ("Indexed", "Failed")
    assert spec["completions"] == spec["parallelism"] == nodes(JOB)
    rules = spec["podFailurePolicy"]["rules"]
    (train,) = pod_of(JOB)["containers"]
    codes: dict[int, str] = {}
    for rule in rules:
        if "onExitCodes" in rule:
            asked = rule["onExitCodes"]
            assert (asked["operator"], asked["containerName"]) == ("In", train["name"])
            assert asked["values"] == sorted(set(asked["values"]) - {0})
            codes |= dict.fromkeys(asked["values"], rule["action"])
        else:
            assert rule["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
            assert rule["action"] == "Ignore"
    assert codes == {**dict.fromkeys(REFUSALS, "FailJob"), LEFT: "Ignore"}


def test_the_policies_of_a_volcano_job() -> None:
    """The first that fits counts; an event and a code in one are refused by Volcano, and so is one thing twice."""
    policies = VOLCANO_JOB["spec"]["policies"]
    assert all(policy.keys() in ({"event", "action"}, {"exitCode", "action"}) for policy in policies)
    causes = [policy.get("event", policy.get("exitCode")) for policy in policies]
    assert len(set(causes)) == len(causes)
    actions = dict(zip(causes, (policy["action"] for policy in policies), strict=True))
    restarts = dict.fromkeys([LEFT, "PodEvicted", "PodFailed"], "RestartJob")
    assert actions == {**dict.fromkeys(REFUSALS, "AbortJob"), **restarts}
    assert causes.index("PodFailed") == len(causes) - 1
    assert VOLCANO_JOB["metadata"]["labels"]["fault-scheduling"] == "grace"
    assert VOLCANO_JOB["spec"]["minAvailable"] == nodes(VOLCANO_JOB)


def nodes(manifest: dict[str, Any]) -> int:
    spec = manifest["spec"]
    return int(spec["completions"] if "completions" in spec else spec["tasks"][0]["replicas"])


def arguments(manifest: dict[str, Any]) -> dict[str, str]:
    """The options that node.py is started with."""
    shell = pod_of(manifest)["containers"][0]["command"][-1]
    return dict(re.findall(r"--(\w+)=(\S+)", shell))


@pytest.mark.parametrize("manifest", JOBS, ids=name_of)
def test_the_ranks_are_those_of_all_nodes(manifest: dict[str, Any]) -> None:
    of_node = int(arguments(manifest)["local_worker_num"])
    resources = pod_of(manifest)["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"] == {"huawei.com/Ascend910": of_node}
    assert int(arguments(manifest)["worker_num"]) == nodes(manifest) * of_node


def values(manifest: dict[str, Any]) -> dict[str, float]:
    """What the table of docs/how-to/schedulers.md compares."""
    pod, spec = pod_of(manifest), manifest["spec"]
    told = environment(pod)
    known = {
        "CKPTSTORE_GRACE_SECONDS": float(told["CKPTSTORE_GRACE_SECONDS"]),
        "--timeout": 0.9 * float(told["CKPTSTORE_GRACE_SECONDS"]),
        "terminationGracePeriodSeconds": pod["terminationGracePeriodSeconds"],
        "MS_NODE_TIMEOUT": float(told["MS_NODE_TIMEOUT"]),
        "--cluster_time_out": float(arguments(manifest)["cluster_time_out"]),
        "nodes": nodes(manifest),
    }
    if "backoffLimit" in spec:
        return known | {"backoffLimit": spec["backoffLimit"]}
    return known | {"maxRetry": spec["maxRetry"], "grace-over-time": 900}


def rules() -> Iterator[tuple[str, str, list[str]]]:
    """The rows of the table: what is smaller, what is larger, and the cells of the two jobs."""
    page = (ROOT / "docs" / "how-to" / "schedulers.md").read_text()
    table = page.partition("## Which value")[2].partition("\n\nThe cluster")[0]
    for row in table.splitlines():
        cells = [cell.strip().replace("`", "") for cell in row.strip("|").split("|")]
        if row.startswith("|") and cells[0] not in ("smaller", "---"):
            yield cells[0], cells[1], cells[2:4]


def value(told: str, known: dict[str, float]) -> float:
    """A number or a name; a name and a number added; a number of times a name."""
    sums, factors = told.split(" + "), told.split(" × ")
    if len(sums) == 2:
        return value(sums[0], known) + float(sums[1])
    if len(factors) == 2:
        return float(factors[0]) * value(factors[1], known)
    return known[told] if told in known else float(told)


def test_which_value_is_smaller_than_which() -> None:
    """As the table says it, with the numbers that it shows; a job without the value has no numbers there."""
    seen = list(rules())
    assert len(seen) == 7
    for smaller, larger, shown in seen:
        for manifest, cell in zip(JOBS, shown, strict=True):
            known = values(manifest)
            if larger not in known:
                assert cell == ""
                continue
            below, above = value(smaller, known), value(larger, known)
            assert below < above, f"{smaller} < {larger}: {cell}"
            assert cell == f"{below:g} < {above:g}"


def test_a_cronjob_ends_before_it_begins_again() -> None:
    hour = 3600
    for manifest in CRONJOBS:
        minute, at, *rest = manifest["spec"]["schedule"].split()
        assert minute.isdigit()
        assert rest == ["*"] * 3
        period = hour if at == "*" else 24 * hour
        assert manifest["spec"]["jobTemplate"]["spec"]["activeDeadlineSeconds"] < period
        assert manifest["spec"]["concurrencyPolicy"] == "Forbid"


def commands() -> Iterator[list[str]]:
    """Every command of ckptstore in the examples, without its program."""
    for manifest in CRONJOBS:
        yield pod_of(manifest)["containers"][0]["args"]
    for manifest in JOBS:
        program, *told = pod_of(manifest)["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        assert program == "ckptstore"
        yield told
    script = (ROOT / "examples" / "slurm" / "train.sbatch").read_text()
    (told,) = re.findall(r"^ *ckptstore (.*?) --reason", script, re.MULTILINE)
    yield told.replace('"$run"', "digits").split()


def test_every_command_has_these_options() -> None:
    asked = list(commands())
    assert len(asked) == 5
    for name, *told in asked:
        cli.commands[name].make_context(name, told)


def test_the_image_copies_what_is_there_and_holds_the_commands() -> None:
    """A build copies from the project's folder; what pyproject.toml needs to build from is among it."""
    lines = (FOLDER / "Containerfile").read_text().replace("\\\n", "").splitlines()
    steps = [line.split() for line in lines if line and not line.startswith("#")]
    copied = [step[1:-1] for step in steps if step[0] == "COPY" and not step[1].startswith("--from")]
    sources = set(chain.from_iterable(copied))
    assert all((ROOT / source).exists() for source in sources)
    assert {"pyproject.toml", "README.md", "ckptstore", "migrations", "constraints.txt"} <= sources
    last = max(place for place, step in enumerate(steps) if step[0] == "FROM")
    final = {step[0]: step[1:] for step in steps[last:]}
    assert final["USER"] == ["1000:1000"]
    assert final["ENTRYPOINT"] == ['["ckptstore"]']
    images = [step[1] for step in steps if step[0] == "FROM"]
    assert all(image.endswith("python:3.11-slim") for image in images)
    installs = [" ".join(step) for step in steps if "install" in step]
    assert installs == [
        "RUN /opt/ckptstore/bin/pip install --no-cache-dir --constraint /source/constraints.txt '/source[postgres]'"
    ]

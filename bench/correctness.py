"""The result of a restart after a fault, for each contender: right, wrong, or refused.

    python -m bench.correctness

Each case is a small program in `bench/cases`. A contender without a program for a case was not tried in that case.
ckptstore must be right in all cases.
"""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.cases.case import CASES, RIGHT
from bench.measure import CKPTSTORE, Found, Verdict, say
from bench.task import run_alone
from bench.worker import OWN, PEERS, environment

CONTENDERS = {CKPTSTORE: OWN, "orbax": PEERS, "mlflow": PEERS, "ray": PEERS, "dlrover": PEERS, "seeds": OWN}


def run(work: Path, *, quick: bool) -> Found:  # noqa: ARG001 — there is no quicker way
    """Run every program."""
    found = Found()

    def tried(who: str) -> list[str]:
        command = [str(CONTENDERS[who]), "-m", f"bench.cases.{who}"]
        done = subprocess.run(command, cwd=work, env=environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.splitlines()

    with ThreadPoolExecutor(2) as pool:  # nothing is timed here
        lines = dict(zip(CONTENDERS, pool.map(tried, CONTENDERS), strict=True))
    for who, said in lines.items():
        for line in said:
            verdict = Verdict(who=who, **json.loads(line))
            found.verdicts.append(verdict)
            say(f"{verdict.case}: {who}: {verdict.verdict}: {verdict.detail}")
    own = [each.verdict for each in found.verdicts if each.who == CKPTSTORE]
    assert own == [RIGHT] * len(CASES), own
    return found


if __name__ == "__main__":
    run_alone(run)

"""Whatever was recorded of files can be written down in a manifest, and is read back as it was."""

from datetime import datetime, timedelta, timezone
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ckptstore.core.limits import HIGHEST, HIGHEST_INTEGER
from ckptstore.core.model import Checkpoint, Content, Grade, Kind, Launch
from ckptstore.core.replicas import Layout, data_parallel, from_groups, stand_alone
from ckptstore.handover import manifest as manifests
from ckptstore.handover.manifest import Made, Manifest, Part, path_of

RANKS = 4
TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20)
NAME = TEXT.filter(bool)
FILE_NAME = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0/"), min_size=1, max_size=20)
DIGEST = st.text("0123456789abcdef", min_size=64, max_size=64)
MOMENT = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(timezone.utc))  # noqa: DTZ001
WHOLE = st.integers(0, HIGHEST)
INDEX = st.integers(0, HIGHEST_INTEGER)
LAYOUT = st.sampled_from(
    [stand_alone(), data_parallel(RANKS), from_groups([(0, 2), (1, 3)], RANKS, "strategy"), Layout("stated")]
)


@st.composite
def states(draw: Any) -> Manifest:
    run, moment = draw(NAME), draw(MOMENT)
    launch = Launch(
        id=draw(NAME),
        run=run,
        order=0,
        world_size=RANKS,
        layout=draw(LAYOUT),
        steps_per_epoch=draw(st.none() | st.integers(1, HIGHEST_INTEGER)),
        created_at=moment,
    )
    step, files, parts = draw(WHOLE), [], []
    for rank in sorted(draw(st.sets(st.integers(0, RANKS - 1), min_size=1))):
        name = draw(FILE_NAME.filter(lambda name: name not in (".", "..", ".ckptstore")))
        place, digest, size = f"rank_{rank}/{name}", draw(DIGEST), draw(WHOLE)
        parts.append(Part(place, size, digest))
        files.append(
            Checkpoint(
                run=run,
                launch=launch.id,
                kind=draw(st.sampled_from(Kind)),
                global_step=step,
                rank=rank,
                path=path_of(place),
                optimizer_step=draw(st.none() | WHOLE),
                epoch=draw(st.none() | INDEX),
                step_in_epoch=draw(st.none() | INDEX),
                size=size,
                digest=digest,
                mtime_ns=draw(st.none() | st.integers(-HIGHEST, HIGHEST)),
                format=draw(st.sampled_from(["ckpt", "safetensors", "pytorch", "unknown"])),
                content=draw(st.sampled_from([Content.FULL, Content.SHARE, Content.WEIGHTS])),
                metrics=draw(st.dictionaries(TEXT, st.floats(-1e300, 1e300), max_size=3)),
                quarantine=draw(TEXT),
                grade=draw(st.none() | st.sampled_from(Grade)),
                doubt=draw(TEXT),
                created_at=moment + timedelta(microseconds=rank),
            )
        )
    made = Made(draw(MOMENT), draw(TEXT), draw(st.none() | TEXT))
    return Manifest(run=draw(NAME), launch=launch, files=tuple(files), parts=tuple(parts), made=made)


@settings(max_examples=60)
@given(states())
def test_a_manifest_is_read_back_as_it_was(manifest: Manifest) -> None:
    assert manifests.read(manifests.to_text(manifest), "it") == manifest

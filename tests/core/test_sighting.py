"""What the disk shows of a record: a table."""

import pytest

from ckptstore.core.model import Observed
from ckptstore.core.sighting import Bytes, Sighting, compare

RECORDED = Bytes(100, 7, "abc")
UNREAD = Bytes(100, 7)


@pytest.mark.parametrize(
    ("record", "seen", "expected"),
    [
        (RECORDED, Observed(100, mtime_ns=7), Sighting.SAME),
        (RECORDED, Observed(100, "abc", mtime_ns=7), Sighting.SAME),
        (RECORDED, Observed(100, "abc", mtime_ns=8), Sighting.SAME),  # a copy
        (UNREAD, Observed(100, "abc", mtime_ns=7), Sighting.SAME),
        (Bytes(100, None), Observed(100, mtime_ns=7), Sighting.SAME),
        (Bytes(None, 7), Observed(100, mtime_ns=7), Sighting.SAME),  # in progress, and it is known when it was written
        (RECORDED, Observed(None), Sighting.GONE),
        (RECORDED, Observed(None, has_directory=False), Sighting.GONE),
        (RECORDED, Observed(99, mtime_ns=7), Sighting.CUT),
        (RECORDED, Observed(0, mtime_ns=8), Sighting.CUT),
        (RECORDED, Observed(100, mtime_ns=8), Sighting.CHANGED),
        (UNREAD, Observed(100, "abc", mtime_ns=8), Sighting.CHANGED),
        (Bytes(None, 7), Observed(100, mtime_ns=8), Sighting.CHANGED),
        (Bytes(None, None), Observed(100, mtime_ns=7), Sighting.CHANGED),  # nothing is known of it
        (RECORDED, Observed(100, "def", mtime_ns=7), Sighting.DAMAGED),
        (RECORDED, Observed(101, mtime_ns=7), Sighting.ANOTHER),
        (RECORDED, Observed(100, "def", mtime_ns=8), Sighting.ANOTHER),
        (RECORDED, Observed(None, unreadable="Permission denied"), Sighting.CANNOT_LOOK),
    ],
)
def test_a_record_and_what_is_there(record: Bytes, seen: Observed, expected: Sighting) -> None:
    assert compare(record, seen) is expected

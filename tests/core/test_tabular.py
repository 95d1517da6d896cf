"""Tables of notebooks: what comes from users is text there, never markup."""

from datetime import datetime, timezone

from ckptstore.core.tabular import Listing, html_table


def test_what_comes_from_users_is_text() -> None:
    table = html_table([{"<b>": "<script>alert(1)</script>", "tags": ["a&b", "c"]}])
    assert "<script>" not in table
    assert "<b>" not in table
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in table
    assert "<td>a&amp;b, c</td>" in table


def test_columns_in_which_no_row_has_anything_are_left_out() -> None:
    rows = [{"run": "a", "doubt": None, "loss": 0.0, "pinned": False}, {"run": "b", "doubt": None, "loss": 1.5}]
    table = html_table([{**row, "tags": (), "pinned": False} for row in rows])
    assert "<tr><th>run</th><th>loss</th><th>pinned</th></tr>" in table
    assert '<tr><td>b</td><td style="text-align: right">1.5</td><td>False</td></tr>' in table


def test_of_many_rows_the_first_are_shown() -> None:
    table = html_table([{"step": step} for step in range(300)])
    assert table.count("<tr>") == 102
    assert "… 200 more" in table
    assert html_table([]) == "<table><thead><tr></tr></thead><tbody><tr><td>none</td></tr></tbody></table>"


def test_a_listing_is_a_list() -> None:
    listing = Listing([3, 4], lambda row: {"at": datetime(2026, 1, row, tzinfo=timezone.utc), "of": {"loss": 0.25}})
    assert listing == [3, 4]
    assert listing.to_dicts()[1]["at"].day == 4
    assert "<td>2026-01-03 00:00:00</td><td>loss 0.25</td>" in listing._repr_html_()

from __future__ import annotations

import pytest

from capplan.traffic.trace import Ledger


def test_books_that_do_not_balance_are_refused():
    with pytest.raises(ValueError, match="rows read must equal"):
        Ledger(read=3, kept=1, dropped={"negative": 1})


def test_negative_counts_are_refused():
    with pytest.raises(ValueError, match="negative"):
        Ledger(read=0, kept=1, dropped={"negative": -1})


def test_the_table_and_the_sentence_say_every_entry():
    ledger = Ledger(read=5, kept=3, dropped={"negative": 2}, changed={"out_of_order_sorted": 1})
    assert ledger.table()["rows"].tolist() == [5, 3, 2, 1]
    assert ledger.sentence() == (
        "5 rows read: 3 kept, 2 dropped (negative 2); out_of_order_sorted 1."
    )

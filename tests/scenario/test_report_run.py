"""The report of a run directory with a real ledger and store, also while a run writes them."""

from pathlib import Path

from tests.unit.governance.example_run import example_trajectories, write_run
from trialyard.run.wiring.report import report_run
from trialyard.storage.ledger import SqlLedger
from trialyard.trajectories.store import TrajectoryStore


def test_samples_come_from_the_store_of_a_live_run(tmp_path: Path) -> None:
    write_run(tmp_path, steps=6, finished=False)
    with SqlLedger(tmp_path / "ledger.sqlite") as ledger:
        store = TrajectoryStore(tmp_path / "trajectories", ledger)
        store.append(example_trajectories())
        live = report_run(tmp_path).read_text("utf-8")
        store.seal()
        sealed = report_run(tmp_path).read_text("utf-8")
        store.close()
    assert "fails here, mended in turn 2" in live
    assert sealed == live == report_run(tmp_path).read_text("utf-8")


def test_a_ledger_that_cannot_be_read_leaves_a_report_without_samples(tmp_path: Path) -> None:
    write_run(tmp_path, steps=6)
    assert "store was not opened" in report_run(tmp_path).read_text("utf-8")
    (tmp_path / "ledger.sqlite").write_bytes(b"no database" * 500)
    html = report_run(tmp_path).read_text("utf-8")
    assert "store was not opened" in html
    assert "Held-out tasks" in html

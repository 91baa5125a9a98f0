"""The report of a run with its trajectories, opened for reading only: also while it runs."""

from pathlib import Path

from trialyard.core.errors import StoreError
from trialyard.governance.report import write_report
from trialyard.run.directory import RunDirectory
from trialyard.storage.ledger import SqlLedger
from trialyard.trajectories.store import TrajectoryStore


def report_run(root: Path) -> Path:
    """Write ``report.html`` and the learning curve of the run in `root`; returns the page.

    Without a readable ledger the report has no samples, and says so.
    """
    directory = RunDirectory(root)
    if not directory.ledger_file.is_file():
        return write_report(root)
    try:
        ledger = SqlLedger(directory.ledger_file, read_only=True)
    except StoreError:
        return write_report(root)
    with ledger:
        store = TrajectoryStore(directory.trajectories, ledger, read_only=True)
        return write_report(root, store)

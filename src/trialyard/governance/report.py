"""The report of a run: one HTML file that needs nothing else, and the learning curve.

It is written from the files of the run directory and works on a run that is going on,
was interrupted or lost files: what is missing is said at the top. All text of the run
is untrusted: it is escaped, there is no script, and the page's policy forbids any.
"""

from pathlib import Path

from trialyard.core.durable import replace_file
from trialyard.core.errors import StoreError, TrialyardError
from trialyard.governance.report_curve import write_png, write_svg
from trialyard.governance.report_data import RunData, read_run
from trialyard.governance.report_page import page
from trialyard.governance.report_samples import Samples, StoredTrajectories, choose


def write_report(run_directory: Path, store: StoredTrajectories | None = None) -> Path:
    """Write ``report.html``, ``learning_curve.svg`` and ``.png`` into a run directory.

    `store` holds the run's trajectories; without it no samples are shown. Raises
    `StoreError` when the files cannot be written.
    """
    run = read_run(run_directory)
    samples = _samples(run, store)
    target = run_directory / "report.html"
    try:
        write_svg(run, run_directory / "learning_curve.svg")
        write_png(run, run_directory / "learning_curve.png")
        replace_file(target, page(run, samples).encode())
    except OSError as error:
        raise StoreError(f"the report was not written to {run_directory}: {error}") from error
    return target


def _samples(run: RunData, store: StoredTrajectories | None) -> Samples:
    if store is None:
        run.missing.append("The trajectory store was not opened: no samples are shown.")
        return Samples()
    try:
        return choose(store)
    except TrialyardError as error:
        run.missing.append(f"Some trajectories cannot be read, so no samples are shown: {error}")
        return Samples()

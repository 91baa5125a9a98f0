"""Where data sets lie: outside the repository, ``TRIALYARD_DATA`` or ``../shared/data``."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("TRIALYARD_DATA", ROOT.parent / "shared" / "data"))
MBPP = DATA / "mbpp" / "mbpp.jsonl"

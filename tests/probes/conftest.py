"""All programs in all kinds of boxes take minutes: `make probes` runs them, and every run of the
suite a short form of them (tests/contract/test_probes.py)."""

import os

collect_ignore = [] if os.environ.get("TRIALYARD_ALL_PROBES") else ["test_probes.py"]

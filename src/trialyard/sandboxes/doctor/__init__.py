"""What this host can do for sandboxes, and the exact cure for what it cannot.

Each finding is tried, not guessed; boxes of each backend are really started, and six small
hostile programs run in them. Boxes are safe here only when every required finding is ok.
"""

from trialyard.sandboxes.doctor.examine import examine
from trialyard.sandboxes.doctor.finding import Finding

__all__ = ["Finding", "examine"]

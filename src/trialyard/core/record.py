"""The two shapes of immutable data.

Records that cross a boundary (files, CLI, HTTP) are `Record`: pydantic, frozen,
unknown fields refused. Hot records inside (`ExecResult`, `Trajectory`) are frozen
dataclasses with slots.
"""

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Frozen pydantic model that refuses unknown fields, NaN and infinities."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

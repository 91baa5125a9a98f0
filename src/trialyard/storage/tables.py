"""The ledger's tables as the newest migration leaves them."""

from sqlalchemy import BigInteger, Boolean, Column, Double, Integer, MetaData, Table, Text

metadata = MetaData()

trajectories = Table(
    "trajectories",
    metadata,
    Column("seq", BigInteger, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("group_id", Text, nullable=False),
    Column("member", Integer, nullable=False),
    Column("task_id", Text, nullable=False),
    Column("task_hash", Text, nullable=False),
    Column("segment", Text, nullable=False),
    Column("batch", BigInteger, nullable=False),
    Column("oldest_version", BigInteger),
    Column("reward", Double),
    Column("fault", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("consumed_step", BigInteger),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("weight_version", BigInteger, nullable=False),
    Column("state_digest", Text, nullable=False),
)

weights = Table(
    "weights",
    metadata,
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("digest", Text, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("pinned", Boolean, nullable=False),
)

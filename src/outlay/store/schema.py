"""The tables of the store, as they are now; how older stores get there is in ``migrations``."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Index, Integer, MetaData, String, Table

metadata = MetaData()

versions = Table(
    "outlay_schema",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("applied_ns", BigInteger, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("dir", String, nullable=False),
    Column("model", String, nullable=False),
    Column("name", String, nullable=False),
    Column("status", String, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("steps", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("started_ns", BigInteger, nullable=False),
    Column("last_seen_ns", BigInteger, nullable=False),
    Column("user", String, nullable=False),
    Column("host", String, nullable=False),
    Column("gpu", String, nullable=False),
    Column("gpus", Integer, nullable=False),
    Column("tags", JSON, nullable=False),
    Column("cost_micros", BigInteger),
    Column("currency", String),
    Column("ended_ns", BigInteger),
    Column("updated_ns", BigInteger, nullable=False),
    Index("runs_by_start", "started_ns", "run_id"),
)

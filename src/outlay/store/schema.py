"""The current tables of the store; migrations are in ``opening``."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
)

metadata = MetaData()

# An autoincremented key; SQLite supports that only for INTEGER.
_Id = BigInteger().with_variant(Integer(), "sqlite")

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
    Column("log_bytes", BigInteger),
    Column("log_mtime_ns", BigInteger),
    Column("figures_version", Integer),
    Column("findings", JSON(none_as_null=True)),
    Column("kind", String),
    Column("assumed_micros", BigInteger),
    Column("goodput", Float),
    Column("metric", String),
    Column("metric_value", Float),
    # Every other figure, by name: what no query sorts or filters needs no column.
    Column("figures", JSON(none_as_null=True)),
    # Read only on request: lists have thousands of rows.
    Column("charges", JSON(none_as_null=True)),
    # The host whose sighting the row is from, and when that was, by the database's clock.
    Column("seen_from", String),
    Column("seen_ns", BigInteger),
    Index("runs_by_start", "started_ns", "run_id"),
    Index("runs_by_last_seen", "last_seen_ns"),
)

# Where the log of a run was read: one row for each host, with its own path.
sightings = Table(
    "sightings",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("host", String, primary_key=True),
    Column("dir", String, nullable=False),
    Column("log_bytes", BigInteger),
    Column("log_mtime_ns", BigInteger),
    Column("seen_ns", BigInteger, nullable=False),
    Index("sightings_by_host", "host", "dir"),
)

# The last answer of a vendor, a cluster or a host to the question of what it has.
machine_lists = Table(
    "machine_lists",
    metadata,
    Column("source", String, primary_key=True),
    Column("asked_from", String, nullable=False),
    Column("answered_ns", BigInteger),
    Column("failed_ns", BigInteger),
    Column("problem", String, nullable=False),
    Column("machines", JSON, nullable=False),
)

# Whose a machine is that no run, rental or job of outlay knows.
claims = Table(
    "claims",
    metadata,
    Column("source", String, primary_key=True),
    Column("machine", String, primary_key=True),
    Column("user", String, nullable=False),
    Column("team", String, nullable=False),
    Column("project", String, nullable=False),
    Column("reason", String, nullable=False),
    Column("claimed_by", String, nullable=False),
    Column("claimed_ns", BigInteger, nullable=False),
)

price_snapshots = Table(
    "price_snapshots",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("source", String, nullable=False),
    Column("fetched_ns", BigInteger, nullable=False),
    Column("failed", Boolean, nullable=False),
    Column("offers", Integer, nullable=False),
    Column("quarantined", Integer, nullable=False),
    Column("findings", JSON, nullable=False),
    UniqueConstraint("source", "fetched_ns"),
)

price_offers = Table(
    "price_offers",
    metadata,
    Column("snapshot_id", ForeignKey("price_snapshots.id"), primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("provider", String, nullable=False),
    Column("gpu", String, nullable=False),
    Column("gpu_count", Integer, nullable=False),
    Column("price_micros", BigInteger, nullable=False),
    Column("per_gpu_micros", BigInteger, nullable=False),
    Column("currency", String, nullable=False),
    Column("tier", String, nullable=False),
    Column("community", Boolean, nullable=False),
    Column("memory_gb", Integer),
    Column("nvlink", Boolean),
    Column("interconnect", String),
    Column("bandwidth_mbps", BigInteger),
    Column("region", String),
    Column("availability", Integer),
    Column("storage_micros", BigInteger),
    Column("cuda", String),
    Column("offer_id", String),
    Column("given", String),
    Column("terms", JSON(none_as_null=True)),
    Index("price_offers_cheapest", "snapshot_id", "gpu", "per_gpu_micros"),
)

# A price series: the same GPUs on the same terms from one source.
price_series = Table(
    "price_series",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("source", String, nullable=False),
    Column("provider", String, nullable=False),
    Column("gpu", String, nullable=False),
    Column("tier", String, nullable=False),
    Column("community", Boolean, nullable=False),
    Column("currency", String, nullable=False),
    # 0 in series of old versions, which did not distinguish sizes.
    Column("gpu_count", Integer, nullable=False, server_default="0"),
    UniqueConstraint("source", "provider", "gpu", "gpu_count", "tier", "community", "currency"),
)

# The cheapest offer of a series in a snapshot; derived from price_offers and written with them.
price_points = Table(
    "price_points",
    metadata,
    Column("series_id", ForeignKey("price_series.id"), primary_key=True),
    Column("fetched_ns", BigInteger, primary_key=True, autoincrement=False),
    Column("snapshot_id", ForeignKey("price_snapshots.id"), nullable=False),
    Column("micros", BigInteger, nullable=False),
    Column("offers", Integer, nullable=False),
    Index("price_points_by_time", "fetched_ns"),
    Index("price_points_by_snapshot", "snapshot_id"),
    Index("price_points_lowest", "series_id", "micros", "fetched_ns"),
)

price_alerts = Table(
    "price_alerts",
    metadata,
    Column("series_id", ForeignKey("price_series.id"), primary_key=True),
    Column("fetched_ns", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", String, nullable=False),
    Column("current_micros", BigInteger, nullable=False),
    Column("previous_micros", BigInteger, nullable=False),
    Index("price_alerts_by_time", "fetched_ns"),
)

# One per run: stated by a training, or derived from its log.
cost_reports = Table(
    "cost_reports",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("model", String, nullable=False),
    Column("source", String, nullable=False),
    Column("cost_micros", BigInteger, nullable=False),
    Column("currency", String, nullable=False),
    Column("gpu_us", BigInteger, nullable=False),
    Column("wall_us", BigInteger, nullable=False),
    Column("energy_mj", BigInteger),
    Column("samples", BigInteger, nullable=False),
    Column("epochs", Float, nullable=False),
    Column("tokens", BigInteger),
    Column("accuracy", Float),
    Column("loss", Float),
    Column("at_ns", BigInteger, nullable=False),
    Column("metrics", JSON),
    Column("updated_ns", BigInteger, nullable=False),
    Column("kind", String),
    Column("assumed_micros", BigInteger),
    Column("charges", JSON(none_as_null=True)),
    Index("cost_reports_by_model", "model", "at_ns"),
)

# The documents of closed months, as they are in the outlay home of who closed them.
closed_months = Table(
    "closed_months",
    metadata,
    Column("month", String, primary_key=True),
    Column("sha256", String, nullable=False),
    Column("closed_ns", BigInteger, nullable=False),
    Column("closed_by", String, nullable=False),
    Column("reason", String, nullable=False),
    Column("document", String, nullable=False),
)

model_budgets = Table(
    "model_budgets",
    metadata,
    Column("model", String, primary_key=True),
    Column("limit_micros", BigInteger, nullable=False),
    Column("currency", String, nullable=False),
    Column("set_ns", BigInteger, nullable=False),
)

# Reached budget thresholds; a changed limit has a new set_ns.
budget_alerts = Table(
    "budget_alerts",
    metadata,
    Column("model", String, primary_key=True),
    Column("set_ns", BigInteger, primary_key=True, autoincrement=False),
    Column("percent", Integer, primary_key=True, autoincrement=False),
    Column("spent_micros", BigInteger, nullable=False),
    Column("at_ns", BigInteger, nullable=False),
)

# One row per advice and subject; a later one replaces it.
recommendations = Table(
    "recommendations",
    metadata,
    Column("key", String, primary_key=True),
    Column("category", String, nullable=False),
    Column("subject", String, nullable=False),
    Column("body", JSON, nullable=False),
    Column("at_ns", BigInteger, nullable=False),
    Index("recommendations_by_time", "at_ns"),
)

# One per imported file; the lines are in the file that it names.
bills = Table(
    "bills",
    metadata,
    Column("sha256", String, primary_key=True),
    Column("path", String, nullable=False),
    Column("kept_sha256", String, nullable=False),
    Column("imported_ns", BigInteger, nullable=False),
    Column("months", JSON, nullable=False),
    Column("about", JSON, nullable=False),
    Index("bills_by_time", "imported_ns"),
)

"""A team's books: one spend log, and one ceiling, for many machines.

A book is a spend log in PostgreSQL, named by a URL. Decisions, lines and hashes are the guard's;
this package locks, reads and appends, and decides nothing.
"""

from __future__ import annotations

from outlay.team.book_url import PostgresUrl
from outlay.team.postgres_log import PostgresSpendLog, open_postgres

__all__ = ["PostgresSpendLog", "PostgresUrl", "open_postgres", "team_schema", "transfer"]

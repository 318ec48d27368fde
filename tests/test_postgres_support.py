"""The database server that tests use: durable, and the same after it was stopped at once."""

from __future__ import annotations

from postgres import PostgresServer


def test_the_server_asks_for_passwords_and_syncs(postgres_server: PostgresServer) -> None:
    shown = ("password_encryption", "fsync", "synchronous_commit")
    rows = [postgres_server.execute(f"SHOW {name}") for name in shown]
    assert rows == [[("scram-sha-256",)], [("on",)], [("on",)]]


def test_what_was_committed_is_there_after_an_immediate_stop(
    postgres_server: PostgresServer,
) -> None:
    postgres_server.execute("CREATE TABLE IF NOT EXISTS kept (n int)")
    postgres_server.execute("INSERT INTO kept VALUES (1)")
    postgres_server.stop_at_once()
    postgres_server.start()
    assert postgres_server.execute("DELETE FROM kept RETURNING n") == [(1,)]

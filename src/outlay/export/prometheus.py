"""Live runs and ceilings in Prometheus's text format, served over HTTP or written to a file.

Live runs only: a run's series end with it. Names end in their unit, by Prometheus's conventions;
the tests run ``promtool check metrics``. Nothing is computed here.
"""

from __future__ import annotations

import hmac
import http.server
import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from outlay.errors import InvalidValue, OutlayError
from outlay.export.live_runs import LiveReading
from outlay.files import read_own, write_whole
from outlay.guard.scopes import ScopePattern
from outlay.runs.figures import BY_NAME, exported_numbers
from outlay.runs.inventory.machines_now import MachinesNow
from outlay.runs.reading import RunReading
from outlay.units import Money, Unit
from outlay.units.money import GPU_TIME

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_]")


class _Page:
    """The lines of each metric, its help and type first."""

    def __init__(self) -> None:
        self._metrics: dict[str, list[str]] = {}

    def add(self, name: str, about: str, labels: Mapping[str, str], value: float | None) -> None:
        """Add a sample; a name that ends in ``_total`` is a counter, any other a gauge."""
        if value is None:
            return
        kind = "counter" if name.endswith("_total") else "gauge"
        head = [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
        texts = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
        self._metrics.setdefault(name, head).append(f"{name}{{{texts}}} {float(value)!r}")

    def text(self) -> str:
        return "".join(f"{line}\n" for lines in self._metrics.values() for line in lines)


def exposition(reading: LiveReading, user_shown: Callable[[str], str] = str) -> str:
    """Return live runs and ceilings in Prometheus's exposition format 0.0.4.

    ``user_shown`` maps a user's name to the one in labels.
    """
    page = _Page()
    for run in reading.runs:
        _add_run(page, run, user_shown(run.figures.user))
    _add_burn(page, reading.now)
    for guard in reading.guards:
        for standing in guard.standings:
            scope = standing.scope
            # A day or month is labelled by its kind alone, so that its series continues.
            about = {"log": guard.log_path, "scope": str(ScopePattern.of_scope(scope))}
            unit = _unit_name(standing.limit.unit)
            for name, money, text in (
                ("ceiling", standing.limit, "The ceiling of a scope of a spend log."),
                ("captured", standing.captured, "What was spent in a scope."),
                ("held", standing.held, "What is held in a scope."),
                ("remaining", standing.remaining, "What is left of a ceiling; below 0: overspent."),
            ):
                page.add(f"outlay_guard_{name}_{unit}", text, about, float(money.amount))
    page.add("outlay_reading_timestamp_seconds", "When this page was made.", {}, reading.t_ns / 1e9)
    page.add(
        "outlay_unreadable", "Logs that could not be read for this page.", {}, len(reading.findings)
    )
    return page.text()


def _add_burn(page: _Page, now: MachinesNow | None) -> None:
    about = "What costs money now, in runs and without; the parts sum to the burn per hour."
    if now is None:
        return
    for rate in now.burn:
        name = f"outlay_burn_{_unit_name(rate.unit)}_per_hour"
        for part, each in now.by_part(rate.unit).items():
            page.add(name, about, {"part": part}, each.micros_per_hour / 1e6)


def _unit_name(unit: Unit) -> str:
    """Return a unit in the name of a metric: ``usd``, ``usd_showback``, ``gpu_hours``."""
    return "gpu_hours" if unit == GPU_TIME else _NOT_IN_A_NAME.sub("_", str(unit).lower())


def _add_run(page: _Page, run: RunReading, user: str) -> None:
    row, currency = run.figures, _NOT_IN_A_NAME.sub("_", run.currency_suffix)
    labels = {"run": row.run_id}
    info = {
        "model": row.model, "name": row.name, "user": user, "host": row.host,
        "gpu": row.gpu, "gpus": str(row.gpus), "kind": row.kind,
    }  # fmt: skip
    page.add("outlay_run_info", "Facts about a live run, as labels.", labels | info, 1)
    for figure in exported_numbers():
        page.add(figure.prometheus_name(currency), figure.about, labels, figure.scaled(row))
    about = "The time of a run's numbers: that of its last record."
    page.add("outlay_run_reading_timestamp_seconds", about, labels, run.t_ns / 1e9)
    for phase, ns in run.breakdown.phases.items():
        about = "Wall time of a run by phase; the phases sum to the wall time."
        page.add("outlay_run_phase_seconds_total", about, labels | {"phase": phase}, ns / 1e9)
    _add_phases(page, labels, currency, run.cost.by_phase)
    for beside in run.cost.cost_beside:
        unit = _NOT_IN_A_NAME.sub("_", beside.cost.currency.lower())
        about = BY_NAME["cost"].about
        page.add(f"outlay_run_cost_{unit}_total", about, labels, float(beside.cost.amount))
        _add_phases(page, labels, unit, beside.by_phase)


def _add_phases(
    page: _Page, labels: Mapping[str, str], currency: str, by_phase: Mapping[str, Money]
) -> None:
    about = "What a run cost by phase; the phases sum to its cost."
    for phase, part in by_phase.items():
        of_phase = {**labels, "phase": phase}
        name = f"outlay_run_phase_cost_{currency}_total"
        page.add(name, about, of_phase, float(part.amount))


def _escaped(label: str) -> str:
    label = label.encode(errors="replace").decode()  # A path need not be valid UTF-8.
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


# HTTP server and text file


def write_textfile(path: Path, reading: LiveReading) -> None:
    """Atomically replace the file that node_exporter's textfile collector reads."""
    write_whole(path, exposition(reading).encode())


def read_token(path: Path) -> str:
    """Read a bearer token from a file.

    Raises:
        InvalidValue: It cannot be read, or is empty.
    """
    try:
        token = read_own(path).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue("token file", str(path), f"a file with a token ({error})") from None
    if not token:
        raise InvalidValue("token file", str(path), "a token in it; the file is empty")
    return token


def is_authorized(header: str | None, token: str | None) -> bool:
    """Return whether an ``Authorization`` header has the token; always True without a token."""
    if token is None:
        return True
    return hmac.compare_digest((header or "").encode(), f"Bearer {token}".encode())


class MetricsServer(http.server.ThreadingHTTPServer):
    """Serves ``/metrics``; each request reads the live runs.

    Port 0 lets the system choose; without a token, anyone who reaches the port may read.
    """

    daemon_threads = True

    def __init__(
        self, address: tuple[str, int], read: Callable[[], LiveReading], token: str | None = None
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _MetricsHandler)
        self.read = read
        self.token = token


class _MetricsHandler(http.server.BaseHTTPRequestHandler):
    server: MetricsServer
    server_version = "outlay"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer one scrape."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
        elif not is_authorized(self.headers.get("Authorization"), self.server.token):
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Bearer")
            self.end_headers()
        else:
            try:
                status, body = 200, exposition(self.server.read()).encode()
            except (OutlayError, OSError) as error:  # The next scrape may succeed.
                status, body = 503, f"{error}\n".encode(errors="replace")
            self.send_response(status)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: there is a scrape every few seconds."""

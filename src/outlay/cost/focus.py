"""Charges as rows of FOCUS 1.2, the FinOps Open Cost and Usage Specification (focus.finops.org).

All columns that the specification makes mandatory are there, and those conditional ones that say
which run and whose it was. Nothing is discounted here, so billed, effective, contracted and list
cost are the same figure.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

from outlay.clock import utc_datetime
from outlay.cost.charges import RunCharge
from outlay.escaping import write_csv
from outlay.goodput.breakdown import Window
from outlay.units import Money

MANDATORY = (
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodStart",
    "BillingPeriodEnd",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargePeriodStart",
    "ChargePeriodEnd",
    "ContractedCost",
    "EffectiveCost",
    "InvoiceIssuerName",
    "ListCost",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "ServiceCategory",
    "ServiceName",
)
COLUMNS = (*MANDATORY, "ResourceId", "ResourceName", "SubAccountId", "SubAccountName", "Tags")

_US_PER_HOUR = 3_600_000_000


def focus_rows(
    charges: Iterable[RunCharge],
    idle: Money | None,
    period: Window,
    *,
    owners: Mapping[str, str],
    account: str = "outlay",
    provider: str = "outlay",
) -> list[dict[str, str]]:
    """Return one row for each run and one for idle cost, whose billed costs sum to the bill.

    Args:
        charges: What runs cost within the billing period.
        idle: What belongs to no run; None where there is none.
        period: The billing period; its end does not belong to it.
        owners: Whose each run is, by run; they become sub-accounts.
        account: The billing account.
        provider: Who rented out the machines and sends the invoice.
    """
    same = _same(period, account, provider)
    rows = [same | _run_columns(charge, owners.get(charge.run.run_id, "")) for charge in charges]
    if idle:
        described = {"ChargeDescription": "idle: billed, and used by no recorded run"}
        rows.append(same | described | _cost_columns(idle) | _period_columns(period))
    return rows


def to_csv(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> str:
    """Return rows as CSV with a header."""
    text = io.StringIO()
    write_csv(text, columns, rows)
    return text.getvalue()


def _same(period: Window, account: str, provider: str) -> dict[str, str]:
    return dict.fromkeys(COLUMNS, "") | {
        "BillingAccountId": account,
        "BillingAccountName": account,
        "BillingPeriodStart": _instant(period.start_ns),
        "BillingPeriodEnd": _instant(period.end_ns),
        "ChargeCategory": "Usage",
        "InvoiceIssuerName": provider,
        "ProviderName": provider,
        "PublisherName": provider,
        "ServiceCategory": "AI and Machine Learning",
        "ServiceName": "GPU training",
        "Tags": "{}",
    }


def _run_columns(charge: RunCharge, owner: str) -> dict[str, str]:
    run = charge.run
    hours = Decimal(charge.gpu_us) / _US_PER_HOUR
    columns = {
        "ChargeDescription": f"training {run.name} ({run.model})",
        "PricingQuantity": format(hours.quantize(Decimal("1e-9")).normalize(), "f"),
        "PricingUnit": "GPU-Hours",
        "ResourceId": run.run_id,
        "ResourceName": run.name,
        "SubAccountId": owner,
        "SubAccountName": owner,
        "Tags": json.dumps(dict(run.tags), sort_keys=True),
    }
    return columns | _cost_columns(charge.cost) | _period_columns(charge.window)


def _cost_columns(cost: Money) -> dict[str, str]:
    amount = format(cost.amount, "f")
    names = ("BilledCost", "ContractedCost", "EffectiveCost", "ListCost")
    return dict.fromkeys(names, amount) | {"BillingCurrency": cost.currency}


def _period_columns(window: Window) -> dict[str, str]:
    return {
        "ChargePeriodStart": _instant(window.start_ns),
        "ChargePeriodEnd": _instant(window.end_ns),
    }


def _instant(wall_ns: int) -> str:
    return utc_datetime(wall_ns).strftime("%Y-%m-%dT%H:%M:%SZ")

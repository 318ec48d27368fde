"""Export of charges in FOCUS, the FinOps Open Cost and Usage Specification (focus.finops.org).

Version 1.2, which most importers read, or 1.4, which has other names for providers and columns for
allocated charges: there a run on a known machine is a part of that machine's charge. Rows have all
mandatory columns, and the conditional ones that identify the run and its owner. There are no
discounts, so effective, contracted and list cost are equal. Billed cost, which must not be null, is
0 until a bill is known: it has to match invoices, and outlay computes estimates.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from outlay.clock import utc_datetime
from outlay.cost.spending import SpendItem
from outlay.escaping import write_csv
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
COLUMNS = (
    *MANDATORY,
    "ChargeFrequency",
    "InvoiceId",
    "ServiceSubcategory",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ResourceId",
    "ResourceName",
    "SubAccountId",
    "SubAccountName",
    "Tags",
    "x_AssumedCost",
)

_COLUMNS_1_4 = (
    *(name for name in COLUMNS if name not in ("ProviderName", "PublisherName")),
    "ServiceProviderName",
    "HostProviderName",
    "AllocatedMethodId",
    "AllocatedMethodDetails",
    "AllocatedResourceId",
    "AllocatedResourceName",
    "AllocatedTags",
)
VERSIONS: dict[str, tuple[str, ...]] = {"1.2": COLUMNS, "1.4": _COLUMNS_1_4}
"""The columns of each version that can be written."""
BY_TIME = "outlay-time-on-machine"
"""The method by which a machine's cost is allocated: to each run, for its time and share of it."""

UNKNOWN = "unknown"
"""The provider if neither the user nor a price names one: the column must not be empty."""

_US_PER_HOUR = 3_600_000_000
_NS_PER_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoice:
    """Columns shared by all rows of a billing period ``[start_ns, end_ns)``.

    Attributes:
        provider: The invoice issuer; None means the provider of each price.
        billed: The currency of a known bill; billed cost is 0 in other currencies.
        version: Of the specification, one of ``VERSIONS``.
    """

    start_ns: int
    end_ns: int
    account: str = UNKNOWN
    provider: str | None = None
    billed: str | None = None
    version: str = "1.2"


def focus_rows(
    spends: Iterable[SpendItem],
    idle: Money | None,
    invoice: Invoice,
    *,
    owner_of: Callable[[SpendItem], str],
) -> list[dict[str, str]]:
    """Return a row per spend and one for idle cost; their costs sum to the total.

    ``owner_of`` decides a spend's sub-account.
    """
    rows = [_spend_row(spend, owner_of(spend), invoice) for spend in spends]
    if idle:
        common = _common_columns(invoice, invoice.provider or UNKNOWN)
        period = _period_columns(invoice.start_ns, invoice.end_ns)
        # An adjustment, since usage requires a quantity and idle hours are unknown.
        kind = _description("Adjustment", "idle: billed, and used by no recorded run")
        rows.append(common | _cost_columns(idle, invoice) | period | kind)
    columns = VERSIONS[invoice.version]
    return [{name: row[name] for name in columns} for row in rows]


def to_csv(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> str:
    """Return rows as CSV with a header."""
    text = io.StringIO()
    write_csv(text, columns, rows)
    return text.getvalue()


def _common_columns(invoice: Invoice, provider: str) -> dict[str, str]:
    return dict.fromkeys(VERSIONS[invoice.version], "") | {
        "BillingAccountId": invoice.account,
        "BillingAccountName": invoice.account,
        "BillingPeriodStart": _instant(invoice.start_ns),
        "BillingPeriodEnd": _instant(invoice.end_ns),
        "InvoiceIssuerName": provider,
        "ProviderName": provider,
        "PublisherName": provider,
        "ServiceProviderName": provider,
        "HostProviderName": provider,
        "ChargeFrequency": "Usage-Based",
        "ServiceCategory": "AI and Machine Learning",
        "ServiceSubcategory": "AI Platforms",
        "ServiceName": "GPU training",
        "Tags": "{}",
    }


def _spend_row(spend: SpendItem, owner: str, invoice: Invoice) -> dict[str, str]:
    provider = invoice.provider or spend.provider or UNKNOWN
    return (
        _common_columns(invoice, provider)
        | _usage_columns(spend)
        | {
            "SubAccountId": owner,
            "SubAccountName": owner,
            "ChargeClass": "Correction" if spend.origin else "",
        }
        | _resource_columns(spend, invoice)
        | _cost_columns(spend.cost, invoice, spend.assumed)
        | _period_columns(spend.start_ns, spend.end_ns)
    )


def _resource_columns(spend: SpendItem, invoice: Invoice) -> dict[str, str]:
    """Return what is charged: a run; since 1.4 its machine, of which the run is a part."""
    tags = json.dumps(dict(spend.tags), sort_keys=True)
    run = {"ResourceId": spend.run_id, "ResourceName": spend.name, "Tags": tags}
    place = spend.machine or spend.host
    if invoice.version == "1.2" or not place:
        return run
    allocated = {"AllocatedMethodId": BY_TIME, "AllocatedMethodDetails": "{}"}
    if not spend.is_machine:
        allocated |= {f"Allocated{name}": value for name, value in run.items()}
        tags = "{}"
    machine = {"ResourceId": place, "ResourceName": place, "Tags": tags}
    return machine | allocated


def _usage_columns(spend: SpendItem) -> dict[str, str]:
    """Return the usage: GPU-hours of a training, or hours of a machine without one."""
    if spend.source == "bill":
        return _description("Adjustment", f"correction by a bill: {spend.name}")
    if spend.source == "commitment":
        return _description("Purchase", f"{spend.name} {spend.model}")
    if spend.source == "increment":
        described = f"machine {spend.machine} of {spend.name}, billed beyond use"
    elif spend.is_machine:
        kind = "rented" if spend.source == "rental" else "owned"
        described = f"{kind} machine {spend.name}, in no run"
    elif spend.between:
        described = f"machine between two attempts of {spend.name} ({spend.model})"
    else:
        described = f"training {spend.name} ({spend.model})"
    is_machine = spend.between or spend.is_machine or spend.source == "increment"
    hours = Decimal((spend.end_ns - spend.start_ns) // 1000 if is_machine else spend.gpu_us)
    quantity = _decimal((hours / _US_PER_HOUR).quantize(Decimal("1e-9")))
    unit = "Hours" if is_machine else "GPU-Hours"
    if spend.origin:
        described = f"of {spend.origin}, which was closed before: {described}"
    priced = {"PricingQuantity": quantity, "PricingUnit": unit}
    consumed = {"ConsumedQuantity": quantity, "ConsumedUnit": unit}
    return priced | consumed | _description("Usage", described)


def _description(category: str, text: str) -> dict[str, str]:
    return {"ChargeCategory": category, "ChargeDescription": text}


def _cost_columns(cost: Money, invoice: Invoice, assumed: Money | None = None) -> dict[str, str]:
    amount = _decimal(cost.amount)
    return dict.fromkeys(("ContractedCost", "EffectiveCost", "ListCost"), amount) | {
        "BilledCost": amount if cost.currency == invoice.billed else "0.00",
        "BillingCurrency": cost.currency,
        "x_AssumedCost": "0.00" if assumed is None else _decimal(assumed.amount),
    }


def _decimal(value: Decimal) -> str:
    """Return a number with decimals: readers take a column without any for integers."""
    text = format(value.normalize(), "f")
    return text if "." in text else f"{text}.00"


def _period_columns(start_ns: int, end_ns: int) -> dict[str, str]:
    """Return a half-open charge period in whole seconds, at least one second long."""
    first_s = start_ns // _NS_PER_SECOND
    last_s = max(-(-end_ns // _NS_PER_SECOND), first_s + 1)
    return {
        "ChargePeriodStart": _instant(first_s * _NS_PER_SECOND),
        "ChargePeriodEnd": _instant(last_s * _NS_PER_SECOND),
    }


def _instant(wall_ns: int) -> str:
    return utc_datetime(wall_ns).strftime("%Y-%m-%dT%H:%M:%SZ")

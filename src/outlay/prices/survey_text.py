"""A survey as a document: ``vendor-survey.md``. Pure; every figure in it is computed."""

from __future__ import annotations

from collections.abc import Iterator

from outlay.clock import utc_text
from outlay.escaping import markdown_row, markdown_text
from outlay.prices.alerts import change_percent
from outlay.prices.offer import Offer, Tier
from outlay.prices.survey import Placeholder, Rule, Survey, VendorRow

_HEADER = (
    "| vendor | offer | per GPU-hour | whole, per hour | memory per GPU | network | NVLink "
    "| region | source, snapshot |\n|---|---|---:|---:|---:|---|---|---|---|"
)
FINDINGS_SHOWN = 20
_YES_NO = {True: "yes", False: "no", None: "not known"}


def as_markdown(survey: Survey) -> str:
    """Return the whole document."""
    blocks = [
        f"# Vendor survey: {survey.gpus} GPUs in one machine",
        f"Snapshot of {utc_text(survey.taken_ns)}. Prices move from week to week.",
        "## Vendors compared",
        "\n".join([_HEADER, *(line for row in survey.rows for line in _lines(row))]),
        "## Recommended pick",
        "Rule: the cheapest spot tier with NVLink between the GPUs; where there is none, the "
        "cheapest spot tier with all GPUs guaranteed in a single node.",
        justification(survey),
    ]
    if survey.findings:
        blocks += ["## What is wrong in the data", "\n".join(_findings(survey))]
    return "\n\n".join(blocks) + "\n"


def _lines(row: VendorRow) -> Iterator[str]:
    if row.problem is not None:
        yield f"{markdown_row([row.vendor, row.problem])} | | | | | | |"
    elif not row.offers:
        said = "loaded; nothing that fits can be rented now"
        yield f"{markdown_row([row.vendor, said])} | | | | | | |"
    for offer in row.offers:
        cells = [
            row.vendor,
            described(offer),
            str(offer.price_per_gpu),
            str(offer.price),
            "not said" if offer.memory_gb is None else f"{offer.memory_gb} GB",
            "not said" if offer.bandwidth_mbps is None else f"{offer.bandwidth_mbps} Mbit/s down",
            _YES_NO[offer.nvlink],
            offer.region or "any",
            f"{offer.source}, {utc_text(offer.fetched_ns)}",
        ]
        yield markdown_row(cells)


def justification(survey: Survey) -> str:
    """Return why the pick is the pick, in one paragraph."""
    pick = survey.pick
    if pick is None:
        return _assumption(Placeholder(gpus=survey.gpus))
    return " ".join([_chosen(pick), _why(survey), *_against(survey, pick), *_warnings(pick)])


def described(offer: Offer) -> str:
    """Return what is rented, in a few words."""
    return f"{offer.gpu_count}x {offer.gpu} {offer.label}"


def _chosen(pick: Offer) -> str:
    what = markdown_text(f"{pick.provider}: {described(pick)}")
    return f"**{what}** at {pick.price_per_gpu} per GPU-hour, {pick.price} per hour for all of it."


def _why(survey: Survey) -> str:
    spot = f"{survey.considered} spot offer{'s' if survey.considered != 1 else ''}"
    match survey.rule:
        case Rule.NVLINK:
            return (
                f"Of {spot} with {survey.gpus} GPUs in one machine, {survey.with_nvlink} "
                f"{'has' if survey.with_nvlink == 1 else 'have'} NVLink between them, and this is "
                "the cheapest of those."
            )
        case Rule.SINGLE_NODE:
            return (
                f"None of {spot} is known to have NVLink between the GPUs; this is the cheapest "
                f"that has all {survey.gpus} in a single node."
            )
        case _:
            return "No spot tier has an offer that fits, so this is the cheapest on demand."


def _against(survey: Survey, pick: Offer) -> Iterator[str]:
    for other in survey.runners_up:
        more = change_percent(other.price_per_gpu.micros, pick.price_per_gpu.micros)
        joined = {True: "with NVLink", False: "without NVLink", None: "NVLink not known"}
        yield (
            f"The cheapest at {markdown_text(other.provider)} is {markdown_text(described(other))} "
            f"at {other.price_per_gpu} per "
            f"GPU-hour ({more:+.0f} %, {joined[other.nvlink]})."
        )


def _warnings(pick: Offer) -> Iterator[str]:
    if pick.tier is Tier.SPOT:
        yield "Spot can be taken back at short notice: save partial results after each measurement."


def _assumption(plan: Placeholder) -> str:
    return (
        "**Assumption, not a price:** no vendor's prices could be used, so this plans with a "
        f"placeholder of {plan.gpus}x a consumer GPU at {plan.per_gpu} per GPU-hour = "
        f"{plan.per_hour} per hour. At most {plan.hours} hours = {plan.cost}. "
        f"Ceiling: {plan.ceiling}, with a buffer of {plan.buffer_percent} %. "
        "Run the survey again before renting anything."
    )


def _findings(survey: Survey) -> Iterator[str]:
    for finding in survey.findings[:FINDINGS_SHOWN]:
        yield f"- {markdown_text(str(finding))}"
    if len(survey.findings) > FINDINGS_SHOWN:
        yield f"- and {len(survey.findings) - FINDINGS_SHOWN} more"

"""Billing terms that vendors state publicly, by provider. Pure.

Lambda bills in increments of one minute (docs.lambda.ai). EC2 bills Linux by the second, at least
60 seconds (aws.amazon.com/ec2/pricing), and Compute Engine likewise, at least one minute
(cloud.google.com/compute/vm-instance-pricing). What a price states takes precedence.
"""

from __future__ import annotations

from typing import Final

from outlay.units.billing_terms import BillingTerms

_SECOND: Final = 10**9
_MINUTE: Final = 60 * _SECOND
_PRESETS: Final = {
    "lambda": BillingTerms(increment_ns=_MINUTE),
    "aws": BillingTerms(increment_ns=_SECOND, minimum_ns=_MINUTE),
    "gcp": BillingTerms(increment_ns=_SECOND, minimum_ns=_MINUTE),
}


def terms_of(provider: str) -> BillingTerms | None:
    """Return the billing terms that a provider states; None if none are known."""
    return _PRESETS.get(provider.lower())

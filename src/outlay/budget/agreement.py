"""Ranks all-gather what they used, and stop at the same step.

All-gathers cost time, so each one also fixes when the next one takes place. That is a pure function
of the gathered reports, hence the same on every rank. Worst cases:

- Tokens per step stated as a number: the limit is never exceeded.
- Tokens that depend on the batch: one number is all-reduced before each of the last thousand steps
  or so; before those, only a step more than a thousand times the largest so far can exceed the
  limit. Under NCCL an all-reduce would wait for the accelerator, so it is left out, and a step more
  than twice the largest so far can exceed the limit.
- Other limits: exceeded by at most one step, unless steps between two all-gathers use more than
  twice the largest so far.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec

from outlay.budget.limits import EPOCHS, TOKENS, Bound, StopReason, reached, would_pass
from outlay.budget.tracker import BudgetTracker
from outlay.budget.usage import ZERO, Usage, joined
from outlay.clock import Clock
from outlay.decoding import Decoder
from outlay.errors import OutlayError
from outlay.record.meters.collectives import uncounted

MAX_SHARE: Final = 100
"""An all-gather may take a hundredth of the time of the steps between two of them."""

FAR: Final = 1000
"""Within this many of the largest steps from a limit, tokens are all-reduced before every step."""

MAX_SPACING_NS: Final = 10_000_000_000
"""The longest time between two all-gathers."""


class AgreementLost(OutlayError):
    """A collective failed, so the ranks cannot stop at the same step."""

    def __init__(self, rank: int, error: object) -> None:
        super().__init__(
            f"rank {rank}: the ranks can no longer agree on their budget, because one is gone or "
            f"hangs: {error}. Restart the run; what it spent is in its log."
        )


class Group(Protocol):
    """The processes that train together."""

    rank: int
    size: int

    def gather(self, payload: bytes) -> list[bytes]:
        """Return every rank's payload, in rank order, to every rank.

        Raises:
            AgreementLost: A rank is gone.
        """


class SummingGroup(Group, Protocol):
    """A group that can also all-reduce one number."""

    sums_on_host: bool
    """Whether ``total`` needs no accelerator."""

    def total(self, number: int) -> int:
        """Return the sum of every rank's number to every rank.

        Raises:
            AgreementLost: A rank is gone.
        """


class Report(msgspec.Struct, frozen=True, array_like=True):
    """One rank's contribution to an all-gather.

    Attributes:
        base: The run's use before this attempt, as far as this rank knows.
        own: This rank's use in this attempt, net of rollbacks.
        next: The use of its next step, as far as that is known before it runs.
        largest: The largest use of one of its steps, amount by amount.
        steady: Whether tokens per step are stated as a number.
        step_ns: The mean time of its steps.
        agreement_ns: How long its all-gathers take.
    """

    base: Usage
    own: Usage
    next: Usage
    largest: Usage
    steady: bool = False
    step_ns: int = 0
    agreement_ns: int = 0


class Verdict(msgspec.Struct, frozen=True):
    """The result of an all-gather, computed from the same reports on every rank.

    Attributes:
        base: The run's use before this attempt, as reported by rank 0.
        others: The use of all other ranks.
        reason: Why all ranks stop now, if they do.
        steps: How many steps each rank runs before the next all-gather.
        tokens_left: What all ranks together may use until then, compared before every step; None
            if the spacing alone keeps the limit.
    """

    base: Usage
    others: Usage
    reason: StopReason | None
    steps: int
    tokens_left: int | None = None


def settle(
    reports: Sequence[Report], rank: int, bounds: Sequence[Bound], *, sums: bool = False
) -> Verdict:
    """Return the verdict for ``rank``; all but ``others`` is the same on every rank.

    With ``sums``, tokens that depend on the batch can be all-reduced before every step.
    """
    base = reports[0].base
    joint = joined(report.own for report in reports)
    total = base + joint
    step = joined(report.next for report in reports)
    largest = joined(report.largest.largest(report.next) for report in reports)
    steady = all(report.steady for report in reports)
    summed = [bound for bound in bounds if bound.dimension is TOKENS] if sums and not steady else []
    far = FAR * largest.tokens  # 0 before the first step: then every limit is near.
    near = [bound for bound in summed if not far or bound.left(total) < far]
    slack = 1 if steady else FAR if sums else 2
    predictable = [bound for bound in bounds if bound.dimension.predictable]
    spaced = [bound for bound in bounds if bound not in near]
    return Verdict(
        base=base,
        others=joint - reports[rank].own,
        reason=reached(total, bounds) or would_pass(total, step, predictable),
        steps=_steps_until_next(reports, total, largest, spaced, slack),
        tokens_left=min((bound.left(total) for bound in near), default=None),
    )


def _steps_until_next(
    reports: Sequence[Report], total: Usage, largest: Usage, bounds: Sequence[Bound], slack: int
) -> int:
    """Return how many steps exceed no limit, if none uses ``slack`` times the largest's tokens."""
    if not all(report.own.steps for report in reports):
        return 1  # Only the first step's tokens are known.
    steps = _affordable_spacing(reports)
    for bound in bounds:
        each = bound.used(largest)
        if each:
            times = {TOKENS: slack, EPOCHS: 1}.get(bound.dimension, 2)
            steps = min(steps, bound.left(total) // (times * each))
    return max(1, steps)


def _affordable_spacing(reports: Sequence[Report]) -> int:
    """Return how many steps apart all-gathers must be to stay within ``MAX_SHARE``."""
    # The last rank to arrive did not wait: its time is the cost of an all-gather.
    agreement_ns = min(report.agreement_ns for report in reports)
    step_ns = max(1, max(report.step_ns for report in reports))
    return min(-(-agreement_ns * MAX_SHARE // step_ns), -(-MAX_SPACING_NS // step_ns))


_decoder = Decoder[Report](Report)


# One rank: when to all-gather, what to send, what to apply


class RankAgreement:
    """Synchronises a tracker with the other ranks' trackers.

    Attributes:
        agreed_steps: This attempt's steps as of the last all-gather.
    """

    def __init__(self, group: SummingGroup, tracker: BudgetTracker, clock: Clock) -> None:
        self.group = group
        self.agreed_steps = 0
        self._steady = False
        self.gathers = 0
        self._tracker = tracker
        self._monotonic_ns = clock.monotonic_ns
        self._largest = ZERO
        self._steps_left = 0
        self._tokens_left: int | None = None
        self._agreed_tokens = 0
        self._agreement_ns = 0

    @property
    def steady(self) -> bool:
        """Whether tokens per step are stated as a number."""
        return self._steady

    @steady.setter
    def steady(self, steady: bool) -> None:
        if steady != self._steady:
            self._steps_left = 0  # The present spacing was computed for the other case.
        self._steady = steady

    def before_step(self, step: Usage) -> Verdict | None:
        """All-gather if one is due; None means that the step may run."""
        if self._steps_left > 0 and self._fits(step.tokens):
            self._steps_left -= 1
            return None
        verdict = self._all_gather(step)
        self._steps_left, self._tokens_left = verdict.steps - 1, verdict.tokens_left
        return verdict

    def _fits(self, tokens: int) -> bool:
        """Return whether all ranks' next steps together leave tokens; a collective call."""
        if self._tokens_left is None:
            return True
        since = self._tracker.own.tokens - self._agreed_tokens
        return self.group.total(since + tokens) < self._tokens_left

    def record_step(self, usage: Usage) -> None:
        """Add the use of a step."""
        self._largest = self._largest.largest(usage)

    def all_allow(self, allowed: bool) -> bool:  # noqa: FBT001 - the only argument
        """Return whether every rank passes True; all ranks must call it together."""
        return all(answer == b"1" for answer in self.group.gather(b"1" if allowed else b"0"))

    def _all_gather(self, step: Usage) -> Verdict:
        begun_ns = self._monotonic_ns()
        own = self._tracker.own
        report = Report(
            base=self._tracker.base,
            own=own,
            next=step,
            largest=self._largest,
            steady=self.steady,
            step_ns=own.time_ns // own.steps if own.steps else 0,
            agreement_ns=self._agreement_ns,
        )
        # JSON, since integers may exceed 64 bits.
        payloads = self.group.gather(msgspec.json.encode(report))
        reports = [_decoder.decode(payload) for payload in payloads]
        bounds, sums = self._tracker.bounds, self.group.sums_on_host
        verdict = settle(reports, self.group.rank, bounds, sums=sums)
        self._tracker.absorb(verdict.base, verdict.others, verdict.reason)
        self.agreed_steps, self._agreed_tokens = own.steps, own.tokens
        self.gathers += 1
        took_ns = self._monotonic_ns() - begun_ns
        # A running mean: the first all-gather also connects, and single ones may be slow.
        self._agreement_ns = (3 * (self._agreement_ns or took_ns) + took_ns) // 4
        return verdict


# torch.distributed

PAYLOAD_BYTES: Final = 2048
_LENGTH_BYTES: Final = 4


class TorchGroup:
    """All ranks of the default process group; works with every backend that can all-gather.

    With NCCL the payload is sent from this rank's current device.
    """

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        self._torch: Any = torch
        self._dist: Any = dist
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        nccl = dist.get_backend() == "nccl"
        device = torch.device("cuda", torch.cuda.current_device()) if nccl else "cpu"
        self._sent = torch.zeros(PAYLOAD_BYTES, dtype=torch.uint8, device=device)
        self._received = [torch.zeros_like(self._sent) for _ in range(self.size)]
        self._sum = torch.zeros(1, dtype=torch.int64, device=device)
        self.sums_on_host = not nccl

    def gather(self, payload: bytes) -> list[bytes]:
        """Return every rank's payload, in rank order."""
        framed = len(payload).to_bytes(_LENGTH_BYTES, "little") + payload
        assert len(framed) <= PAYLOAD_BYTES
        # A bytearray: frombuffer warns about buffers that are not writable.
        content = self._torch.frombuffer(bytearray(framed), dtype=self._torch.uint8)
        self._sent[: len(framed)] = content
        self._run(self._dist.all_gather, self._received, self._sent)
        return [_unframe(tensor.cpu().numpy().tobytes()) for tensor in self._received]

    def total(self, number: int) -> int:
        """Return the sum of every rank's number."""
        self._sum[0] = number
        self._run(self._dist.all_reduce, self._sum)
        return int(self._sum[0])

    def _run(self, collective: Any, *tensors: Any) -> None:
        try:
            with uncounted():
                collective(*tensors)
        except RuntimeError as error:  # Every backend raises this for a lost peer or a timeout.
            raise AgreementLost(self.rank, error) from error


def _unframe(framed: bytes) -> bytes:
    length = int.from_bytes(framed[:_LENGTH_BYTES], "little")
    return framed[_LENGTH_BYTES : _LENGTH_BYTES + length]


def torch_group() -> SummingGroup | None:
    """Return the ranks that train together, or None if torch.distributed is not in use.

    Never imports torch.
    """
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return TorchGroup() if dist.get_world_size() > 1 else None

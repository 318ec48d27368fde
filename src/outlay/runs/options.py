"""The options of a run: arguments first, then the environment, then defaults.

Everything is validated here, before anything is written.
"""

from __future__ import annotations

import logging
import re
import signal
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlay.budget.config import read_stated, stated_in_environ
from outlay.budget.terms import Budget
from outlay.errors import InvalidValue
from outlay.ledger import Price, read_identity
from outlay.ledger.price import is_price_name, typed_price
from outlay.machine import gpu_model, node_count, node_gpus, visible_gpus
from outlay.record import facts
from outlay.record.ranks import RankPlace, find_place
from outlay.record.redaction import recorded_config
from outlay.runs.directories import DefaultDirectory
from outlay.runs.preemption import ReclaimSource, stated_grace
from outlay.slurm import SlurmJob
from outlay.units import Duration
from outlay.units.quantity import exact_decimal

if TYPE_CHECKING:
    from outlay.shipping.shipper import ShippingTask

_log = logging.getLogger(__name__)

_MOST_GPUS = 10**6
_RATIO = re.compile(r"\s*([0-9]{1,7})\s*/\s*(?!0+\b)([0-9]{1,7})\s*")
_EXPECTED_GPUS = 'a number of GPUs for the whole run above 0, such as 8, 0.5 or "1/7"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The arguments of ``outlay.run``; None if left out.

    Attributes:
        model: None for a supervisor, which runs a command and does not know the model.
        program: The run's name if neither the caller nor the program names it.
    """

    model: str | None
    dir: Path | str | None = None
    name: str | None = None
    program: str | None = None
    gpu: str | None = None
    gpus: object = None
    price: object = None
    stopped_price: object = None
    tags: Mapping[str, str] | None = None
    heartbeat: object = None
    budget: object = None
    guard: object = None
    config: object = None
    rank: object = None
    world_size: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a run, validated and complete.

    Attributes:
        is_named: Whether the name was stated; if not, the program may rename the run.
        gpus_source: Where ``gpus`` comes from, as in ``attempt_started``.
        stopped_price: Of the whole machine while it is stopped between attempts.
        grace: How long before the end of a Slurm job's time the run stops; None if not stated.
        reclaim: What says that the machine is taken back; None if nothing is asked.
        shipping: Where the run's files are shipped to while it runs; None if they stay here.
        place: Rank and world size.
        default_dir: What ``dir`` was derived from, if none was stated: the attempt may then use
            another candidate.
    """

    model: str
    name: str
    dir: Path
    gpu: str
    gpus: Fraction
    gpus_source: str
    price: Price | None
    stopped_price: Price | None
    tags: dict[str, str]
    heartbeat: Duration | None
    budget: Budget | None = None
    guard: object = None
    notice: signal.Signals | None = None
    grace: Duration | None = None
    reclaim: ReclaimSource | None = None
    shipping: ShippingTask | None = None
    config: dict[str, Any] = field(default_factory=dict)
    place: RankPlace = field(default_factory=RankPlace)
    default_dir: DefaultDirectory | None = None
    is_named: bool = True


def resolve(arguments: Arguments, environ: Mapping[str, str], now_ns: int) -> RunOptions:
    """Return the options of a run.

    Raises:
        InvalidValue: An option is not valid; the message names it and what is allowed.
    """
    model = "" if arguments.model is None else _text(arguments.model, name="model")
    stated_name = model or None if arguments.name is None else _text(arguments.name, name="name")
    name = stated_name or arguments.program or ""
    place = find_place(environ, rank=arguments.rank, world_size=arguments.world_size)
    if place.world_size > 1:  # So that every lookup in the environment agrees with it.
        environ = {**environ, "RANK": str(place.rank), "WORLD_SIZE": str(place.world_size)}
    gpus, gpus_source = _gpus(_stated_gpus(arguments), environ)
    stated = _stated_directory(arguments.dir, environ)
    default = DefaultDirectory.of(name, environ, now_ns) if stated is None else None
    directory = stated if default is None else default.base.absolute()
    assert directory is not None
    options = RunOptions(
        model=model,
        name=name,
        gpu=gpu_model() if arguments.gpu is None else _text(arguments.gpu, name="gpu"),
        gpus=gpus,
        gpus_source=gpus_source,
        price=_price(arguments, environ, now_ns),
        stopped_price=_stopped_price(arguments.stopped_price, environ),
        tags=_tags(arguments.tags),
        heartbeat=_heartbeat(arguments.heartbeat),
        notice=_notice(environ),
        grace=stated_grace(environ),
        reclaim=ReclaimSource.of(environ),
        shipping=_shipping(environ),
        budget=_budget(arguments.budget, environ),
        guard=arguments.guard,
        config=recorded_config(arguments.config, environ),
        place=place,
        dir=directory,
        default_dir=default,
        is_named=stated_name is not None,
    )
    _refuse_another_model(options)
    return options


def parse_price(
    value: object, *, name: str, source: str, environ: Mapping[str, str], gpu: str = ""
) -> Price:
    """Parse a price, or look up a name such as ``lambda:8xH100`` or ``auto``.

    ``gpu`` is the machine's GPU as the user states it; "" asks the driver.

    Raises:
        InvalidValue: It is not a price; for an unknown name the message lists the known ones.
        PriceFileUnusable: The price file cannot be read.
    """
    if not is_price_name(value):
        return typed_price(value, name=name, source=source)
    from outlay.prices.current import resolve_price  # Loaded only if a price is a name.

    gpu, gpus = gpu or gpu_model(), visible_gpus(environ)
    return resolve_price(str(value), name=name, environ=environ, gpu=gpu, gpus=gpus).price


def warn_of_old_price(price: Price, environ: Mapping[str, str], now_ns: int) -> None:
    """Log that a looked-up price is more than a day old, on rank 0 only."""
    warning = price.age_warning(now_ns)
    if warning is not None and facts.rank(environ) == 0:
        _log.warning("%s", warning)


def gpu_count(value: object, *, name: str) -> Fraction:
    """Return a number of GPUs for the whole run: ``8``, or a share of one: ``0.5``, ``"1/7"``."""
    if isinstance(value, Fraction):
        count = value
    elif isinstance(value, str) and (parts := _RATIO.fullmatch(value)):
        count = Fraction(int(parts[1]), int(parts[2]))
    else:
        count = Fraction(exact_decimal(value, name=name, expected=_EXPECTED_GPUS))
    if not 0 < count <= _MOST_GPUS or count.denominator > _MOST_GPUS:
        raise InvalidValue(name, value, _EXPECTED_GPUS)
    return count


def _text(value: object, *, name: str) -> str:
    if not isinstance(value, str) or not value.strip() or not _is_text(value):
        raise InvalidValue(name, value, "a non-empty name")
    return value


def _is_text(value: object) -> bool:
    """Return whether a value is text that JSON can encode: no lone surrogates."""
    return isinstance(value, str) and value.encode(errors="replace").decode() == value


def _stated_gpus(arguments: Arguments) -> object:
    """Return the stated number of GPUs, as an argument or with the guard."""
    stated, guarded = arguments.gpus, getattr(arguments.guard, "gpus", None)
    if stated is None or guarded is None:
        return guarded if stated is None else stated
    if gpu_count(stated, name="gpus") != gpu_count(guarded, name="Guarding.gpus"):
        raise InvalidValue("gpus", stated, f"the same number as in Guarding(gpus={guarded!r})")
    return stated


def _gpus(value: object, environ: Mapping[str, str]) -> tuple[Fraction, str]:
    """Return the GPUs of the whole run, and their source."""
    if value is not None:
        return gpu_count(value, name="gpus"), "stated"
    if stated := environ.get("OUTLAY_GPUS"):
        return gpu_count(stated, name="OUTLAY_GPUS"), "stated"
    if (here := node_gpus(environ)).count:
        return Fraction(here.count * node_count(environ)), here.source
    return Fraction(facts.world_size(environ)), "world_size"


def _price(arguments: Arguments, environ: Mapping[str, str], now_ns: int) -> Price | None:
    given = arguments.price is not None
    stated = arguments.price if given else environ.get("OUTLAY_PRICE") or None
    if stated is None:
        return _partition_price(environ)
    name, source = ("price", "argument") if given else ("OUTLAY_PRICE", "environment")
    gpu = arguments.gpu or ""
    price = parse_price(stated, name=name, source=source, environ=environ, gpu=gpu)
    warn_of_old_price(price, environ, now_ns)
    return price


def _partition_price(environ: Mapping[str, str]) -> Price | None:
    """Return the rate of the Slurm job's partition, if there is one.

    A rate file that cannot be read is only logged: the user did not ask for it in this run.
    """
    job = SlurmJob.of(environ)
    if job is None or not job.partition:
        return None
    from outlay.prices.current import read_rates  # Loaded only inside a job.

    try:
        return read_rates().get(job.partition)
    except InvalidValue as error:
        _log.warning("the run has no price: %s", error)
        return None


def _stopped_price(value: object, environ: Mapping[str, str]) -> Price | None:
    if value is not None:
        return typed_price(value, name="stopped_price", source="argument")
    if stated := environ.get("OUTLAY_STOPPED_PRICE"):
        return typed_price(stated, name="OUTLAY_STOPPED_PRICE", source="environment")
    return None


def _tags(tags: object) -> dict[str, str]:
    checked = {} if tags is None else tags
    if not isinstance(checked, Mapping) or not all(map(_is_text, [*checked, *checked.values()])):
        raise InvalidValue("tags", tags, "a mapping of text to text")
    return dict(checked)


def _heartbeat(value: object) -> Duration | None:
    if value is None:
        return None
    every = Duration.parse(value, name="heartbeat")
    if not every:
        raise InvalidValue("heartbeat", value, 'a duration above zero, such as "30s"')
    return every


def _notice(environ: Mapping[str, str]) -> signal.Signals | None:
    """Return the signal by which the launcher announces preemption."""
    name = environ.get("OUTLAY_NOTICE")
    if not name:
        return None
    try:
        return signal.Signals[name]
    except KeyError:
        raise InvalidValue("OUTLAY_NOTICE", name, 'a signal, such as "SIGUSR2"') from None


def _shipping(environ: Mapping[str, str]) -> ShippingTask | None:
    if not environ.get("OUTLAY_SHIP_TO"):
        return None
    from outlay.shipping.shipper import ShippingTask  # Few runs ship themselves.

    return ShippingTask.of(environ)


def _budget(value: object, environ: Mapping[str, str]) -> Budget | None:
    """Return the stated budget; ``DISABLED`` if it was stated that there is none."""
    return read_stated(value) if value is not None else stated_in_environ(environ)


def _stated_directory(value: object, environ: Mapping[str, str]) -> Path | None:
    stated = value if value is not None else environ.get("OUTLAY_RUN_DIR") or None
    if stated is None:
        return None
    if not isinstance(stated, str | Path) or "\0" in str(stated):
        raise InvalidValue("dir", stated, "the path of a directory")
    directory = Path(stated).expanduser()
    for path in (directory, *directory.parents):
        if _is_file(path):
            raise InvalidValue("dir", str(directory), f"a directory; {path} is a file")
    return directory.absolute()


def _is_file(path: Path) -> bool:
    """Return whether a path is known to exist and not to be a directory."""
    try:
        return not stat.S_ISDIR(path.stat().st_mode)
    except OSError:  # It does not exist, or may not be examined: writing reports the same error.
        return False


def _refuse_another_model(options: RunOptions) -> None:
    identity = read_identity(options.dir) if options.default_dir is None else None
    if identity is None or "" in (identity.model, options.model):
        return
    if identity.model != options.model:
        expected = f"{identity.model!r}, the run that {options.dir} holds, or another dir"
        raise InvalidValue("model", options.model, expected)

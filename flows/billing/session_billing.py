"""A session's billing: records what the run is charged from now on, and reports what it has been charged so far.

Consumes the price file, which is read again whenever it changes, and the devices that the actors got. A record is
appended to the audit chain only if it differs from the last one. New prices never alter past records: a price applies
from its `valid_from`, an edited file from the check that noticed the edit.
"""

from __future__ import annotations

import getpass
import logging
import os
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path

from db.core.engine import Fence
from db.ledger import Ledger
from flows.billing.held_time import held_spans, records_of, whole_spans
from flows.run.clock import Clock
from yatt_core.costs.billing import BILLING, BillingRecord, HeldDevices
from yatt_core.costs.charging import Amounts, ChargeKey, HeldInterval, charge
from yatt_core.costs.prices import PriceFile, SharedBudget, read_prices, tariffs
from yatt_core.errors import ConfigurationError
from yatt_core.spec import RunSpec

GRAMS = 1000
log = logging.getLogger("yatt_core.flow")
STARTED_BY = "resume_requested"
"""The kind of the link that names who started a run through the dashboard."""


class SessionBilling:
    """The billing of one session.

    path: the price file; None if there is none.
    """

    def __init__(self, ledger: Ledger, fence: Fence, spec: RunSpec, clock: Clock, path: Path | None) -> None:
        self._ledger = ledger
        self._fence = fence
        self._spec = spec
        self._clock = clock
        self._path = path
        self._began = clock.monotonic()
        self._since = ledger.overview.leases(fence.run)[-1].taken_at
        self._before = whole_spans([span for span in held_spans(ledger, fence.run) if span.term < fence.term])
        first = self._before[0].start if self._before else self._since
        self.records = records_of(ledger, fence.run, first)
        self._stamp: tuple[int, int] | None = None
        self.prices: PriceFile | None = None
        self._devices: Mapping[str, int] | None = None
        self._checked = self._since
        self._read()

    @property
    def currency(self) -> str:
        """The price file's currency; empty without one."""
        return self.prices.currency if self.prices else ""

    @property
    def file(self) -> str:
        """The price file's name; empty without one."""
        return str(self._path or "")

    @property
    def project(self) -> str:
        """The run's project; empty if it has none."""
        return self._spec.billing.project or ""

    @property
    def owner(self) -> str:
        """Who is charged."""
        if self._spec.billing.owner is not None:
            return self._spec.billing.owner
        return (
            self.records[0].owner if self.records and self.records[0].owner else starter(self._ledger, self._fence.run)
        )

    def charges(self, since: int | None = None) -> dict[ChargeKey, Amounts]:
        """Returns what the run was charged so far, without causes and phases; `since` as in `total_charges`."""
        now = HeldInterval(self._since, self.now(), "", "")
        return charge(self._fence.run, [*self._before, now], self.records, since)

    def gauges(self) -> dict[str, float]:
        """Returns the metrics of the run's costs so far; none without a price file."""
        if self.prices is None:
            return {}
        charges = self.charges()
        total = sum(charges.values(), Amounts())
        figures = {
            "device_hours": total.device_hours,
            "energy_kwh": total.energy_kwh,
            "carbon_kg": total.carbon_g / GRAMS,
        }
        money = sum((amounts.cost for place, amounts in charges.items() if place.currency == self.currency), Decimal(0))
        return {f"costs/{name}": float(value) for name, value in ({**figures, "cost": money}).items()}

    def devices_known(self, kinds: Mapping[str, int], at: int | None = None) -> None:
        """Records what the run is charged for the devices that its actors got.

        kinds: number of devices by kind.
        at: since when it has had them; None: since now, or since the session began if this is its first record.

        Raises `ConfigurationError` if a budget of the spec or of the price file needs the unknown price or power of a kind.
        """
        first = self._devices is None
        self._devices = dict(kinds)
        self._check_budget(kinds)
        known = self.now() if at is None else at
        self._record(self._since if first else known)

    def refresh(self) -> None:
        """Records new prices, if a price began or ended since the last check or the price file has changed.

        Raises `ConfigurationError` as `devices_known` does.
        """
        changed = self._read()
        if self._devices is None or self.prices is None:
            return
        now = self.now()
        passed = [at for at in self.prices.boundaries() if self._checked < at <= now]
        for at in passed:
            self._record(at)
        if changed and not passed:
            self._record(now)
        self._checked = now
        if changed or passed:
            self._check_budget(self._devices)

    def _record(self, at: int) -> None:
        assert self._devices is not None, "the devices are known"
        known = tariffs(self.prices, self._devices, self._spec.billing.spot, at)
        devices = {kind: HeldDevices(count, known[kind]) for kind, count in self._devices.items()}
        last = self.records[-1] if self.records and not self.records[-1].stands_in else None
        since = at if last is None else max(at, last.since)
        record = BillingRecord(
            since=since, project=self.project, owner=self.owner, currency=self.currency, devices=devices
        )
        if not record.same_as(last):
            self._ledger.events.append(self._fence.run, BILLING, record.body(), self._fence)
            self.records.append(record)

    def _read(self) -> bool:
        """Reads the price file if it is new; returns True if the prices have changed.

        Raises `ConfigurationError` at the beginning; later, the last valid prices stay.
        """
        if self._path is None:
            return False
        try:
            found = self._path.stat()
            stamp = found.st_mtime_ns, found.st_size
            if stamp == self._stamp:
                return False
            before = self.prices
            first = self._stamp is None
            self._stamp = stamp
            self.prices = read_prices(self._path)
        except OSError as error:
            if self.prices is None:
                raise ConfigurationError(f"{self._path}: cannot be read: {error.strerror}") from None
            log.warning("the price file cannot be read, the last prices stay: %s", error)
            return False
        except ConfigurationError as error:
            if self.prices is None:
                raise
            log.warning("the price file cannot be read, the last prices stay: %s", error)
            return False
        return not first and self.prices != before

    def shared_budgets(self) -> Iterator[SharedBudget]:
        """Yields the budgets of the price file that apply to the run now."""
        names = {"run": self._fence.run, "project": self.project, "owner": self.owner}
        for budget in self.prices.budgets if self.prices else ():
            if names[budget.scope] == budget.name and budget.holds(self.now()):
                yield budget

    def _check_budget(self, kinds: Mapping[str, int]) -> None:
        budget = self._spec.guards.budget
        at = self.now()
        shared = list(self.shared_budgets())
        money = budget.cost is not None or any(each.cost is not None for each in shared)
        carbon = budget.carbon_kg is not None or any(each.carbon_kg is not None for each in shared)
        own = budget.cost is not None or budget.carbon_kg is not None
        whose = "guards.budget" if own else "a budget of the file"
        for kind, tariff in tariffs(self.prices, kinds, self._spec.billing.spot, at).items():
            price = "spot_per_hour" if self._spec.billing.spot else "per_hour"
            wanted = {
                f"{price} of": money and tariff.per_hour is None,
                "watts of": carbon and tariff.watts is None,
                "carbon_g_per_kwh for": carbon and tariff.carbon_g_per_kwh is None,
            }
            missing = [name for name, lacks in wanted.items() if lacks]
            if missing:
                raise ConfigurationError(
                    f"{self._path}: has no {missing[0]} device {kind!r}, which the run uses, so that {whose} cannot be "
                    "checked; add it, or remove the limit"
                )

    def now(self) -> int:
        """Returns the time by the ledger's clock at the beginning of the lease and this process's clock since then."""
        return self._since + max(0, round(1000 * (self._clock.monotonic() - self._began)))


def starter(ledger: Ledger, run: str) -> str:
    """Returns who started a run: the caller of the dashboard, else this process's account."""
    asked = ledger.events.of_kind(run, STARTED_BY)
    if asked:
        return str(asked[0].body.get("by", ""))
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # KeyError: Python before 3.13
        return str(os.getuid())

"""What the spec says of each lane: its weight, its provider, its name. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from billing_shards.jobs.model import RENEWAL, RETRY, Lane
from billing_shards.settings import ServiceSpec, ShardSetSpec


class Lanes:
    """The lanes of a shard set. A lane that the spec does not list (its service was taken out) is treated as the common ones:
    its jobs go on, to the common provider.
    """

    def __init__(self, spec: ShardSetSpec) -> None:
        self._spec = spec
        self._by_pair = {service.lane: service for service in spec.services}
        self._by_name = {service.name: service for service in spec.services}
        self._counted: dict[Lane, Lane] = {}

    def __iter__(self) -> Iterator[Lane]:
        """Every lane of the spec: the common pair, then the services'."""
        for pair in (0, *self._by_pair):
            yield Lane(2 * pair)
            yield Lane(2 * pair + 1)

    def of_service(self, service: str) -> Lane:
        """Where the renewals of a service wait."""
        found = self._by_name.get(service)
        return Lane(0 if found is None else 2 * found.lane)

    def window_seconds(self, service: str) -> int:
        """The smoothing window of a service."""
        found = self._by_name.get(service)
        own = None if found is None else found.window_seconds
        return self._spec.smoothing.window_seconds if own is None else own

    def counted(self, lane: Lane) -> Lane:
        """The lane whose share it counts against: itself, where the spec lists it."""
        known = self._counted.get(lane)  # asked for every job, several times
        if known is None:
            listed = lane.pair == 0 or self._service(lane) is not None
            known = self._counted[lane] = lane if listed else RETRY if lane.is_retry else RENEWAL
        return known

    def weight(self, lane: Lane) -> int:
        """The lane's share, against the others' weights."""
        settings = self._service(lane) or self._spec.claimer
        return settings.retry_weight if lane.is_retry else settings.renewal_weight

    def provider(self, lane: Lane) -> str:
        """The provider of the lane's new attempts."""
        service = self._service(lane)
        return (service.gateway if service else None) or self._spec.gateway.name

    def service(self, lane: Lane) -> str | None:
        """The service whose lane it is; None of the common ones."""
        service = self._service(lane)
        return None if service is None else service.name

    def label(self, lane: Lane) -> str:
        """Its name in metrics, logs and tables: `renewal`, `retry`, `video`, `video retry`."""
        service = self._service(lane)
        if service is not None:
            return f"{service.name} retry" if lane.is_retry else service.name
        common = "retry" if lane.is_retry else "renewal"
        return common if lane.pair == 0 else f"lane {lane.pair} {common}"

    def _service(self, lane: Lane) -> ServiceSpec | None:
        return self._by_pair.get(lane.pair)

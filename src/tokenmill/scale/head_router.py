"""The router of Ray Serve that sends the calls of one key to one replica.

Ray Serve pickles this module by value, so nothing is kept in it.
"""

from typing import Any

from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter
from ray.serve.request_router import PendingRequest, RunningReplica

from tokenmill.scale.fleet import known_replicas, note_replicas


class HeadRouter(ConsistentHashRouter):  # type: ignore[misc]
    """A router by the key of a call, past the replicas that it is to avoid; others take over where one is full."""

    def initialize_state(self, fleet: str = "", **settings: Any) -> None:
        """Begin, see RequestRouter. fleet: the name under which fleet.py has the replicas."""
        self._fleet = fleet
        super().initialize_state(**settings)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Note the replicas that take requests; RequestRouter calls this with them."""
        super().update_replicas(replicas)
        note_replicas(self._fleet, frozenset(each.replica_id.unique_id for each in replicas))

    def on_replica_actor_died(self, replica_id: Any) -> None:
        super().on_replica_actor_died(replica_id)
        note_replicas(self._fleet, known_replicas(self._fleet) - {replica_id.unique_id})

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        ranks = await super().choose_replicas(candidate_replicas, pending_request)
        avoid = pending_request.kwargs.get("avoid", ()) if pending_request is not None else ()
        kept = [rank for rank in ranks if not any(each.replica_id.unique_id in avoid for each in rank)]
        return kept or ranks

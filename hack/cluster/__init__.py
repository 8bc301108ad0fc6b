"""A real Kubernetes for tests and development: kind where Docker works, otherwise the project's own one-node cluster."""

from hack.cluster.cluster import Cluster

__all__ = ["Cluster"]

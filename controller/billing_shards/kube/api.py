"""The few calls of the Kubernetes API that the operator makes, blocking, over the official client's connections.

Paths are written out instead of discovered: discovery costs a dozen requests at start, needs rights of its own, and keeps a
cache file, for which a pod with a read-only root has no place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import kubernetes
import urllib3
from kubernetes.client import ApiClient

from billing_shards.errors import KubernetesError
from billing_shards.kube import names
from billing_shards.kube.model import Manifest
from billing_shards.settings import API_GROUP, API_VERSION

_TIMEOUT_SECONDS = (5, 30)
_CONNECTIONS = 32
_NOT_FOUND, _CONFLICT = 404, 409

_PLURALS = {
    "ConfigMap": ("/api/v1", "configmaps"),
    "Secret": ("/api/v1", "secrets"),
    "Pod": ("/api/v1", "pods"),
    "Deployment": ("/apis/apps/v1", "deployments"),
    "Job": ("/apis/batch/v1", "jobs"),
    "Service": ("/api/v1", "services"),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets"),
    "BillingShardSet": (f"/apis/{API_GROUP}/{API_VERSION}", names.PLURAL),
}


class KubeApi:
    """Safe to use from several threads."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    @classmethod
    def connect(cls) -> KubeApi:
        """With the pod's service account, or with the current context of `KUBECONFIG`. Nothing is sent yet."""
        configuration = kubernetes.client.Configuration()
        kubernetes.config.load_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        configuration.connection_pool_maxsize = _CONNECTIONS
        configuration.retries = urllib3.Retry(connect=2, read=0, redirect=0, status=0, backoff_factor=0.2)
        return cls(ApiClient(configuration))

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """One object; None where there is none. Raises `KubernetesError`, as every method here."""
        return self._call("GET", _path(kind, namespace, name), none_on=_NOT_FOUND)

    def list(self, kind: str, namespace: str | None, selector: str = "") -> list[Manifest]:
        """The objects that have the labels, of one namespace or of all."""
        query = {"labelSelector": selector} if selector else {}
        answer = self._call("GET", _path(kind, namespace), query=query)
        return list(answer["items"]) if answer else []

    def create(self, manifest: Manifest) -> Manifest | None:
        """Make an object; None where one of its name is there already."""
        path = _path(manifest["kind"], manifest["metadata"]["namespace"])
        return self._call("POST", path, body=manifest, query={"fieldManager": names.FIELD_MANAGER}, none_on=_CONFLICT)

    def apply(self, manifest: Manifest, *, subresource: str = "") -> Manifest:
        """Server-side apply: what we name becomes so, what we named before and name no more is removed, all else is kept."""
        metadata = manifest["metadata"]
        path = _path(manifest["kind"], metadata["namespace"], metadata["name"]) + (f"/{subresource}" if subresource else "")
        query = {"fieldManager": names.FIELD_MANAGER, "force": "true"}
        answer = self._call("PATCH", path, body=manifest, query=query, content_type="application/apply-patch+yaml")
        return answer or {}

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Remove an object and then what it owns; one that is gone is fine."""
        body = {"propagationPolicy": "Background"}
        self._call("DELETE", _path(kind, namespace, name), body=body, none_on=_NOT_FOUND)

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        none_on: int = 0,
    ) -> Manifest | None:
        request = self._client.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params={"Accept": "application/json", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            response = self._client.call_api(*request, _request_timeout=_TIMEOUT_SECONDS)
            text: bytes = response.read()  # type: ignore[no-untyped-call]
        except (urllib3.exceptions.HTTPError, kubernetes.client.ApiException) as error:
            raise KubernetesError(0, f"{method} {path}: no answer ({type(error).__name__})") from error
        if response.status == none_on:
            return None
        if not 200 <= response.status < 300:  # noqa: PLR2004
            raise KubernetesError(response.status, f"{method} {path}: {_reason(text)}")
        answer: Manifest = json.loads(text)
        return answer


def _path(kind: str, namespace: str | None, name: str | None = None) -> str:
    prefix, plural = _PLURALS[kind]
    where = f"{prefix}/namespaces/{namespace}/{plural}" if namespace is not None else f"{prefix}/{plural}"
    return where if name is None else f"{where}/{name}"


def _reason(text: bytes) -> str:
    """The API server's own words. It may repeat what was sent to it, and we never send it a Secret."""
    try:
        return str(json.loads(text).get("message", ""))[:500]
    except ValueError:
        return "the answer is not JSON"

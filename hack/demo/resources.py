"""The Kubernetes objects of the demo: two MySQL servers, the payment provider, Secrets, and the shard set. Pure.

Everything passes the `restricted` pod security level. The databases are on persistent volumes; the provider's state is in a
volume of its pod, which outlives every process and container.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hack.images.archives import image_name
from hack.mysql.options import FOLDER_INSIDE, ServerSpec

Object = dict[str, Any]

NAMESPACE = "billing-demo"
SHARD_SET = "main"
SHARDS = 256
SHARDS_PER_CLAIMER = 64
DATABASES = ("a", "b")
GATEWAY = "fake-gateway"
GATEWAY_PORT = 8080
SCHEMA = "billing"
STARTED_CLUSTER = "billingshards.io/demo-started-the-cluster"
"""Label of the namespace: whether the cluster is to go with it, even after a run that was killed."""

SHARD_MAP = [{"from": 0, "to": 127, "database": "a"}, {"from": 128, "to": 255, "database": "b"}]
EDITED_SHARD_MAP = [{"from": 0, "to": 63, "database": "a"}, {"from": 64, "to": 255, "database": "b"}]

_MYSQL_USER = 999
_GATEWAY_USER = 10001
_PASSWORD_FILE = "/run/mysql-root/password"


@dataclass(frozen=True, slots=True, kw_only=True)
class Passwords:
    """Made anew for each run, and never shown."""

    root: str = field(repr=False)
    owner: str = field(repr=False)
    application: str = field(repr=False)
    api_key: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """PEM texts of one database server."""

    certificate: str
    key: str = field(repr=False)


def mysql_name(database: str) -> str:
    """Of its Service and StatefulSet."""
    return f"mysql-{database}"


def mysql_pod(database: str) -> str:
    return f"mysql-{database}-0"


def mysql_host(database: str) -> str:
    """The name that the shard set gives, and that the certificate is for."""
    return f"mysql-{database}.{NAMESPACE}.svc"


def gateway_url() -> str:
    """The provider as pods reach it."""
    return f"http://{GATEWAY}.{NAMESPACE}.svc:{GATEWAY_PORT}"


def namespace(*, started_cluster: bool) -> Object:
    """Refuses every pod that is not restricted."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted", STARTED_CLUSTER: str(started_cluster).lower()}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}


def secrets(passwords: Passwords, authority: str, certificates: Mapping[str, Certificate]) -> list[Object]:
    """All Secrets; the shard set names the first three."""
    tls = [
        _secret(
            f"{mysql_name(database)}-tls",
            {"ca.pem": authority, "server.pem": issued.certificate, "server-key.pem": issued.key},
        )
        for database, issued in certificates.items()
    ]
    return [
        _secret("main-app", {"username": "billing_app", "password": passwords.application}),
        _secret("main-owner", {"username": "billing_owner", "password": passwords.owner}),
        _secret("mysql-ca", {"ca.crt": authority}),
        _secret("mysql-root", {"password": passwords.root}),
        _secret("mysql-first-statements", {"users.sql": _first_statements(passwords.owner)}),
        _secret("provider", {"apiKey": passwords.api_key, "config.json": json.dumps(provider_config(passwords.api_key))}),
        *tls,
    ]


def _secret(name: str, data: Mapping[str, str]) -> Object:
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "stringData": dict(data)}


def _first_statements(owner_password: str) -> str:
    """The empty schema and its owner, as the chart's notes ask for them. Passwords are of URL-safe characters alone."""
    return (
        f"CREATE DATABASE {SCHEMA};\n"
        f"CREATE USER billing_owner@'%' IDENTIFIED BY '{owner_password}';\n"
        f"GRANT ALL ON {SCHEMA}.* TO billing_owner@'%' WITH GRANT OPTION;\n"
        "GRANT CREATE USER ON *.* TO billing_owner@'%';\n"
    )


def provider_config(api_key: str) -> Object:
    """How the provider behaves: see docs/gateway-protocol.md."""
    return {
        "seed": 20_000,
        "api_key": api_key,
        "delay_ms": {"min": 20, "max": 80},
        "decline_rate": 0.05,
        "decline_codes": {"insufficient_funds": 70, "expired_card": 20, "stolen_card": 10},
        "lost_answer_rate": 0.01,
        "in_flight_conflict_rate": 0.01,
        "conflict_seconds": 0.5,
    }


def mysql(database: str) -> list[Object]:
    """One server: settings, Service and StatefulSet."""
    name = mysql_name(database)
    return [_mysql_settings(name, server_id=1 + DATABASES.index(database)), _service(name, 3306), _stateful_set(name)]


def _mysql_settings(name: str, *, server_id: int) -> Object:
    """The settings that every server of this project has: durable, strict, over TLS only."""
    extra = {"server_id": str(server_id)}
    spec = ServerSpec(name=name, workdir=Path(), bind="*", port=3306, buffer_pool_mb=256, detached=True, extra=extra)
    text = "[mysqld]\n" + "".join(f"{option} = {value}\n" for option, value in spec.options().items())
    metadata = {"name": f"{name}-settings", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"billing.cnf": text}}


def _stateful_set(name: str) -> Object:
    container = _container("mysql", image_name("mysql"), port=3306) | {
        "env": [
            {"name": "MYSQL_ROOT_PASSWORD_FILE", "value": _PASSWORD_FILE},
            {"name": "MYSQL_ROOT_HOST", "value": "localhost"},
        ],
        "readinessProbe": {"tcpSocket": {"port": 3306}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "1536Mi"}},
        "volumeMounts": [
            {"name": "data", "mountPath": "/var/lib/mysql"},
            {"name": "run", "mountPath": "/var/run/mysqld"},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  in its pod
            {"name": "settings", "mountPath": "/etc/mysql/conf.d"},
            {"name": "tls", "mountPath": f"{FOLDER_INSIDE}/tls"},
            {"name": "root", "mountPath": str(Path(_PASSWORD_FILE).parent)},
            {"name": "first-statements", "mountPath": "/docker-entrypoint-initdb.d"},
        ],
    }
    volumes: list[Object] = [
        *({"name": volume, "emptyDir": {}} for volume in ("run", "tmp")),
        {"name": "settings", "configMap": {"name": f"{name}-settings"}},
        _secret_volume("tls", f"{name}-tls"),
        _secret_volume("root", "mysql-root"),
        _secret_volume("first-statements", "mysql-first-statements"),
    ]
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}}
    data = {"metadata": {"name": "data"}, "spec": claim}
    pods = _pods(name, _MYSQL_USER, container, volumes)
    spec = {"serviceName": name, "replicas": 1, "volumeClaimTemplates": [data]} | pods
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": _metadata(name), "spec": spec}


def gateway() -> list[Object]:
    """The payment provider: Service and Deployment."""
    arguments = ["--host", "0.0.0.0", "--port", str(GATEWAY_PORT)]  # noqa: S104  inside its pod
    container = _container("gateway", image_name("fake-gateway"), port=GATEWAY_PORT) | {
        "args": [*arguments, "--state", "/state/provider.sqlite", "--config", "/config/config.json"],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": GATEWAY_PORT}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "50m", "memory": "96Mi"}, "limits": {"memory": "512Mi"}},
        "volumeMounts": [{"name": "state", "mountPath": "/state"}, {"name": "config", "mountPath": "/config"}],
    }
    config = _secret_volume("config", "provider")
    config["secret"]["items"] = [{"key": "config.json", "path": "config.json"}]
    pods = _pods(GATEWAY, _GATEWAY_USER, container, [{"name": "state", "emptyDir": {}}, config])
    spec = {"replicas": 1, "strategy": {"type": "Recreate"}} | pods
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": _metadata(GATEWAY), "spec": spec}
    return [_service(GATEWAY, GATEWAY_PORT), deployment]


def _metadata(name: str) -> Object:
    return {"name": name, "namespace": NAMESPACE, "labels": {"app": name}}


def _service(name: str, port: int) -> Object:
    spec = {"selector": {"app": name}, "ports": [{"port": port, "targetPort": port}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(name), "spec": spec}


def _secret_volume(name: str, secret: str) -> Object:
    return {"name": name, "secret": {"secretName": secret, "defaultMode": 0o440}}


def _container(name: str, image: str, *, port: int) -> Object:
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "ports": [{"containerPort": port}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _pods(name: str, user: int, container: Object, volumes: list[Object]) -> Object:
    pod = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": user,
            "runAsGroup": user,
            "fsGroup": user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
    }
    return {"selector": {"matchLabels": {"app": name}}, "template": {"metadata": {"labels": {"app": name}}, "spec": pod}}


def shard_set() -> Object:
    """The resource that it is all about. Leases and looks at unknown outcomes are short, so that a few minutes show them."""
    spec = {
        "shardCount": SHARDS,
        "databases": [_database(name) for name in DATABASES],
        "shardMap": SHARD_MAP,
        "claimer": {
            "shardsPerDeployment": SHARDS_PER_CLAIMER,
            "minReplicas": 1,
            "maxReplicas": 1,
            "batch": 100,
            "workers": 100,
            "leaseSeconds": 10,
        },
        "retry": {"checkDelaysSeconds": [2, 3, 5, 10, 20, 30, 60, 300]},
        "smoothing": {"windowSeconds": 30},
        "gateway": {"url": gateway_url(), "timeoutSeconds": 5, "apiKeySecret": {"name": "provider"}},
    }
    metadata = {"name": SHARD_SET, "namespace": NAMESPACE}
    return {"apiVersion": "billingshards.io/v1alpha1", "kind": "BillingShardSet", "metadata": metadata, "spec": spec}


def _database(name: str) -> Object:
    return {
        "name": name,
        "host": mysql_host(name),
        "database": SCHEMA,
        "credentialsSecret": {"name": "main-app"},
        "schemaSecret": {"name": "main-owner"},
        "tls": {"caSecret": {"name": "mysql-ca"}},
    }

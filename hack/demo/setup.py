"""Makes what the demo runs on: cluster, images, databases, provider, operator, shard set. Each part may be made twice.

Slow things are made side by side: images are built while the cluster starts, and loaded as they are ready.
"""

import json
import secrets
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import yaml

from hack.cache import remove
from hack.demo import resources
from hack.demo.narrator import Step
from hack.demo.resources import Certificate, Passwords
from hack.demo.site import Site
from hack.errors import ToolError
from hack.host import docker_works
from hack.images import targets
from hack.images.archives import PREFIX, TAG
from hack.images.wheels import ROOT
from hack.mysql.tls import Authority

RELEASE = "billing-shards"
_IMAGES = ("mysql", "controller", "claimer", "fake-gateway")
_OWN_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system", "local-path-storage")
_CHART = ROOT / "helm" / "billing-shards"


def start_cluster(site: Site, step: Step) -> None:
    """Have the cluster up with all images in it."""
    with ThreadPoolExecutor(4) as pool:
        starting = pool.submit(site.cluster.up)
        helm = pool.submit(site.cluster.helm_command)  # built where it is missing
        loading: list[Future[None]] = []
        for target in _IMAGES:
            step.doing(f"building the image {target}")
            targets.build(target)
            loading.append(pool.submit(_load, site, starting, target))
        step.doing("loading images")
        for future in loading:
            future.result()
        helm.result()
    step.result = f"one node, {len(_IMAGES)} images"


def _load(site: Site, starting: Future[None], target: str) -> None:
    starting.result()
    site.cluster.load([target])


def left_by_a_run(site: Site) -> bool:
    """Whether a run that was interrupted has started the cluster, and could not take it away."""
    path = f"jsonpath={{.items[?(@.metadata.name=='{resources.NAMESPACE}')].metadata.labels}}"
    labels = site.kubectl("get", "namespaces", "--output", path)
    return f'"{resources.STARTED_CLUSTER}":"true"' in labels


def others_use_it(site: Site) -> bool:
    """Whether the cluster has namespaces of others: tests that were begun meanwhile, say."""
    names = site.kubectl("get", "namespaces", "--output", "jsonpath={.items[*].metadata.name}").split()
    return not {*names} <= {*_OWN_NAMESPACES, resources.NAMESPACE}


def remove_namespace(site: Site) -> None:
    """Take the shard set, the operator and the namespace away, whatever state they are in."""
    if not site.kubectl("get", "namespace", resources.NAMESPACE, "--ignore-not-found", "--output", "name"):
        return
    kinds = "customresourcedefinition/billingshardsets.billingshards.io"
    if site.kubectl("get", kinds, "--ignore-not-found", "--output", "name"):
        _remove_shard_sets(site)
    site.helm("uninstall", RELEASE, "--namespace", resources.NAMESPACE, "--ignore-not-found", "--wait", "--timeout", "60s")
    site.kubectl("delete", "namespace", resources.NAMESPACE, "--ignore-not-found", "--timeout=120s")
    if not docker_works():
        _empty_volumes(site)


def _remove_shard_sets(site: Site) -> None:
    """By the operator; where there is none that works, its finalizer is taken off by hand."""
    deleting = site.run(site.kubectl_command("delete", "billingshardsets", "--all", "--timeout=30s"))
    if deleting.code != 0:
        for name in site.kubectl("get", "billingshardsets", "--output", "name").split():
            site.kubectl("patch", name, "--type=merge", "--patch", '{"metadata":{"finalizers":null}}')


def _empty_volumes(site: Site) -> None:
    """The local cluster has a fixed number of volumes, which are this machine's folders: let others have ours, empty."""
    for volume in json.loads(site.kubectl("get", "persistentvolumes", "--output", "json"))["items"]:
        if volume["spec"].get("claimRef", {}).get("namespace") == resources.NAMESPACE:
            for content in Path(volume["spec"]["local"]["path"]).iterdir():
                remove(content)
            patch = '{"spec":{"claimRef":null}}'
            site.kubectl("patch", f"persistentvolume/{volume['metadata']['name']}", "--type=merge", "--patch", patch)


def make_namespace(site: Site, *, started_cluster: bool) -> None:
    """The namespace, its Secrets with new passwords and certificates. Those that are there already are kept."""
    site.apply([resources.namespace(started_cluster=started_cluster)])
    if not site.kubectl("get", "secret", "mysql-ca", "--ignore-not-found", "--output", "name"):
        site.apply(_secrets())


def _secrets() -> list[resources.Object]:
    drawn = [secrets.token_urlsafe(24) for _ in range(4)]
    passwords = Passwords(root=drawn[0], owner=drawn[1], application=drawn[2], api_key=drawn[3])
    authority = Authority()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        certificates = {database: _issue(authority, database, folder) for database in resources.DATABASES}
        return resources.secrets(passwords, authority.write_ca(folder / "ca.pem").read_text(), certificates)


def _issue(authority: Authority, database: str, folder: Path) -> Certificate:
    certificate, key = folder / "server.pem", folder / "server-key.pem"
    host = resources.mysql_host(database)
    authority.issue([host, f"{host}.cluster.local", "localhost"], certificate=certificate, key=key)
    return Certificate(certificate=certificate.read_text(), key=key.read_text())


def start_servers(site: Site, step: Step) -> None:
    """Two MySQL servers, the provider and the operator, side by side, until all are ready."""
    databases = [part for database in resources.DATABASES for part in resources.mysql(database)]
    site.apply([*databases, *resources.gateway()])
    with ThreadPoolExecutor(2) as pool:
        operator = pool.submit(_install_operator, site)
        servers = pool.submit(_wait_for_servers, site)
        servers.result()
        step.doing("waiting for the operator")
        operator.result()
    step.result = f"{len(resources.DATABASES)} MySQL servers, the payment provider, the operator"


def _wait_for_servers(site: Site) -> None:
    names = [f"statefulset/{resources.mysql_name(database)}" for database in resources.DATABASES]
    ready = "--for=jsonpath={.status.readyReplicas}=1"
    site.kubectl("wait", ready, *names, f"deployment/{resources.GATEWAY}", "--timeout=180s")


def _install_operator(site: Site) -> None:
    """`helm install`, or an upgrade of what is there."""
    images = {
        f"{part}.image.{field}": value
        for part in ("controller", "claimer")
        for field, value in (("repository", f"{PREFIX}{part}"), ("tag", TAG))
    }
    values = [word for name, value in images.items() for word in ("--set", f"{name}={value}")]
    # The definition may be there from another release, or applied by hand: it is the same for all.
    taking = ["--take-ownership", "--force-conflicts"]
    where = ["--namespace", resources.NAMESPACE, "--wait", "--timeout", "180s"]
    site.helm("upgrade", "--install", RELEASE, _CHART, *where, *taking, *values)


def apply_shard_set(site: Site, step: Step) -> None:
    """Apply the manifest with kubectl, and wait until it is Ready."""
    manifest = site.logbook.text("shardset.yaml", yaml.safe_dump(resources.shard_set(), sort_keys=False))
    site.kubectl("apply", "--filename", manifest)
    name = f"bss/{resources.SHARD_SET}"
    step.doing(f"kubectl wait --for=condition=Ready {name}")
    try:
        site.kubectl("wait", "--for=condition=Ready", name, "--timeout=240s")
    except ToolError as error:
        conditions = "jsonpath={range .status.conditions[*]}{.type}={.status}: {.message}; {end}"
        raise ToolError(f"{error}; {site.kubectl('get', name, '--output', conditions)}") from error
    step.result = f"{resources.SHARDS} shards on {len(resources.DATABASES)} databases, Ready"

"""The demo's namespace of the cluster: kubectl, SQL in the database pods, and the pods as they are now.

What is asked every second goes through the API client: starting kubectl takes most of a second of processor time.
"""

import json
import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import kubernetes
import yaml
from kubernetes.stream import stream
from kubernetes.stream.ws_client import ERROR_CHANNEL
from urllib3.exceptions import HTTPError
from websocket import WebSocketException

from hack.cluster import Cluster
from hack.demo import resources
from hack.demo.logbook import Logbook
from hack.errors import ToolError
from hack.host import Words

_SQL = """MYSQL_PWD=$(cat "$MYSQL_ROOT_PASSWORD_FILE") \
exec mysql --user=root --batch --raw --skip-column-names --execute="$1" billing"""
_ANSWER_SECONDS = 20
_METRIC = re.compile(r"^(billing_shards_\w+)(\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod of one container, as it is now."""

    name: str
    component: str
    """`claimer`, `housekeeper`, …; for pods of the demo its own name."""
    shards: str
    """`000-063`, of claimers."""
    ready: bool
    restarts: int
    container_id: str
    last_exit_code: int | None
    """Of the container before this one."""
    state: str
    """Phase, or why it waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A command that has ended."""

    code: int
    output: str
    errors: str


class Site:
    """One namespace of a cluster that is up."""

    def __init__(self, cluster: Cluster, logbook: Logbook) -> None:
        self.cluster = cluster
        self.logbook = logbook

    def run(self, words: Sequence[object], *, stdin: str = "") -> Done:
        """Run a command whatever it returns, and note it. What it reads is not noted: it may be a Secret."""
        started = time.monotonic()
        done = subprocess.run([str(word) for word in words], input=stdin, capture_output=True, text=True, check=False)
        self.logbook.command(words, done.stdout + done.stderr, seconds=time.monotonic() - started, code=done.returncode)
        return Done(code=done.returncode, output=done.stdout, errors=done.stderr)

    def kubectl_command(self, *words: object) -> Words:
        """The words of a kubectl command on this namespace."""
        return [*self.cluster.kubectl_command(), "--namespace", resources.NAMESPACE, *map(str, words)]

    def kubectl(self, *words: object, stdin: str = "") -> str:
        """The output of kubectl; raises ToolError with its own words."""
        return self._checked(f"kubectl {words[0]}", self.run(self.kubectl_command(*words), stdin=stdin))

    def helm(self, *words: object) -> str:
        """The output of Helm; raises ToolError with its own words."""
        return self._checked(f"helm {words[0]}", self.run([*self.cluster.helm_command(), *words]))

    @staticmethod
    def _checked(what: str, done: Done) -> str:
        if done.code != 0:
            raise ToolError(f"{what}: {(done.errors.strip() or done.output.strip())[-2000:]}")
        return done.output

    def apply(self, objects: Iterable[resources.Object]) -> None:
        """Apply objects; they go through a pipe and leave no trace on disk."""
        self.kubectl("apply", "--server-side", "--force-conflicts", "--filename", "-", stdin=yaml.safe_dump_all(objects))

    def billing_shards(self, *words: str, stdin: str = "") -> Done:
        """Run the command line in the housekeeper's pod, where the shard set and its Secrets are mounted."""
        pod = f"deployment/{resources.SHARD_SET}-housekeeper"
        return self.run(self.kubectl_command("exec", "--stdin", pod, "--", *words), stdin=stdin)

    # Through the API client

    def _client(self) -> kubernetes.client.ApiClient:
        client: kubernetes.client.ApiClient = kubernetes.config.new_client_from_config(  # type: ignore[no-untyped-call]
            str(self.cluster.kubeconfig)
        )
        return client

    @cached_property
    def _core(self) -> kubernetes.client.CoreV1Api:
        return kubernetes.client.CoreV1Api(self._client())

    @cached_property
    def _executors(self) -> Mapping[str, kubernetes.client.CoreV1Api]:
        """One a database: a client that executes can do nothing else meanwhile."""
        return {database: kubernetes.client.CoreV1Api(self._client()) for database in resources.DATABASES}

    def pods(self) -> list[Pod]:
        """All pods by name. Raises ToolError."""
        try:
            found = self._core.list_namespaced_pod(resources.NAMESPACE, _request_timeout=_ANSWER_SECONDS).items
        except (kubernetes.client.ApiException, HTTPError) as error:
            raise ToolError(f"pods cannot be listed: {error}") from error
        return sorted((_pod(item) for item in found), key=lambda pod: pod.name)

    def sql(self, query: str) -> dict[str, str]:
        """The answer of each database that can be asked, by its name: lines of columns separated by tabs."""
        with ThreadPoolExecutor(len(resources.DATABASES)) as pool:
            answers = pool.map(lambda database: self._sql(database, query), resources.DATABASES)
            return {name: answer for name, answer in zip(resources.DATABASES, answers, strict=True) if answer is not None}

    def sql_of_all(self, query: str) -> dict[str, str]:
        """The answers of all databases. Raises ToolError where one cannot be asked."""
        answers = self.sql(query)
        if silent := [name for name in resources.DATABASES if name not in answers]:
            raise ToolError(f"database {', '.join(silent)} does not answer")
        return answers

    def _sql(self, database: str, query: str) -> str | None:
        command = ["sh", "-c", _SQL, "sh", query]
        try:
            talk = stream(
                self._executors[database].connect_get_namespaced_pod_exec,
                resources.mysql_pod(database),
                resources.NAMESPACE,
                container="mysql",
                command=command,
                stdin=False,
                stdout=True,
                stderr=True,
                tty=False,
                _preload_content=False,
            )
            talk.run_forever(timeout=_ANSWER_SECONDS)
            output, errors, outcome = talk.read_stdout(), talk.read_stderr(), talk.read_channel(ERROR_CHANNEL)
        except (kubernetes.client.ApiException, HTTPError, WebSocketException, OSError) as error:
            self.logbook.note(f"database {database} was not asked: {error}")
            return None
        # Empty where the time was over. The client's own `returncode` knows no failure but an exit code.
        if not outcome or json.loads(outcome)["status"] != "Success":
            self.logbook.note(f"database {database} did not answer: {errors} {outcome}")
            return None
        return str(output)

    def logs(self, pod: str, *, previous: bool = False) -> str:
        """What the pod's container, or the one before it, has written; why that is not there, where it is not."""
        try:
            text = self._core.read_namespaced_pod_log(
                pod, resources.NAMESPACE, previous=previous, _request_timeout=_ANSWER_SECONDS
            )
        except (kubernetes.client.ApiException, HTTPError) as error:
            return f"no log: {getattr(error, 'body', error)}"
        return str(text)

    def metrics(self, pod: str) -> Counter[str]:
        """The pod's own counters, by name and labels; of a pod that cannot be asked none."""
        try:
            text = self._core.connect_get_namespaced_pod_proxy_with_path(
                f"{pod}:9464", resources.NAMESPACE, "metrics", _request_timeout=_ANSWER_SECONDS
            )
        except (kubernetes.client.ApiException, HTTPError) as error:
            self.logbook.note(f"metrics of {pod} were not read: {error}")
            return Counter()
        found: Counter[str] = Counter()
        for name, labels, value in _METRIC.findall(text):
            found[name + labels] = int(float(value))
        return found


def _pod(item: Any) -> Pod:
    labels = item.metadata.labels or {}
    status = next(iter(item.status.container_statuses or []), None)
    waiting = status and status.state and status.state.waiting
    ended = status and status.last_state and status.last_state.terminated
    return Pod(
        name=item.metadata.name,
        component=labels.get("app.kubernetes.io/component") or labels.get("app", ""),
        shards=labels.get("billingshards.io/shards", ""),
        ready=bool(status and status.ready),
        restarts=status.restart_count if status else 0,
        container_id=((status and status.container_id) or "").rpartition("/")[2],
        last_exit_code=ended.exit_code if ended else None,
        state=waiting.reason if waiting else item.status.phase,
    )

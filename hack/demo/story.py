"""The steps of the demo in their order, and the way back."""

import json
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hack.demo import diagnosis, resources, setup, summary, verdict
from hack.demo.charging import PLAN, Charged, Charging
from hack.demo.figures import CHARGES_SQL, FIGURES_SQL, OWNERSHIP_SQL, Comparison, compare, figures, ownership
from hack.demo.narrator import Narrator, Step
from hack.demo.site import Site
from hack.demo.subscriptions import Expected, as_csv, expected, generate
from hack.demo.verdict import Check, Evidence
from hack.errors import ToolError

SEED = 2_026
_FILE = "/tmp/subscriptions.csv"  # noqa: S108  in the housekeeper's pod
_PLAN_SECONDS = 60
_SETTLE_SECONDS = 60


@dataclass(slots=True, kw_only=True)
class Story:
    """One run."""

    site: Site
    narrator: Narrator
    subscriptions: int
    started_cluster: bool = False
    _page: str = ""

    def set_up(self, *, anew: bool) -> None:
        """Cluster, servers, operator and shard set; `anew`: on an empty namespace."""
        with self.narrator.step("Kubernetes and images") as step:
            self.started_cluster = not self.site.cluster.healthy()
            setup.start_cluster(self.site, step)
            self.started_cluster |= setup.left_by_a_run(self.site)
        with self.narrator.step("Databases, provider, operator") as step:
            if anew:
                step.doing("removing what an earlier run has left")
                setup.remove_namespace(self.site)
            setup.make_namespace(self.site, started_cluster=self.started_cluster and anew)
            step.doing("waiting for the databases")
            setup.start_servers(self.site, step)
        with self.narrator.step("BillingShardSet main") as step:
            setup.apply_shard_set(self.site, step)

    def bill(self) -> bool:
        """Import, charge, audit, edit; whether all is right."""
        with self.narrator.step("Import") as step:
            wanted = self._import(step)
        with self.narrator.step("Charge") as step:
            charged = Charging(site=self.site, step=step, invoices=wanted.total).watch()
            step.result = (
                f"all {wanted.total:,} due invoices settled or waiting for a retry, {len(charged.kills)} processes killed"
            )
        with self.narrator.step("Audit") as step:
            evidence = self._evidence(wanted, charged, step)
            checks = verdict.checks(evidence)
            step.failed = any(check.problem for check in checks)
            step.result = "problems, see below" if step.failed else "clean, and the provider's list agrees"
        with self.narrator.step("Edit the shard map") as step:
            plan = Check(name="pending plan", problem=self._edit(step))
            step.failed = plan.problem is not None
            step.result = plan.problem or step.result
        checks.append(plan)
        right = not any(check.problem for check in checks)
        if right:
            diagnosis.keep_logs(self.site)
        else:
            self.explain()
        self._tell(evidence, charged, checks)
        return right

    def explain(self) -> None:
        """After a failure: logs to the folder, the most telling ones on the screen."""
        diagnosis.explain(self.site, self.narrator)

    def clean_up(self) -> None:
        """Take away what this run, or an interrupted one before it, has made. A cluster that others use stays."""
        with self.narrator.step("Clean up") as step:
            if not self.site.cluster.healthy() or (self.started_cluster and not setup.others_use_it(self.site)):
                self.site.cluster.down()
                step.result = "the cluster is gone"
            else:
                setup.remove_namespace(self.site)
                step.result = "the namespace is gone; the cluster has other users, and stays"

    # Import

    def _import(self, step: Step) -> Expected:
        customers = list(generate(self.subscriptions, seed=SEED, today=datetime.now(UTC).date()))
        text = as_csv(customers)
        self.site.logbook.text("subscriptions.csv", text)
        command = f"cat > {_FILE} && exec billing-shards import {_FILE} --json"
        done = self.site.billing_shards("sh", "-c", command, stdin=text)
        if done.code != 0:
            raise ToolError(f"billing-shards import: exit code {done.code}: {(done.errors or done.output)[-1000:]}")
        report = json.loads(done.output)
        imported = report["imported"] + report["already_there"]
        wanted = expected(customers)
        if imported != len(customers):
            raise ToolError(f"billing-shards import: {imported} of {len(customers)} subscriptions were imported")
        by_currency = ", ".join(f"{count:,} {currency}" for currency, count in sorted(wanted.subscriptions.items()))
        step.result = f"{imported:,} subscriptions ({by_currency}), {wanted.total:,} periods due"
        return wanted

    # Audit

    def _evidence(self, wanted: Expected, charged: Charged, step: Step) -> Evidence:
        step.doing("billing-shards audit --provider-charges …")
        audit = self._audit()
        step.doing("comparing with the provider's list")
        comparison = self._compare()
        provider = json.loads(self._fetch("/admin/summary"))
        self.site.logbook.document("provider.json", provider)
        return Evidence(
            expected=wanted,
            figures=figures(self.site.sql_of_all(FIGURES_SQL).values()),
            audit=audit,
            provider=provider,
            comparison=comparison,
            kills=charged.kills,
            kills_wanted=Counter(kind for kind, _ in PLAN),
            counters=charged.counters,
        )

    def _compare(self) -> Comparison:
        """A charge of this moment may take a while until it is written here, and is waited for."""
        before, theirs = self._charges(), self._list_of_provider()
        deadline = time.monotonic() + _SETTLE_SECONDS
        while (comparison := compare(before, theirs, self._charges())).unknown and time.monotonic() < deadline:
            time.sleep(1)
        return comparison

    def _charges(self) -> list[str]:
        return [line for text in self.site.sql_of_all(CHARGES_SQL).values() for line in text.splitlines()]

    def _audit(self) -> dict[str, Any]:
        export = f"{resources.gateway_url()}/v1/charges/export"
        done = self.site.billing_shards("billing-shards", "audit", "--provider-charges", export, "--json")
        if done.code not in {0, 1}:
            raise ToolError(f"billing-shards audit: exit code {done.code}: {done.errors[-1000:]}")
        audit: dict[str, Any] = json.loads(done.output)
        self.site.logbook.document("audit.json", audit)
        if audit["clean"] is not (done.code == 0):
            raise ToolError(f"billing-shards audit: says clean={audit['clean']} and exits with {done.code}")
        return audit

    # The provider

    def provider_page(self) -> str:
        """Where a person sees the charges."""
        if not self._page:
            self._page = self.site.cluster.service_url(resources.NAMESPACE, resources.GATEWAY, resources.GATEWAY_PORT)
        return self._page

    def _list_of_provider(self) -> list[str]:
        text = self._fetch("/v1/charges/export", api_key=self._api_key())
        self.site.logbook.text("provider-charges.ndjson", text)
        return text.splitlines()

    def _fetch(self, path: str, *, api_key: str | None = None) -> str:
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        request = urllib.request.Request(self.provider_page() + path, headers=headers)  # noqa: S310  http alone
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
                content: bytes = answer.read()
        except (urllib.error.URLError, TimeoutError) as error:
            raise ToolError(f"the provider does not answer {path}: {error}") from error
        return content.decode()

    def _api_key(self) -> str:
        document = json.loads(self._fetch("/admin/config"))
        return str(document["api_key"])

    # Edit

    def _edit(self, step: Step) -> str | None:
        """Move 64 shards in the resource; what is wrong, if anything."""
        before = ownership(self.site.sql_of_all(OWNERSHIP_SQL))
        name = f"bss/{resources.SHARD_SET}"
        patch = json.dumps({"spec": {"shardMap": resources.EDITED_SHARD_MAP}})
        self.site.kubectl("patch", name, "--type=merge", "--patch", patch)
        plan = self._wait_for_plan(name)
        if plan is None:
            return f"status shows no plan after {_PLAN_SECONDS} s"
        step.note(f"kubectl get {name} -o jsonpath='{{.status.pendingPlan.message}}'")
        step.note(plan["message"], "cyan")
        after = ownership(self.site.sql_of_all(OWNERSHIP_SQL))
        step.result = f"{plan['shards']} shards would move, none has"
        if len(before) != resources.SHARDS or plan["shards"] != 64:
            return f"{len(before)} shards had an owner, the plan is to move {plan['shards']}"
        moved = [shard for shard in before if before[shard] != after.get(shard)]
        return f"shards {moved} are not where they were" if moved else None

    def _wait_for_plan(self, name: str) -> dict[str, Any] | None:
        deadline = time.monotonic() + _PLAN_SECONDS
        while time.monotonic() < deadline:
            text = self.site.kubectl("get", name, "--output", "jsonpath={.status.pendingPlan}")
            if text:
                plan: dict[str, Any] = json.loads(text)
                return plan
            time.sleep(1)
        return None

    # The end

    def _tell(self, evidence: Evidence, charged: Charged, checks: Sequence[Check]) -> None:
        tables = (summary.by_currency(evidence), summary.facts(evidence, charged))
        for content in ("", *tables, "", summary.closing(evidence, list(checks)), ""):
            self.narrator.print(content)
        self.site.logbook.document("checks.json", {check.name: check.problem or "ok" for check in checks})

    def tell_what_is_next(self) -> None:
        """For `make up`: how to look around."""
        name = f"bss/{resources.SHARD_SET}"
        inside = f"kubectl exec -it deploy/{resources.SHARD_SET}-housekeeper --"
        for line in (
            "",
            "The development cluster stays. What to do next:",
            f"  export KUBECONFIG={self.site.cluster.kubeconfig}",
            f"  alias kubectl='{self.site.cluster.kubectl_command()[0]} kubectl -n {resources.NAMESPACE}'",
            f"  kubectl get bss,pods; kubectl describe {name}; kubectl explain bss.spec",
            f"  {inside} billing-shards status",
            f"  {inside} billing-shards audit",
            f"  the provider's page: {self.provider_page()}",
            "  make down    takes it all away",
        ):
            self.narrator.print(line)

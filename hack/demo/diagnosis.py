"""What is kept of a run in the log folder, and what of it is shown when the run has failed."""

import shutil

from hack.demo import resources
from hack.demo.narrator import Narrator
from hack.demo.site import Pod, Site
from hack.errors import ToolError

_LINES_SHOWN = 12
_LINE_MAX = 220
_ALL = "all,configmaps,events,poddisruptionbudgets,billingshardsets"


def keep_logs(site: Site) -> list[Pod]:
    """Write the logs of all pods to the log folder; the pods."""
    pods = site.pods()
    for pod in pods:
        site.logbook.text(f"pods/{pod.name}.log", site.logs(pod.name))
        if pod.restarts:
            site.logbook.text(f"pods/{pod.name}.before.log", site.logs(pod.name, previous=True))
    return pods


def _keep_state(site: Site) -> None:
    """Write down the state of all objects, and what the cluster's own components have logged."""
    _keep_output(site, "objects.txt", "get", _ALL, "--output", "wide")
    _keep_output(site, "shardset-status.yaml", "get", "billingshardsets", "--output", "yaml")
    _keep_output(site, "pods.txt", "describe", "pods")
    shutil.copytree(site.cluster.logs, site.logbook.folder / "cluster", dirs_exist_ok=True)


def _keep_output(site: Site, name: str, *words: str) -> None:
    done = site.run(site.kubectl_command(*words))
    site.logbook.text(name, done.output + done.errors)


def explain(site: Site, narrator: Narrator) -> None:
    """Keep everything, and show the last words of the pods that are most likely to blame."""
    if not site.cluster.healthy():
        narrator.print(f"The cluster is not up; its logs: {site.cluster.logs}")
        return
    try:
        pods = keep_logs(site)
        _keep_state(site)
    except ToolError as error:
        narrator.print(f"The pods could not be looked at: {error}")
        return
    for pod in [pod for pod in pods if not pod.ready and pod.state != "Succeeded"] or _workers(pods):
        narrator.print(f"\n{pod.name}: {pod.state}, {'ready' if pod.ready else 'not ready'}, {pod.restarts} restarts")
        log = site.logbook.folder / "pods" / f"{pod.name}.log"
        for line in log.read_text().splitlines()[-_LINES_SHOWN:]:
            narrator.print(f"    {line[:_LINE_MAX]}")


def _workers(pods: list[Pod]) -> list[Pod]:
    return [pod for pod in pods if pod.component in {"housekeeper", "controller", resources.GATEWAY}]

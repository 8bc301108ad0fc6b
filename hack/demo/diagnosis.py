"""What is kept of a run in the log folder, and what of it is shown when the run has failed."""

import shutil
from concurrent.futures import ThreadPoolExecutor

from hack.demo import resources
from hack.demo.narrator import Narrator
from hack.demo.site import Pod, Site
from hack.errors import ToolError

_LINES_SHOWN = 12
_LINE_MAX = 220
_ALL = "all,configmaps,events,poddisruptionbudgets,billingshardsets"


def keep(site: Site) -> list[Pod]:
    """Write the logs of all pods and the state of all objects to the log folder; the pods."""
    pods = site.pods()
    with ThreadPoolExecutor(3) as pool:
        work = [pool.submit(_keep_logs, site, pod) for pod in pods]
        work.append(pool.submit(_keep_output, site, "objects.txt", "get", _ALL, "--output", "wide"))
        work.append(pool.submit(_keep_output, site, "shardset-status.yaml", "get", "billingshardsets", "--output", "yaml"))
        work.append(pool.submit(_keep_output, site, "pods.txt", "describe", "pods"))
        for future in work:
            future.result()
    return pods


def _keep_output(site: Site, name: str, *words: str) -> None:
    done = site.run(site.kubectl_command(*words))
    site.logbook.text(name, done.output + done.errors)


def _keep_logs(site: Site, pod: Pod) -> None:
    _keep_output(site, f"pods/{pod.name}.log", "logs", pod.name)
    if pod.restarts:
        _keep_output(site, f"pods/{pod.name}.before.log", "logs", pod.name, "--previous")


def explain(site: Site, narrator: Narrator) -> None:
    """Keep everything, and show the last words of the pods that are most likely to blame."""
    if not site.cluster.healthy():
        narrator.print(f"The cluster is not up; its logs: {site.cluster.logs}")
        return
    try:
        pods = keep(site)
    except ToolError as error:
        narrator.print(f"The pods could not be looked at: {error}")
        return
    shutil.copytree(site.cluster.logs, site.logbook.folder / "cluster", dirs_exist_ok=True)
    for pod in [pod for pod in pods if not pod.ready and pod.state != "Succeeded"] or _workers(pods):
        narrator.print(f"\n{pod.name}: {pod.state}, {'ready' if pod.ready else 'not ready'}, {pod.restarts} restarts")
        log = site.logbook.folder / "pods" / f"{pod.name}.log"
        for line in log.read_text().splitlines()[-_LINES_SHOWN:]:
            narrator.print(f"    {line[:_LINE_MAX]}")


def _workers(pods: list[Pod]) -> list[Pod]:
    return [pod for pod in pods if pod.component in {"housekeeper", "controller", resources.GATEWAY}]

"""SIGKILL to the first process of a container, from the node: nothing inside the container hears of it, and nothing is asked.

Deleting the pod would send SIGTERM first, and a container's own first process cannot be killed from within.
"""

from dataclasses import dataclass, replace

from hack.demo.site import Pod, Site
from hack.errors import ToolError
from hack.host import Words, docker_works

KILLED = 128 + 9
"""What a container that ended by SIGKILL exits with."""

_KILL = r"""
for folder in /proc/[0-9]*; do
    if grep -qs "$1" "$folder/cgroup" && grep -qs '^NSpid:.*[[:space:]]1$' "$folder/status"; then
        kill -KILL "${folder#/proc/}" && echo "${folder#/proc/}"
    fi
done
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A process that was killed, and what came of it."""

    what: str
    """For a person: `claimer 000-063`, `MySQL b`."""
    kind: str
    """`claimer` or `mysql`."""
    pod: str
    restarts_before: int
    held: int
    """Jobs that it had claimed a moment before."""
    at: float
    """Seconds by the program's clock."""
    exit_code: int | None = None
    recovered_seconds: float | None = None
    """From the kill until its successor was at work; None: not yet."""

    def seen(self, pod: Pod | None, *, works: bool, now: float) -> "Kill":
        """The kill after another look at its pod; `works`: what it is there for is being done again."""
        if self.recovered_seconds is not None or pod is None or pod.restarts <= self.restarts_before or not pod.ready:
            return self
        return replace(self, exit_code=pod.last_exit_code, recovered_seconds=now - self.at) if works else self


def kill(site: Site, pod: Pod) -> None:
    """Kill the pod's process. Raises ToolError where exactly one could not be found and killed."""
    if not pod.container_id:
        raise ToolError(f"pod {pod.name} has no container to kill")
    done = site.run([*_on_node(site), "sh", "-c", _KILL, "sh", pod.container_id])
    if len(done.output.split()) != 1:
        raise ToolError(f"pod {pod.name}: its process was not found ({done.errors.strip() or done.output.strip() or 'none'})")


def _on_node(site: Site) -> Words:
    """Where kind's node is a container, a shell in it; the local cluster's processes are this machine's own."""
    if not docker_works():
        return []
    node = site.cluster.kubectl("get", "nodes", "--output", "jsonpath={.items[0].metadata.name}")
    return ["docker", "exec", node]

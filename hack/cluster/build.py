"""The programs that the cluster needs, built from their Go modules once and kept in the cache folder."""

import shutil
from pathlib import Path

from hack.cache import build_once, cache_dir, key_of
from hack.errors import ToolError
from hack.host import Words, ensure_commands, run
from hack.images import buildah

KUBERNETES_VERSION = "1.35.4"
PAUSE_IMAGE = "localhost/pause:dev"

_COREDNS = "github.com/coredns/coredns@v1.12.4"
_HELM = "helm.sh/helm/v4/cmd/helm@v4.3.1"
_KIND = "sigs.k8s.io/kind@v0.30.0"
_SOURCE = Path(__file__).parent / "kube"

NODE_COMMANDS = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "iptables": "iptables",
    "nft": "nftables",
    "conntrack": "conntrack",
    "ebtables": "ebtables",
    "ethtool": "ethtool",
    "socat": "socat",
    "ip": "iproute2",
    "sysctl": "procps",
    "nsenter": "util-linux",
    "mount": "mount",
}


def kube() -> Path:
    """One binary with every component of Kubernetes, chosen by its first argument (five minutes at the first call)."""
    inputs = [_SOURCE / name for name in ("main.go", "go.mod", "go.sum")]
    target = cache_dir() / "cluster" / "bin" / f"kube-{key_of(KUBERNETES_VERSION, *inputs)}"
    return build_once(target, _build_kube)


def coredns() -> Path:
    """The cluster's name server (two minutes at the first call)."""
    return _installed(_COREDNS)


def helm() -> Path:
    """The machine's own Helm, or one built from its module (two minutes at the first call)."""
    return _system("helm") or _installed(_HELM)


def kind() -> Path:
    """The machine's own kind, or one built from its module."""
    return _system("kind") or _installed(_KIND)


def kubectl() -> Path | None:
    """The machine's own kubectl, if it has one."""
    return _system("kubectl")


def pause() -> Path:
    """The static program that holds namespaces."""
    source = _SOURCE / "pause.c"
    return build_once(cache_dir() / "cluster" / "bin" / f"pause-{key_of(source)}", _compile_pause)


def pause_archive() -> Path:
    """The image of every pod's first process, as an archive to import."""
    program = pause()
    return build_once(program.with_name(f"{program.name}.tar"), _build_pause_image)


def _system(command: str) -> Path | None:
    found = shutil.which(command)
    return Path(found) if found else None


def _go(*words: str | Path, what: str, folder: Path | None = None, bin_folder: Path | None = None) -> None:
    if shutil.which("go") is None:
        raise ToolError(f"{what}: needs Go 1.25 or later in PATH")
    place: Words = ["-C", folder] if folder else []
    environment = {"CGO_ENABLED": "0", **({"GOBIN": str(bin_folder)} if bin_folder else {})}
    run(["go", words[0], *place, *words[1:]], what=what, env=environment)


def _build_kube(target: Path) -> None:
    major, minor, _ = KUBERNETES_VERSION.split(".")
    version = "k8s.io/component-base/version"
    stamps = {"gitVersion": f"v{KUBERNETES_VERSION}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    flags = "-s -w " + " ".join(f"-X {version}.{name}={value}" for name, value in stamps.items())
    _go("build", "-trimpath", "-ldflags", flags, "-o", target, ".", what="building Kubernetes", folder=_SOURCE)


def _installed(module: str) -> Path:
    """`go install` into a folder of this very version, so that another version is another path."""
    package, _, version = module.partition("@")
    name = package.rpartition("/")[2]
    folder = cache_dir() / "bin" / f"{name}-{version}"
    build_once(folder, lambda target: _go("install", module, what=f"installing {name}", bin_folder=target))
    return folder / name


def _compile_pause(target: Path) -> None:
    ensure_commands({"gcc": "gcc", "/usr/include/stdio.h": "libc6-dev"})
    run(["gcc", "-static", "-Os", "-Wall", "-Werror", "-o", target, _SOURCE / "pause.c"], what="compiling pause")


def _build_pause_image(archive: Path) -> None:
    context = archive.with_name(archive.name + ".context")
    context.mkdir(exist_ok=True)
    shutil.copy(pause(), context / "pause")
    file = context / "Containerfile"
    file.write_text('FROM scratch\nCOPY pause /pause\nUSER 65535:65535\nENTRYPOINT ["/pause"]\n')
    buildah.build(context, file=file, tag=PAUSE_IMAGE)
    buildah.push(PAUSE_IMAGE, archive)
    shutil.rmtree(context)

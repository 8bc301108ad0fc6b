"""The command line as a process of its own, forked from one that has imported it already: importing takes longer than running."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from billing_shards.cli import main

TIMEOUT_SECONDS = 120

context = multiprocessing.get_context("forkserver")  # one server for all of the tests
_commands = [f"billing_shards.cli.{name}" for name in ("audit", "imports", "invoice", "jobs", "schema", "status")]
context.set_forkserver_preload([*_commands, "billing_shards.claimer", "billing_shards.housekeeper"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a command left behind."""

    code: int | None
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def cli(*arguments: str | Path, env: Mapping[str, str] | None = None, stdin: str = "") -> Ended:
    """Run `billing-shards` to its end. No expected error shows a traceback."""
    with TemporaryDirectory() as folder:
        streams = [str(Path(folder, name)) for name in ("in", "out", "err")]
        Path(streams[0]).write_text(stdin)
        process = context.Process(target=_run, args=(list(map(str, arguments)), streams, dict(env or {})))
        process.start()
        process.join(TIMEOUT_SECONDS)
        if process.exitcode is None:
            process.kill()
            process.join()
        out, err = (Path(path).read_text() for path in streams[1:])
    assert "Traceback" not in err, err
    return Ended(code=process.exitcode, out=out, err=err)


def _run(arguments: list[str], streams: list[str], env: Mapping[str, str]) -> None:
    for number, (path, flags) in enumerate(zip(streams, (os.O_RDONLY, *[os.O_WRONLY | os.O_CREAT] * 2), strict=True)):
        file = os.open(path, flags)
        os.dup2(file, number)
        os.close(file)
    sys.stdin = os.fdopen(0)  # the one of a forked process is /dev/null
    os.environ.update(env)
    sys.exit(main(arguments))

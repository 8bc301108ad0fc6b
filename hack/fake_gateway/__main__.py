"""`python -m hack.fake_gateway --port 0 --state FILE`: prints one line of JSON once it accepts connections."""

import argparse
import asyncio
import gc
import json
import logging
import resource
import signal
import sys
from pathlib import Path

import structlog

from hack.fake_gateway import parse
from hack.fake_gateway.model import Config
from hack.fake_gateway.server import Server, listen

log = structlog.get_logger()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fake_gateway", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="0 lets the operating system choose (default)")
    parser.add_argument("--state", type=Path, required=True, help="SQLite file; its folder must be writable")
    parser.add_argument("--config", type=Path, help="JSON; counts only where the state holds no configuration yet")
    parser.add_argument("--stop-on-eof", action="store_true", help="stop when standard input ends, as with its parent")
    return parser.parse_args()


def _log_as_json_to_stderr() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)  # aiohttp's own, with tracebacks
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _raise_open_files() -> None:
    """Every request in flight holds a connection; the usual soft limit of 1024 is too low for a thousand."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(arguments: argparse.Namespace, initial: Config) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if arguments.stop_on_eof:
        loop.add_reader(sys.stdin.fileno(), stop.set)
    listening = await listen(Server(arguments.state, initial), arguments.host, arguments.port)
    sys.stdout.write(json.dumps({"event": "ready", "host": arguments.host, "port": listening.port}) + "\n")
    sys.stdout.flush()
    # A request leaves no cycles behind, and looking for them took a tenth of the time.
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)
    await stop.wait()
    log.info("stopping")
    await listening.stop()


def main() -> int:
    """Returns 2 where the configuration is not acceptable."""
    arguments = _arguments()
    _log_as_json_to_stderr()
    _raise_open_files()
    try:
        initial = parse.config(parse.json_object(arguments.config.read_bytes(), "config") if arguments.config else {})
    except (parse.FieldError, OSError) as error:
        sys.stderr.write(f"fake_gateway: {error}\n")
        return 2
    asyncio.run(_serve(arguments, initial))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How a server is set up: durable, strict, in UTC, over TLS only. The same for every way of running it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

FOLDER_INSIDE = "/server"
"""Where a server sees its own work folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """All that is needed to start a server again on the same data: names, address, sizes in MiB."""

    name: str
    workdir: Path
    bind: str
    port: int
    buffer_pool_mb: int
    detached: bool
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def host(self) -> str:
        """The address a client on this machine connects to."""
        return "127.0.0.1" if self.bind == "0.0.0.0" else self.bind  # noqa: S104  compared, not bound

    @property
    def log(self) -> Path:
        return self.workdir / "mysqld.log"

    @property
    def ca_file(self) -> Path:
        return self.workdir / "tls" / "ca.pem"

    def options(self) -> dict[str, str]:
        """Server options by name, without addresses and folders."""
        durable = {
            "innodb_flush_log_at_trx_commit": "1",
            "sync_binlog": "1",
            "innodb_doublewrite": "ON",
            "log_bin": "binlog",
            "server_id": "1",
        }
        tls = {
            "require_secure_transport": "ON",
            "tls_version": "TLSv1.2,TLSv1.3",
            "ssl_ca": f"{FOLDER_INSIDE}/tls/ca.pem",
            "ssl_cert": f"{FOLDER_INSIDE}/tls/server.pem",
            "ssl_key": f"{FOLDER_INSIDE}/tls/server-key.pem",
        }
        sound = {
            "default_time_zone": "'+00:00'",
            "performance_schema": "ON",
            "max_connections": "500",
            "sql_mode": (
                "ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,"
                "ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
            ),
            "skip_name_resolve": "ON",
            "mysqlx": "OFF",
            "innodb_buffer_pool_size": f"{self.buffer_pool_mb}M",
        }
        return {**durable, **tls, **sound, **self.extra}

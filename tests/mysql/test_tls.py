"""Connections to a database are encrypted and verified, or they are not made: against servers with a wrong authority, a wrong
name, and no TLS at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from billing_shards.db import Database, open_database, translated
from billing_shards.errors import TlsRefused
from billing_shards.settings import Credentials, DatabaseSpec, SecretRef, TlsSpec
from hack.mysql import MySQLServer, wrong_ca

DISABLED = TlsSpec(mode="disabled")
ELSEWHERE = "elsewhere.example"


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    right: MySQLServer
    misnamed: MySQLServer
    """Its certificate is for another name."""
    plain: MySQLServer
    """It offers no TLS."""


@pytest.fixture(scope="module")
def servers(mysql_servers: Sequence[MySQLServer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    workdir = tmp_path_factory.mktemp("tls")
    without = {"tls_version": "", "require_secure_transport": "OFF"}
    with ExitStack() as stack:
        misnamed = MySQLServer.start("misnamed", workdir=workdir, buffer_pool_mb=32, certificate_names=[ELSEWHERE])
        stack.enter_context(misnamed)
        plain = stack.enter_context(MySQLServer.start("plain", workdir=workdir, buffer_pool_mb=32, options=without))
        yield Servers(right=mysql_servers[0], misnamed=misnamed, plain=plain)


def opened(
    server: MySQLServer, *, tls: TlsSpec | None = None, ca: Callable[[], str | None] | None = None, host: str | None = None
) -> Database:
    """A pool as root; the server's own CA is trusted unless `ca` is given."""
    secret = SecretRef(name="root")
    spec = DatabaseSpec(
        name="eu-1",
        host=host or server.host,
        port=server.port,
        database="mysql",
        credentials_secret=secret,
        schema_secret=secret,
        tls=tls or TlsSpec(),
    )
    who = Credentials(username="root", password=server.root_password)
    return open_database(spec, lambda: who, ca=ca or server.ca_file.read_text)


def cipher(database: Database) -> str:
    """How a connection is encrypted; empty where it is not."""
    with translated(database.name), database.engine.connect() as connection:
        found: str = connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Ssl_cipher'").one()[1]
    return found


def refusal(database: Database, server: MySQLServer) -> str:
    """Why the connection was not made."""
    with pytest.raises(TlsRefused) as caught:
        cipher(database)
    database.close()
    text = str(caught.value)
    assert text.startswith("database eu-1: ")
    assert server.root_password not in text
    return text


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_right_authority_and_name_make_an_encrypted_connection(servers: Servers, host: str) -> None:
    database = opened(servers.right, host=host)
    assert cipher(database)
    database.close()


def test_every_connection_of_a_pool_is_encrypted(servers: Servers) -> None:
    database = opened(servers.right)
    with ExitStack() as stack:
        connections = [stack.enter_context(database.engine.connect()) for _ in range(3)]
        found = [one.exec_driver_sql("SHOW SESSION STATUS LIKE 'Ssl_cipher'").one()[1] for one in connections]
    database.close()
    assert len(found) == 3
    assert all(found)


def test_another_authority_is_refused(servers: Servers, tmp_path: Path) -> None:
    stranger = wrong_ca(tmp_path / "wrong.pem")
    assert "certificate was not accepted" in refusal(opened(servers.right, ca=stranger.read_text), servers.right)


def test_an_authority_that_the_system_does_not_know_is_refused_where_none_is_given(servers: Servers) -> None:
    assert "certificate was not accepted" in refusal(opened(servers.right, ca=lambda: None), servers.right)


def test_a_certificate_for_another_name_is_refused(servers: Servers) -> None:
    assert "certificate was not accepted" in refusal(opened(servers.misnamed), servers.misnamed)


def test_a_server_name_that_is_given_is_the_one_that_counts(servers: Servers) -> None:
    database = opened(servers.misnamed, tls=TlsSpec(server_name=ELSEWHERE))
    assert cipher(database)
    database.close()


@pytest.mark.parametrize("name", ["other.example", "127.0.0.2", f"sub.{ELSEWHERE}"])
def test_a_server_name_that_is_given_is_verified(servers: Servers, name: str) -> None:
    assert "certificate was not accepted" in refusal(opened(servers.misnamed, tls=TlsSpec(server_name=name)), servers.misnamed)


def test_a_server_name_does_not_turn_off_the_check_of_the_authority(servers: Servers, tmp_path: Path) -> None:
    stranger = wrong_ca(tmp_path / "wrong.pem")
    database = opened(servers.misnamed, tls=TlsSpec(server_name=ELSEWHERE), ca=stranger.read_text)
    assert "certificate was not accepted" in refusal(database, servers.misnamed)


def test_a_server_that_demands_tls_refuses_who_turned_it_off(servers: Servers) -> None:
    assert "the server demands TLS" in refusal(opened(servers.right, tls=DISABLED), servers.right)


def test_a_server_without_tls_is_not_spoken_to_in_plain_text(servers: Servers) -> None:
    assert "the server offers no TLS" in refusal(opened(servers.plain), servers.plain)


def test_plain_text_is_spoken_only_where_the_spec_says_so(servers: Servers) -> None:
    database = opened(servers.plain, tls=DISABLED)
    assert cipher(database) == ""
    database.close()


def test_a_ca_that_changes_is_taken_at_the_next_connection(servers: Servers, tmp_path: Path) -> None:
    authorities = [wrong_ca(tmp_path / "wrong.pem"), servers.right.ca_file]
    database = opened(servers.right, ca=lambda: authorities.pop(0).read_text())
    with pytest.raises(TlsRefused):
        cipher(database)
    assert cipher(database)
    database.close()

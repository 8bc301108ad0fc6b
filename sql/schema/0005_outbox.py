"""Publishing events: which ones wait behind one that is not taken, and what was purged."""

from pathlib import Path

from alembic import op
from sqlalchemy import inspect

from billing_shards.schema import run_file

revision = "0005"
down_revision = "0004"

# held: 0 to be sent, 1 waits behind an event that is not taken (or is that event), 2 skipped by a person: never sent, and sent_at
# is when that was. One statement, so that an upgrade that ended half-way has done all of it or nothing.
_HELD = """
ALTER TABLE outbox
  ADD COLUMN held TINYINT UNSIGNED NOT NULL DEFAULT 0,
  DROP INDEX unsent,
  ADD INDEX unsent (shard_id, sent_at, held, id),
  ADD CHECK (held <= 2)
"""


def upgrade() -> None:
    connection = op.get_bind()
    run_file(connection, Path(__file__).with_suffix(".sql"))
    if "held" not in {column["name"] for column in inspect(connection).get_columns("outbox")}:
        connection.exec_driver_sql(_HELD)

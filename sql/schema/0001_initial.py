"""The first schema. Its tables, each with its reason, are in the file of the same name."""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    text = "\n".join(line.split("--")[0] for line in Path(__file__).with_suffix(".sql").read_text().splitlines())
    for statement in filter(str.strip, text.split(";")):
        op.get_bind().exec_driver_sql(statement)

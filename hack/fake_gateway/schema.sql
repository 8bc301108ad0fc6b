-- The provider's state. One document per charge is the truth; the other columns are read out of it by SQLite, so that
-- the list, the export and the totals cannot disagree.
CREATE TABLE IF NOT EXISTS charges (
  seq            INTEGER PRIMARY KEY,        -- the order of creation
  id             TEXT NOT NULL UNIQUE,
  ref_group      TEXT NOT NULL,              -- the reference without its attempt number: may be charged once
  document       TEXT NOT NULL,
  settles_at     REAL,                       -- what changes by itself only: seconds since 1970
  settled        TEXT,                       -- what changes by itself only: the document after that
  reference      TEXT    AS (json_extract(document, '$.reference')) STORED,
  status         TEXT    AS (json_extract(document, '$.status')) STORED,
  currency       TEXT    AS (json_extract(document, '$.currency')) STORED,
  amount         INTEGER AS (json_extract(document, '$.amount')) STORED,
  payment_method TEXT    AS (json_extract(document, '$.payment_method')) STORED
);
CREATE INDEX IF NOT EXISTS charges_by_reference ON charges (reference);
CREATE INDEX IF NOT EXISTS charges_by_group ON charges (ref_group, status);
CREATE INDEX IF NOT EXISTS charges_to_settle ON charges (settles_at) WHERE settles_at IS NOT NULL;

CREATE TABLE IF NOT EXISTS idempotency_keys (
  key         TEXT PRIMARY KEY,
  fingerprint TEXT NOT NULL,
  http_status INTEGER NOT NULL,
  body        TEXT NOT NULL,
  created     REAL NOT NULL,                 -- seconds since 1970; the key lives from here
  generation  INTEGER NOT NULL               -- how often the key has expired and been used anew
) WITHOUT ROWID;

-- What each key has met already, so that a fault happens once even where the process died in between.
CREATE TABLE IF NOT EXISTS faults (
  key        TEXT NOT NULL,
  generation INTEGER NOT NULL,
  kind       TEXT NOT NULL,
  times      INTEGER NOT NULL,
  PRIMARY KEY (key, generation, kind)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS refunds (
  seq        INTEGER PRIMARY KEY,
  id         TEXT NOT NULL UNIQUE,
  document   TEXT NOT NULL,
  settles_at REAL,                           -- pending only: seconds since 1970
  settled    TEXT,                           -- pending only: the document after settlement
  charge     TEXT    AS (json_extract(document, '$.charge')) STORED,
  reference  TEXT    AS (json_extract(document, '$.reference')) STORED,
  status     TEXT    AS (json_extract(document, '$.status')) STORED,
  currency   TEXT    AS (json_extract(document, '$.currency')) STORED,
  amount     INTEGER AS (json_extract(document, '$.amount')) STORED
);
CREATE INDEX IF NOT EXISTS refunds_by_charge ON refunds (charge);
CREATE INDEX IF NOT EXISTS refunds_by_reference ON refunds (reference);
CREATE INDEX IF NOT EXISTS refunds_to_settle ON refunds (settles_at) WHERE settles_at IS NOT NULL;

-- What is to be told by webhook; written in the transaction of what it tells of, while a webhook URL is configured.
CREATE TABLE IF NOT EXISTS events (
  seq       INTEGER PRIMARY KEY,
  id        TEXT NOT NULL UNIQUE,
  kind      TEXT NOT NULL,
  subject   TEXT NOT NULL,                   -- the charge or refund as it then was
  created   REAL NOT NULL,                   -- seconds since 1970
  delivered REAL                             -- when it was accepted (or lost by choice)
);
CREATE INDEX IF NOT EXISTS events_to_deliver ON events (seq) WHERE delivered IS NULL;

-- The tables of one MySQL instance. Every table of a shard has PRIMARY KEY (shard_id, …): moving a shard is a range copy
-- and ids never collide. No AUTO_INCREMENT: ids come from blocks of a counter of the shard, so a row keeps its id when it moves.
-- All times are DATETIME(6) in UTC: DATETIME(0) would round a time up into the future. Text that is compared is ascii_bin, so
-- that two ids differ exactly when their bytes do. IF NOT EXISTS, because an upgrade that ended half-way is run again from here.

-- Whose database this is. One row. A process that was sent to a wrong host or schema finds out here, before it writes.
CREATE TABLE IF NOT EXISTS installation (
  id          TINYINT UNSIGNED  NOT NULL PRIMARY KEY CHECK (id = 1),
  shard_set   VARCHAR(253) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  shard_count SMALLINT UNSIGNED NOT NULL,
  `database`  VARCHAR(63)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  created_at  DATETIME(6)       NOT NULL
);

-- The fence. Every writing transaction first reads its shard's row FOR SHARE; a hand-over takes it exclusively.
CREATE TABLE IF NOT EXISTS shard_owner (
  shard_id   SMALLINT UNSIGNED NOT NULL PRIMARY KEY,
  epoch      BIGINT UNSIGNED   NOT NULL,           -- grows with every change of owner; never goes back
  state      TINYINT UNSIGNED  NOT NULL,           -- 1 owner, 2 fenced, 3 prepared, 4 moved
  moved_to   VARCHAR(63) CHARACTER SET ascii COLLATE ascii_bin NULL,
  capture    TINYINT UNSIGNED  NOT NULL DEFAULT 0, -- 1 while writers must note the keys they touch (the shard is being copied)
  updated_at DATETIME(6)       NOT NULL,
  CHECK (state BETWEEN 1 AND 4)
);

-- Counters. 'id' is taken in blocks (gaps are harmless); 'event' and 'ledger' are taken as the last step of the writing
-- transaction, whose row lock makes number order commit order: without gaps, so a lost row can be proved.
CREATE TABLE IF NOT EXISTS shard_sequence (
  shard_id   SMALLINT UNSIGNED NOT NULL,
  name       VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  next_value BIGINT UNSIGNED   NOT NULL,
  PRIMARY KEY (shard_id, name)
);

-- What a customer agreed to. Period k runs from start_date + k intervals to start_date + (k+1) intervals, computed from the
-- start each time, so that a 31st stays a 31st after February.
CREATE TABLE IF NOT EXISTS subscription (
  shard_id        SMALLINT UNSIGNED NOT NULL,
  id              VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  customer_id     VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  service         VARCHAR(63)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  amount          BIGINT       NOT NULL,           -- minor units of the currency, for one period
  currency        CHAR(3)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  interval_unit   TINYINT UNSIGNED  NOT NULL,      -- 1 day, 2 week, 3 month, 4 year
  interval_count  SMALLINT UNSIGNED NOT NULL,
  start_date      DATE         NOT NULL,           -- first day of period 0, in time_zone; its day of the month is the anchor
  time_zone       VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  payment_method  VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,  -- the provider's token, never a card number
  status          TINYINT UNSIGNED  NOT NULL,      -- 1 active, 2 past due, 3 suspended, 4 canceled
  next_period     INT UNSIGNED NOT NULL,           -- the first period not invoiced yet
  next_invoice_at DATETIME(6)  NULL,               -- when it begins (UTC); NULL: no more invoices, and out of the index's way
  created_at      DATETIME(6)  NOT NULL,
  updated_at      DATETIME(6)  NOT NULL,
  PRIMARY KEY (shard_id, id),
  KEY due (shard_id, next_invoice_at),             -- the scheduler's look for periods that begin
  CHECK (amount > 0), CHECK (interval_unit BETWEEN 1 AND 4), CHECK (interval_count > 0), CHECK (status BETWEEN 1 AND 4)
);

-- What is owed for one period. The unique key is what makes a second scheduler, or a second run, harmless.
CREATE TABLE IF NOT EXISTS invoice (
  shard_id        SMALLINT UNSIGNED NOT NULL,
  id              BIGINT UNSIGNED   NOT NULL,
  subscription_id VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  charge_type     TINYINT UNSIGNED  NOT NULL,      -- 1 recurring
  period_start    DATE         NOT NULL,
  period_end      DATE         NOT NULL,           -- the first day after it
  amount          BIGINT       NOT NULL,
  currency        CHAR(3)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  status          TINYINT UNSIGNED  NOT NULL,      -- 1 open, 2 paid, 3 uncollectible, 4 void; when: its ledger entry tells
  due_at          DATETIME(6)  NOT NULL,
  issued_at       DATETIME(6)  NOT NULL,
  PRIMARY KEY (shard_id, id),
  UNIQUE KEY period (shard_id, subscription_id, charge_type, period_start),
  CHECK (amount > 0), CHECK (status BETWEEN 1 AND 4), CHECK (period_start < period_end)
);

-- The queue: narrow, and only for scheduling. due_at is when a ready job may be claimed, and when a processing job's lease
-- ends; so one index serves the claim and the reaper (a second index for leases cost a quarter of the claim rate).
CREATE TABLE IF NOT EXISTS billing_job (
  shard_id        SMALLINT UNSIGNED NOT NULL,
  id              BIGINT UNSIGNED   NOT NULL,
  lane            TINYINT UNSIGNED  NOT NULL,      -- 0 renewals, 1 retries
  status          TINYINT UNSIGNED  NOT NULL,      -- 0 ready, 1 processing, 2 succeeded, 3 failed for good, 4 awaiting customer, 5 review
  due_at          DATETIME(6)  NOT NULL,
  subscription_id VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  invoice_id      BIGINT UNSIGNED   NOT NULL,
  amount          BIGINT       NOT NULL,
  currency        CHAR(3)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  payment_method  VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  attempt_no      SMALLINT UNSIGNED NOT NULL DEFAULT 0,
  attempt_open    TINYINT UNSIGNED  NOT NULL DEFAULT 0,  -- 1: attempt attempt_no has no known outcome; no new one may begin
  checks          TINYINT UNSIGNED  NOT NULL DEFAULT 0,  -- looks at the open attempt so far
  lost_leases     TINYINT UNSIGNED  NOT NULL DEFAULT 0,  -- workers lost since the last outcome
  lease_token     BIGINT UNSIGNED   NOT NULL DEFAULT 0,  -- of the claim that holds it, or that finished it last: the proof of who
                                                   -- did; 0: none. NULL would make the row grow at each claim, a delete and an insert
  idempotency_key BINARY(32)   NOT NULL,           -- SHA-256 of subscription, period start, charge type
  grace_until     DATETIME(6)  NOT NULL,           -- no attempt begins after this
  created_at      DATETIME(6)  NOT NULL,
  updated_at      DATETIME(6)  NOT NULL,
  PRIMARY KEY (shard_id, id),
  UNIQUE KEY idempotency (shard_id, idempotency_key),
  KEY claim (shard_id, lane, status, due_at)       -- InnoDB appends the primary key: ORDER BY due_at, id needs no sort
);

-- One try at the provider. Written by the claiming transaction, before the provider can hear of it.
CREATE TABLE IF NOT EXISTS payment_attempt (
  shard_id        SMALLINT UNSIGNED NOT NULL,
  job_id          BIGINT UNSIGNED   NOT NULL,
  attempt_no      SMALLINT UNSIGNED NOT NULL,
  idempotency_key BINARY(32)   NOT NULL,           -- SHA-256 of the job's key and attempt_no; sent to the provider
  provider        VARCHAR(63)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  provider_ref    VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NULL,
  amount          BIGINT       NOT NULL,
  currency        CHAR(3)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  outcome         TINYINT UNSIGNED  NOT NULL,      -- 0 unknown so far, 1 succeeded, 2 declined, 3 action required, 4 never sent, 5 pending
  code            VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NULL,  -- the provider's decline code
  created_at      DATETIME(6)  NOT NULL,
  finished_at     DATETIME(6)  NULL,
  PRIMARY KEY (shard_id, job_id, attempt_no),
  UNIQUE KEY idempotency (shard_id, idempotency_key)
);

-- Money, double entry, immutable: the application's user has no UPDATE or DELETE on it. An account is `kind:owner`.
CREATE TABLE IF NOT EXISTS ledger_entry (
  shard_id        SMALLINT UNSIGNED NOT NULL,
  id              BIGINT UNSIGNED   NOT NULL,      -- without gaps in its shard
  debit_account   VARCHAR(96)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  credit_account  VARCHAR(96)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  amount          BIGINT       NOT NULL,
  currency        CHAR(3)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  kind            TINYINT UNSIGNED  NOT NULL,      -- 1 invoice issued, 2 payment succeeded
  invoice_id      BIGINT UNSIGNED   NOT NULL,
  idempotency_key BINARY(32)   NOT NULL,           -- SHA-256 of what the entry is for: the same fact is never booked twice
  created_at      DATETIME(6)  NOT NULL,
  PRIMARY KEY (shard_id, id),
  UNIQUE KEY idempotency (shard_id, idempotency_key),
  KEY credit (shard_id, credit_account, id),       -- statements by account
  KEY debit (shard_id, debit_account, id),
  CHECK (amount > 0), CHECK (debit_account <> credit_account)
);

-- Events, written with the change they tell of. Numbers without gaps; unsent ones are found by index, never by "id > last seen"
-- (which skips late commits).
CREATE TABLE IF NOT EXISTS outbox (
  shard_id        SMALLINT UNSIGNED NOT NULL,
  id              BIGINT UNSIGNED   NOT NULL,
  type            VARCHAR(63)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  subscription_id VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  payload         JSON         NOT NULL,
  created_at      DATETIME(6)  NOT NULL,
  sent_at         DATETIME(6)  NULL,
  PRIMARY KEY (shard_id, id),
  KEY unsent (shard_id, sent_at, id)
);

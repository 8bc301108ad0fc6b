-- Dunning and changes of subscriptions. See docs/billing.md.

-- Terms under which periods were invoiced, and that are in force no more: those first_period up to next_period (without it), counted
-- from start_date. One row for each change of terms and for each run of periods that was left out, none of them overlapping.
CREATE TABLE IF NOT EXISTS subscription_span (
  shard_id        SMALLINT UNSIGNED NOT NULL,
  subscription_id VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  period_start    DATE         NOT NULL,           -- first day of first_period
  service         VARCHAR(63)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  amount          BIGINT       NOT NULL,
  currency        CHAR(3)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  interval_unit   TINYINT UNSIGNED  NOT NULL,
  interval_count  SMALLINT UNSIGNED NOT NULL,
  start_date      DATE         NOT NULL,
  anchor_day      TINYINT UNSIGNED  NULL,
  first_period    INT UNSIGNED NOT NULL,
  next_period     INT UNSIGNED NOT NULL,
  closed_at       DATETIME(6)  NOT NULL,
  PRIMARY KEY (shard_id, subscription_id, period_start),
  CHECK (amount > 0), CHECK (first_period < next_period)
);

-- The last statement of this file, and one: where its columns are there, all of this file was run.
ALTER TABLE subscription
  ADD COLUMN anchor_day      TINYINT UNSIGNED NULL,              -- day of the month that periods begin on, where start_date's month is too short for it
  ADD COLUMN first_period    INT UNSIGNED NOT NULL DEFAULT 0,    -- the first period that is invoiced under these terms; those before were billed elsewhere, or not at all
  ADD COLUMN catch_up_until  INT UNSIGNED NULL,                  -- missed periods before this one may be invoiced however many they are: a person said so
  ADD COLUMN held_since      DATETIME(6)  NULL,                  -- too many periods were missed: none is invoiced until a person says what becomes of them
  ADD COLUMN cancel_at       DATE         NULL,                  -- a period that begins on this day or later is not invoiced: the subscription ends instead
  ADD COLUMN past_due_since  DATETIME(6)  NULL,
  ADD COLUMN suspended_since DATETIME(6)  NULL,
  ADD COLUMN notices         TINYINT UNSIGNED NOT NULL DEFAULT 0, -- told to the customer since past_due_since
  ADD COLUMN write_off       TINYINT UNSIGNED NOT NULL DEFAULT 0, -- of one that is canceled: its debt is not collected any more
  ADD COLUMN next_dunning_at DATETIME(6)  NULL,                  -- when dunning looks at it; NULL: never, and out of the index's way
  ADD KEY dunning (shard_id, next_dunning_at);

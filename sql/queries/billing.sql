-- Subscriptions and their invoices. Text columns of JSON_TABLE that meet an index are ascii_bin as the tables' are; otherwise the
-- index could not be used.

-- name: due_shards
-- A loose scan: one look into the index for each shard, however many subscriptions are due.
SELECT shard_id
FROM subscription FORCE INDEX (due)
WHERE shard_id IN %(shards)s AND next_invoice_at IS NOT NULL
GROUP BY shard_id
HAVING MIN(next_invoice_at) <= NOW(6)

-- name: due_subscriptions
SELECT id, customer_id, service, amount, currency, interval_unit, interval_count, start_date, time_zone, payment_method, anchor_day,
       first_period, next_period, catch_up_until, cancel_at
FROM subscription FORCE INDEX (due)
WHERE shard_id = %(shard)s AND next_invoice_at <= %(now)s AND status IN (1, 2)
ORDER BY next_invoice_at, id
LIMIT %(limit)s
FOR UPDATE SKIP LOCKED

-- name: insert_invoices
-- A period that has its invoice keeps it. Not INSERT IGNORE, which would let a broken CHECK pass as well.
INSERT INTO invoice (shard_id, id, subscription_id, charge_type, period_start, period_end, amount, currency, status, due_at, issued_at)
SELECT %(shard)s, r.id, r.subscription_id, %(charge_type)s, r.period_start, r.period_end, r.amount, r.currency, 1, r.due_at, %(now)s
FROM JSON_TABLE(%(rows)s, '$[*]' COLUMNS (
  id              BIGINT UNSIGNED PATH '$[0]',
  subscription_id VARCHAR(64)     PATH '$[1]',
  period_start    DATE            PATH '$[2]',
  period_end      DATE            PATH '$[3]',
  amount          BIGINT          PATH '$[4]',
  currency        CHAR(3)         PATH '$[5]',
  due_at          DATETIME(6)     PATH '$[6]')) AS r
ON DUPLICATE KEY UPDATE shard_id = invoice.shard_id

-- name: inserted_invoices
-- The ids are of a block that only this transaction has: those that are there are its own.
SELECT id FROM invoice FORCE INDEX (PRIMARY) WHERE shard_id = %(shard)s AND id BETWEEN %(first)s AND %(last)s

-- name: invoice_committed
-- Asked after a lost answer to COMMIT. Locking: it waits for a COMMIT that is still under way.
SELECT COUNT(*) FROM invoice WHERE shard_id = %(shard)s AND id = %(id)s FOR SHARE

-- name: insert_jobs
INSERT INTO billing_job
  (shard_id, id, lane, status, due_at, subscription_id, invoice_id, amount, currency, payment_method, idempotency_key, grace_until,
   created_at, updated_at)
SELECT %(shard)s, r.id, r.lane, 0, r.due_at, r.subscription_id, r.invoice_id, r.amount, r.currency, r.payment_method,
       UNHEX(r.idempotency_key), r.grace_until, %(now)s, %(now)s
FROM JSON_TABLE(%(rows)s, '$[*]' COLUMNS (
  id              BIGINT UNSIGNED PATH '$[0]',
  due_at          DATETIME(6)     PATH '$[1]',
  subscription_id VARCHAR(64)     PATH '$[2]',
  invoice_id      BIGINT UNSIGNED PATH '$[3]',
  amount          BIGINT          PATH '$[4]',
  currency        CHAR(3)         PATH '$[5]',
  payment_method  VARCHAR(128)    PATH '$[6]',
  idempotency_key CHAR(64)        PATH '$[7]',
  grace_until     DATETIME(6)     PATH '$[8]',
  lane            TINYINT UNSIGNED PATH '$[9]')) AS r

-- name: advance_subscriptions
UPDATE JSON_TABLE(%(rows)s, '$[*]' COLUMNS (
         id              VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin PATH '$[0]',
         next_period     INT UNSIGNED PATH '$[1]',
         next_invoice_at DATETIME(6)  PATH '$[2]',
         held            TINYINT      PATH '$[3]',
         canceled        TINYINT      PATH '$[4]')) AS r
STRAIGHT_JOIN subscription AS s ON s.shard_id = %(shard)s AND s.id = r.id
SET s.next_period = r.next_period, s.next_invoice_at = r.next_invoice_at, s.held_since = IF(r.held, %(now)s, NULL),
    s.status = IF(r.canceled, 4, s.status), s.updated_at = %(now)s

-- name: agreed_terms
-- Of any shards of the database.
SELECT s.id, s.customer_id, s.service, s.amount, s.currency, s.interval_unit, s.interval_count, s.start_date, s.time_zone,
       s.payment_method, s.anchor_day, s.first_period
FROM JSON_TABLE(%(ids)s, '$[*]' COLUMNS (
  shard_id SMALLINT UNSIGNED PATH '$[0]',
  id       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin PATH '$[1]')) AS r
STRAIGHT_JOIN subscription AS s ON s.shard_id = r.shard_id AND s.id = r.id

-- name: insert_subscriptions
INSERT INTO subscription
  (shard_id, id, customer_id, service, amount, currency, interval_unit, interval_count, start_date, time_zone, payment_method,
   anchor_day, first_period, status, next_period, next_invoice_at, created_at, updated_at)
SELECT %(shard)s, r.id, r.customer_id, r.service, r.amount, r.currency, r.interval_unit, r.interval_count, r.start_date, r.time_zone,
       r.payment_method, r.anchor_day, r.first_period, 1, r.first_period, r.next_invoice_at, %(now)s, %(now)s
FROM JSON_TABLE(%(rows)s, '$[*]' COLUMNS (
  id              VARCHAR(64)       PATH '$[0]',
  customer_id     VARCHAR(64)       PATH '$[1]',
  service         VARCHAR(63)       PATH '$[2]',
  amount          BIGINT            PATH '$[3]',
  currency        CHAR(3)           PATH '$[4]',
  interval_unit   TINYINT UNSIGNED  PATH '$[5]',
  interval_count  SMALLINT UNSIGNED PATH '$[6]',
  start_date      DATE              PATH '$[7]',
  time_zone       VARCHAR(64)       PATH '$[8]',
  payment_method  VARCHAR(128)      PATH '$[9]',
  anchor_day      TINYINT UNSIGNED  PATH '$[10]',
  first_period    INT UNSIGNED      PATH '$[11]',
  next_invoice_at DATETIME(6)       PATH '$[12]')) AS r

-- All of a subscription's row, and the terms it had before.

-- name: lock
SELECT id, customer_id, service, amount, currency, interval_unit, interval_count, start_date, time_zone, payment_method, anchor_day,
       first_period, status, next_period, next_invoice_at, catch_up_until, held_since, cancel_at, past_due_since, suspended_since,
       notices, write_off, next_dunning_at
FROM subscription FORCE INDEX (PRIMARY)
WHERE shard_id = %(shard)s AND id IN %(ids)s
FOR UPDATE

-- name: read
SELECT id, customer_id, service, amount, currency, interval_unit, interval_count, start_date, time_zone, payment_method, anchor_day,
       first_period, status, next_period, next_invoice_at, catch_up_until, held_since, cancel_at, past_due_since, suspended_since,
       notices, write_off, next_dunning_at, NOW(6)
FROM subscription
WHERE shard_id = %(shard)s AND id = %(id)s

-- name: save
UPDATE JSON_TABLE(%(rows)s, '$[*]' COLUMNS (
         id              VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin PATH '$[0]',
         service         VARCHAR(63)  CHARACTER SET ascii COLLATE ascii_bin PATH '$[1]',
         amount          BIGINT       PATH '$[2]',
         currency        CHAR(3)      CHARACTER SET ascii COLLATE ascii_bin PATH '$[3]',
         interval_unit   TINYINT UNSIGNED  PATH '$[4]',
         interval_count  SMALLINT UNSIGNED PATH '$[5]',
         start_date      DATE         PATH '$[6]',
         payment_method  VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin PATH '$[7]',
         anchor_day      TINYINT UNSIGNED PATH '$[8]',
         first_period    INT UNSIGNED PATH '$[9]',
         status          TINYINT      PATH '$[10]',
         next_period     INT UNSIGNED PATH '$[11]',
         next_invoice_at DATETIME(6)  PATH '$[12]',
         catch_up_until  INT UNSIGNED PATH '$[13]',
         held_since      DATETIME(6)  PATH '$[14]',
         cancel_at       DATE         PATH '$[15]',
         past_due_since  DATETIME(6)  PATH '$[16]',
         suspended_since DATETIME(6)  PATH '$[17]',
         notices         TINYINT UNSIGNED PATH '$[18]',
         write_off       TINYINT UNSIGNED PATH '$[19]',
         next_dunning_at DATETIME(6)  PATH '$[20]')) AS r
STRAIGHT_JOIN subscription AS s ON s.shard_id = %(shard)s AND s.id = r.id
SET s.service = r.service, s.amount = r.amount, s.currency = r.currency, s.interval_unit = r.interval_unit,
    s.interval_count = r.interval_count, s.start_date = r.start_date, s.payment_method = r.payment_method,
    s.anchor_day = r.anchor_day, s.first_period = r.first_period, s.status = r.status, s.next_period = r.next_period,
    s.next_invoice_at = r.next_invoice_at, s.catch_up_until = r.catch_up_until, s.held_since = r.held_since,
    s.cancel_at = r.cancel_at, s.past_due_since = r.past_due_since, s.suspended_since = r.suspended_since, s.notices = r.notices,
    s.write_off = r.write_off, s.next_dunning_at = r.next_dunning_at, s.updated_at = %(now)s

-- name: insert_spans
INSERT INTO subscription_span
  (shard_id, subscription_id, period_start, service, amount, currency, interval_unit, interval_count, start_date, anchor_day,
   first_period, next_period, closed_at)
SELECT %(shard)s, r.subscription_id, r.period_start, r.service, r.amount, r.currency, r.interval_unit, r.interval_count, r.start_date,
       r.anchor_day, r.first_period, r.next_period, %(now)s
FROM JSON_TABLE(%(rows)s, '$[*]' COLUMNS (
  subscription_id VARCHAR(64)       PATH '$[0]',
  period_start    DATE              PATH '$[1]',
  service         VARCHAR(63)       PATH '$[2]',
  amount          BIGINT            PATH '$[3]',
  currency        CHAR(3)           PATH '$[4]',
  interval_unit   TINYINT UNSIGNED  PATH '$[5]',
  interval_count  SMALLINT UNSIGNED PATH '$[6]',
  start_date      DATE              PATH '$[7]',
  anchor_day      TINYINT UNSIGNED  PATH '$[8]',
  first_period    INT UNSIGNED      PATH '$[9]',
  next_period     INT UNSIGNED      PATH '$[10]')) AS r

-- name: spans
SELECT s.id, s.customer_id, p.service, p.amount, p.currency, p.interval_unit, p.interval_count, p.start_date, s.time_zone,
       s.payment_method, p.anchor_day, p.first_period, p.next_period
FROM subscription_span AS p
JOIN subscription AS s ON s.shard_id = p.shard_id AND s.id = p.subscription_id
WHERE p.shard_id = %(shard)s AND p.subscription_id = %(subscription)s
ORDER BY p.period_start

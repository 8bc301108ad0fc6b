-- What the audit asks of one shard, all in one snapshot of it. Each query named for a rule of `billing_shards.audit.rules` returns
-- the rows that break the rule, and their columns are what a person is shown. Statuses are numbers: see sql/schema.
--
-- No table has an index on invoice_id: rows are met through derived tables, each built once in one pass over the shard.
--
-- A finished job is deleted after a while; its attempts are kept. `job` stands for those that are there and for those that were:
-- the attempts of a final invoice without a job are found by the key of the first one, which follows from the invoice's period.

-- name: snapshot
START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY

-- name: server_time
SELECT NOW(6)

-- name: sizes
SELECT (SELECT COUNT(*) FROM subscription WHERE shard_id = %(shard)s) AS subscriptions,
       (SELECT COUNT(*) FROM invoice WHERE shard_id = %(shard)s) AS invoices,
       (SELECT COUNT(*) FROM billing_job WHERE shard_id = %(shard)s) AS jobs,
       (SELECT COUNT(*) FROM payment_attempt WHERE shard_id = %(shard)s) AS attempts,
       (SELECT COUNT(*) FROM ledger_entry WHERE shard_id = %(shard)s) AS entries,
       (SELECT COUNT(*) FROM refund WHERE shard_id = %(shard)s) AS refunds,
       (SELECT COUNT(*) FROM outbox WHERE shard_id = %(shard)s) AS events

-- name: shards_with_rows
-- Of a database, not of a shard. DISTINCT of a key's first column jumps from value to value.
SELECT 'shard_sequence' AS name, shard_id FROM (SELECT DISTINCT shard_id FROM shard_sequence) AS t
UNION ALL SELECT 'subscription', shard_id FROM (SELECT DISTINCT shard_id FROM subscription) AS t
UNION ALL SELECT 'subscription_span', shard_id FROM (SELECT DISTINCT shard_id FROM subscription_span) AS t
UNION ALL SELECT 'invoice', shard_id FROM (SELECT DISTINCT shard_id FROM invoice) AS t
UNION ALL SELECT 'billing_job', shard_id FROM (SELECT DISTINCT shard_id FROM billing_job) AS t
UNION ALL SELECT 'payment_attempt', shard_id FROM (SELECT DISTINCT shard_id FROM payment_attempt) AS t
UNION ALL SELECT 'ledger_entry', shard_id FROM (SELECT DISTINCT shard_id FROM ledger_entry) AS t
UNION ALL SELECT 'outbox', shard_id FROM (SELECT DISTINCT shard_id FROM outbox) AS t
UNION ALL SELECT 'webhook', shard_id FROM (SELECT DISTINCT shard_id FROM webhook) AS t
UNION ALL SELECT 'refund', shard_id FROM (SELECT DISTINCT shard_id FROM refund) AS t
UNION ALL SELECT 'outbox_blocked', shard_id FROM (SELECT DISTINCT shard_id FROM outbox_blocked) AS t
UNION ALL SELECT 'outbox_purged', shard_id FROM (SELECT DISTINCT shard_id FROM outbox_purged) AS t
UNION ALL SELECT 'shard_task', shard_id FROM (SELECT DISTINCT shard_id FROM shard_task) AS t
UNION ALL SELECT 'manual_act', shard_id FROM (SELECT DISTINCT shard_id FROM manual_act) AS t

-- name: right_shard
SELECT id AS subscription
FROM subscription
WHERE shard_id = %(shard)s
  AND CAST(CONV(LEFT(SHA2(CONCAT('shard:', id), 256), 16), 16, 10) AS UNSIGNED) %% %(shard_count)s <> shard_id

-- name: periods
-- Numbered by their start, invoices must be those of the periods of the subscription's spans, in order: terms it had before
-- (sql/schema/0004_billing.sql), then those in force. A period is computed from its span's start.
WITH span AS (
  SELECT subscription_id, start_date, anchor_day, interval_unit, interval_count, first_period, CAST(next_period AS SIGNED) - first_period AS n,
         period_start
  FROM subscription_span
  WHERE shard_id = %(shard)s
  UNION ALL
  SELECT id, start_date, anchor_day, interval_unit, interval_count, first_period, CAST(next_period AS SIGNED) - first_period, '9999-12-31'
  FROM subscription
  WHERE shard_id = %(shard)s),
numbered AS (
  SELECT *, SUM(n) OVER (PARTITION BY subscription_id ORDER BY period_start ROWS UNBOUNDED PRECEDING) - n AS before_it FROM span),
invoiced AS (
  SELECT subscription_id, period_start, period_end, ROW_NUMBER() OVER (PARTITION BY subscription_id ORDER BY period_start) - 1 AS k
  FROM invoice
  WHERE shard_id = %(shard)s AND charge_type = 1),
counted AS (
  SELECT i.subscription_id, i.period_start, i.period_end, s.interval_unit AS unit, s.start_date,
         (s.first_period + i.k - s.before_it) * s.interval_count AS steps, s.interval_count AS step,
         COALESCE(s.anchor_day, DAY(s.start_date)) AS anchor,
         s.start_date - INTERVAL DAY(s.start_date) - 1 DAY AS month, IF(s.interval_unit = 4, 12, 1) AS months
  FROM invoiced AS i
  LEFT JOIN numbered AS s ON s.subscription_id = i.subscription_id AND i.k >= s.before_it AND i.k < s.before_it + s.n),
edges AS (
  SELECT subscription_id, period_start, period_end, unit, anchor, start_date, steps, step,
         month + INTERVAL steps * months MONTH AS month, month + INTERVAL (steps + step) * months MONTH AS month_after
  FROM counted),
judged AS (
  SELECT subscription_id, period_start,
         period_start <> CASE unit
           WHEN 1 THEN start_date + INTERVAL steps DAY
           WHEN 2 THEN start_date + INTERVAL steps WEEK
           ELSE month + INTERVAL LEAST(anchor, DAY(LAST_DAY(month))) - 1 DAY END
         OR period_end <> CASE unit
           WHEN 1 THEN start_date + INTERVAL steps + step DAY
           WHEN 2 THEN start_date + INTERVAL steps + step WEEK
           ELSE month_after + INTERVAL LEAST(anchor, DAY(LAST_DAY(month_after))) - 1 DAY END AS wrong
  FROM edges)
SELECT w.subscription_id AS subscription, w.periods, COALESCE(f.invoices, 0) AS invoices, f.first_wrong_period
FROM (SELECT subscription_id, SUM(n) AS periods FROM span GROUP BY subscription_id) AS w
LEFT JOIN (
  SELECT subscription_id, COUNT(*) AS invoices, MIN(IF(wrong, period_start, NULL)) AS first_wrong_period
  FROM judged
  GROUP BY subscription_id) AS f ON f.subscription_id = w.subscription_id
WHERE COALESCE(f.invoices, 0) <> w.periods OR f.first_wrong_period IS NOT NULL

-- name: schedules
-- For the rule `next_invoice`, whose time zones only Python knows.
SELECT id, interval_unit, interval_count, start_date, time_zone, status, next_period, next_invoice_at, anchor_day,
       held_since IS NOT NULL
FROM subscription
WHERE shard_id = %(shard)s

-- name: due_periods
-- A subscription that was imported or invoiced just now, with periods of long ago, is the scheduler's work and not forgotten.
SELECT id AS subscription, next_period AS period, next_invoice_at AS due_since, updated_at AS untouched_since
FROM subscription
WHERE shard_id = %(shard)s AND next_invoice_at < NOW(6) - INTERVAL %(margin_seconds)s SECOND
  AND updated_at < NOW(6) - INTERVAL %(margin_seconds)s SECOND

-- name: invoice_subscription
SELECT i.id AS invoice, i.subscription_id AS subscription
FROM invoice AS i
LEFT JOIN subscription AS s ON s.shard_id = i.shard_id AND s.id = i.subscription_id
WHERE i.shard_id = %(shard)s AND s.id IS NULL

-- name: invoice_job
SELECT i.id AS invoice, i.subscription_id AS subscription, COALESCE(j.jobs, 0) AS jobs
FROM invoice AS i
LEFT JOIN (
  SELECT invoice_id, COUNT(*) AS jobs, MIN(subscription_id) AS subscription_id, MIN(amount) AS amount, MIN(currency) AS currency
  FROM billing_job
  WHERE shard_id = %(shard)s
  GROUP BY invoice_id) AS j ON j.invoice_id = i.id
WHERE i.shard_id = %(shard)s
  AND (j.jobs > 1 OR (j.jobs IS NULL AND i.status = 1)
       OR (j.subscription_id, j.amount, j.currency) <> (i.subscription_id, i.amount, i.currency))

-- name: job_invoice
SELECT j.id AS job, j.invoice_id AS invoice
FROM billing_job AS j
LEFT JOIN invoice AS i ON i.shard_id = j.shard_id AND i.id = j.invoice_id
WHERE j.shard_id = %(shard)s AND i.id IS NULL

-- name: issue_entry
SELECT i.id AS invoice, i.subscription_id AS subscription, COALESCE(e.entries, 0) AS entries, e.first_entry
FROM invoice AS i
LEFT JOIN (
  SELECT invoice_id, COUNT(*) AS entries, MIN(id) AS first_entry, MIN(debit_account) AS debit, MIN(credit_account) AS credit,
         MIN(amount) AS amount, MIN(currency) AS currency
  FROM ledger_entry
  WHERE shard_id = %(shard)s AND kind = 1
  GROUP BY invoice_id) AS e ON e.invoice_id = i.id
LEFT JOIN subscription AS s ON s.shard_id = i.shard_id AND s.id = i.subscription_id
WHERE i.shard_id = %(shard)s
  AND (COALESCE(e.entries, 0) <> 1
       OR (e.debit, e.amount, e.currency) <> (CONCAT('receivable:', i.subscription_id), i.amount, i.currency)
       OR e.credit <> CONCAT('revenue:', s.service) AND NOT EXISTS (
            SELECT 1
            FROM subscription_span AS p
            WHERE p.shard_id = i.shard_id AND p.subscription_id = i.subscription_id AND e.credit = CONCAT('revenue:', p.service)))

-- name: with_jobs
-- Begins queries that need every job: those that are purged already are made again from their invoices and first attempts.
WITH job AS (
  SELECT id, invoice_id, amount, currency, idempotency_key FROM billing_job WHERE shard_id = %(shard)s
  UNION ALL
  SELECT first.job_id, i.id, i.amount, i.currency, i.job_key
  FROM (
    SELECT id, amount, currency, UNHEX(SHA2(CONCAT(subscription_id, '|', period_start, '|', charge_type), 256)) AS job_key
    FROM invoice
    WHERE shard_id = %(shard)s AND status <> 1) AS i
  LEFT JOIN billing_job AS kept ON kept.shard_id = %(shard)s AND kept.idempotency_key = i.job_key
  JOIN payment_attempt AS first
    ON first.shard_id = %(shard)s AND first.idempotency_key = UNHEX(SHA2(CONCAT(i.job_key, 1), 256))
  WHERE kept.id IS NULL)

-- name: payment_success
{with_jobs}
SELECT i.id AS invoice, i.subscription_id AS subscription, i.status AS invoice_status,
       COALESCE(a.successes, 0) AS succeeded_attempts
FROM invoice AS i
LEFT JOIN (
  SELECT j.invoice_id, COUNT(*) AS successes
  FROM payment_attempt AS t
  JOIN job AS j ON j.id = t.job_id
  WHERE t.shard_id = %(shard)s AND t.outcome = 1
  GROUP BY j.invoice_id) AS a ON a.invoice_id = i.id
WHERE i.shard_id = %(shard)s
  AND COALESCE(a.successes, 0) <> (i.status = 2)

-- name: payment_entry
-- One payment more than were reversed. Providers and accounts sort alike, so the first and the last stand for all.
{with_jobs}
SELECT i.id AS invoice, i.subscription_id AS subscription, i.status AS invoice_status, COALESCE(e.entries, 0) AS entries,
       e.first_entry
FROM invoice AS i
LEFT JOIN (
  SELECT invoice_id, SUM(kind = 2) AS entries, SUM(kind = 2) - SUM(kind = 4) AS standing, MIN(id) AS first_entry,
         MIN(IF(kind = 2, debit_account, NULL)) AS first_debit, MAX(IF(kind = 2, debit_account, NULL)) AS last_debit,
         MIN(IF(kind = 2, credit_account, NULL)) AS first_credit, MAX(IF(kind = 2, credit_account, NULL)) AS last_credit,
         MIN(amount) AS least, MAX(amount) AS most, MIN(currency) AS currency
  FROM ledger_entry
  WHERE shard_id = %(shard)s AND kind IN (2, 4)
  GROUP BY invoice_id) AS e ON e.invoice_id = i.id
LEFT JOIN (
  SELECT j.invoice_id, MIN(t.provider) AS first_provider, MAX(t.provider) AS last_provider
  FROM payment_attempt AS t
  JOIN job AS j ON j.id = t.job_id
  WHERE t.shard_id = %(shard)s AND t.outcome IN (1, 6)
  GROUP BY j.invoice_id) AS a ON a.invoice_id = i.id
WHERE i.shard_id = %(shard)s
  AND (COALESCE(e.standing, 0) <> (i.status = 2)
       OR (e.first_credit, e.least, e.currency) <> (CONCAT('receivable:', i.subscription_id), i.amount, i.currency)
       OR (e.last_credit, e.most) <> (e.first_credit, e.least)
       OR (e.first_debit, e.last_debit) <> (CONCAT('clearing:', a.first_provider), CONCAT('clearing:', a.last_provider)))

-- name: reversal_entry
-- By its key. That no other attempt has one is `entry_keys`.
SELECT t.job_id AS job, t.attempt_no AS attempt, e.id AS entry
FROM payment_attempt AS t
LEFT JOIN ledger_entry AS e
  ON e.shard_id = t.shard_id AND e.idempotency_key = UNHEX(SHA2(CONCAT(t.idempotency_key, 'reversed'), 256))
LEFT JOIN invoice AS i ON i.shard_id = e.shard_id AND i.id = e.invoice_id
WHERE t.shard_id = %(shard)s AND t.outcome = 6
  AND (e.id IS NULL
       OR (e.kind, e.amount, e.currency, e.credit_account) <> (4, t.amount, t.currency, CONCAT('clearing:', t.provider))
       OR e.debit_account <> CONCAT('receivable:', i.subscription_id))

-- name: refund_charge
-- The attempt is found by its key: its job may be deleted already.
SELECT r.id AS refund, r.invoice_id AS invoice, r.attempt_no AS attempt, t.outcome AS attempt_outcome
FROM refund AS r
LEFT JOIN invoice AS i ON i.shard_id = r.shard_id AND i.id = r.invoice_id
LEFT JOIN payment_attempt AS t
  ON t.shard_id = r.shard_id
  AND t.idempotency_key = UNHEX(SHA2(CONCAT(
        UNHEX(SHA2(CONCAT(i.subscription_id, '|', i.period_start, '|', i.charge_type), 256)), r.attempt_no), 256))
WHERE r.shard_id = %(shard)s
  AND (COALESCE(t.outcome, 0) NOT IN (1, 6)
       OR (t.provider, t.provider_ref, t.currency) <> (r.provider, r.charge_ref, r.currency))

-- name: refund_sum
SELECT i.id AS invoice, i.amount, SUM(r.amount) AS refunded
FROM refund AS r
JOIN invoice AS i ON i.shard_id = r.shard_id AND i.id = r.invoice_id
WHERE r.shard_id = %(shard)s AND r.status <> 3
GROUP BY i.id, i.amount
HAVING refunded > i.amount

-- name: refund_entry
-- A refund that succeeded has its entry, by its key; one that failed after that has the counter-entry as well.
SELECT r.id AS refund, r.invoice_id AS invoice, r.status AS refund_status, given.id AS entry, back.id AS counter_entry
FROM refund AS r
LEFT JOIN ledger_entry AS given
  ON given.shard_id = r.shard_id AND given.idempotency_key = UNHEX(SHA2(CONCAT(r.idempotency_key, 'refunded'), 256))
LEFT JOIN ledger_entry AS back
  ON back.shard_id = r.shard_id AND back.idempotency_key = UNHEX(SHA2(CONCAT(r.idempotency_key, 'refund failed'), 256))
WHERE r.shard_id = %(shard)s
  AND ((given.id IS NULL) <> (r.succeeded_at IS NULL) OR (r.status = 2 AND r.succeeded_at IS NULL)
       OR (back.id IS NULL) <> (r.succeeded_at IS NULL OR r.status <> 3)
       OR (given.kind, given.invoice_id, given.amount, given.currency, given.debit_account, given.credit_account)
          <> (5, r.invoice_id, r.amount, r.currency, CONCAT('refunds:', r.service), CONCAT('clearing:', r.provider))
       OR (back.kind, back.invoice_id, back.amount, back.currency, back.debit_account, back.credit_account)
          <> (6, r.invoice_id, r.amount, r.currency, CONCAT('clearing:', r.provider), CONCAT('refunds:', r.service)))

-- name: write_off_entry
-- The service is the one that the invoice was issued for.
SELECT i.id AS invoice, i.subscription_id AS subscription, i.status AS invoice_status, COALESCE(e.entries, 0) AS entries, e.first_entry
FROM invoice AS i
LEFT JOIN (
  SELECT invoice_id, SUM(kind = 3) AS entries, MIN(IF(kind = 3, id, NULL)) AS first_entry,
         MIN(IF(kind = 3, debit_account, NULL)) AS debit, MIN(IF(kind = 3, credit_account, NULL)) AS credit,
         MIN(IF(kind = 3, amount, NULL)) AS amount, MIN(IF(kind = 3, currency, NULL)) AS currency,
         MIN(IF(kind = 1, credit_account, NULL)) AS issued
  FROM ledger_entry
  WHERE shard_id = %(shard)s AND kind IN (1, 3)
  GROUP BY invoice_id) AS e ON e.invoice_id = i.id
WHERE i.shard_id = %(shard)s
  AND (COALESCE(e.entries, 0) <> (i.status = 4)
       OR (e.debit, e.credit, e.amount, e.currency)
          <> (REPLACE(e.issued, 'revenue:', 'bad-debt:'), CONCAT('receivable:', i.subscription_id), i.amount, i.currency))

-- name: entry_invoice
SELECT e.id AS entry, e.kind, e.invoice_id AS invoice
FROM ledger_entry AS e
LEFT JOIN invoice AS i ON i.shard_id = e.shard_id AND i.id = e.invoice_id
WHERE e.shard_id = %(shard)s AND e.kind IN (1, 2, 3, 4, 5, 6) AND i.id IS NULL

-- name: balances
-- Debits less credits of each sort of account, for the rule `ledger_zero`.
SELECT SUBSTRING_INDEX(account, ':', 1) AS sort, currency, SUM(amount) AS balance
FROM (
  SELECT debit_account AS account, currency, amount FROM ledger_entry WHERE shard_id = %(shard)s
  UNION ALL
  SELECT credit_account, currency, -amount FROM ledger_entry WHERE shard_id = %(shard)s) AS postings
GROUP BY sort, currency

-- name: receivable
SELECT account, currency, SUM(amount) AS balance_over_unpaid
FROM (
  SELECT debit_account AS account, currency, amount
  FROM ledger_entry
  WHERE shard_id = %(shard)s AND SUBSTRING_INDEX(debit_account, ':', 1) = 'receivable'
  UNION ALL
  SELECT credit_account, currency, -amount
  FROM ledger_entry
  WHERE shard_id = %(shard)s AND SUBSTRING_INDEX(credit_account, ':', 1) = 'receivable'
  UNION ALL
  SELECT CONCAT('receivable:', subscription_id), currency, -amount
  FROM invoice
  WHERE shard_id = %(shard)s AND status IN (1, 3)) AS postings
GROUP BY account, currency
HAVING balance_over_unpaid <> 0

-- name: ledger_numbers
SELECT missing_from, missing_to
FROM (
  SELECT CAST(LAG(id, 1, 0) OVER (ORDER BY id) AS SIGNED) + 1 AS missing_from, CAST(id AS SIGNED) - 1 AS missing_to
  FROM ledger_entry
  WHERE shard_id = %(shard)s
  UNION ALL
  SELECT (SELECT COALESCE(MAX(id), 0) FROM ledger_entry WHERE shard_id = %(shard)s) + 1, next_value - 1
  FROM shard_sequence
  WHERE shard_id = %(shard)s AND name = 'ledger') AS spans
WHERE missing_from <= missing_to

-- name: outbox_numbers
-- Below the line of what was purged (sql/schema/0005_outbox.sql) as many numbers are missing as were purged; from it on, none.
SELECT missing_from, missing_to, missing_to - missing_from + 1 AS missing, 0 AS purged
FROM (
  SELECT CAST(LAG(o.id, 1, COALESCE(p.line, 1) - 1) OVER (ORDER BY o.id) AS SIGNED) + 1 AS missing_from,
         CAST(o.id AS SIGNED) - 1 AS missing_to
  FROM outbox AS o
  LEFT JOIN outbox_purged AS p ON p.shard_id = o.shard_id
  WHERE o.shard_id = %(shard)s AND o.id >= COALESCE(p.line, 1)
  UNION ALL
  SELECT GREATEST((SELECT COALESCE(MAX(id), 0) FROM outbox WHERE shard_id = %(shard)s) + 1, COALESCE(p.line, 1)),
         CAST(c.next_value AS SIGNED) - 1
  FROM shard_sequence AS c
  LEFT JOIN outbox_purged AS p ON p.shard_id = c.shard_id
  WHERE c.shard_id = %(shard)s AND c.name = 'event') AS spans
WHERE missing_from <= missing_to
UNION ALL
SELECT 1, CAST(line AS SIGNED) - 1, CAST(line AS SIGNED) - 1 - kept, purged
FROM (
  SELECT p.line, p.purged, (SELECT COUNT(*) FROM outbox AS o WHERE o.shard_id = p.shard_id AND o.id < p.line) AS kept
  FROM outbox_purged AS p
  WHERE p.shard_id = %(shard)s) AS below
WHERE CAST(line AS SIGNED) - 1 - kept <> purged

-- name: outbox_held
-- An event that is set aside behind none would wait for ever; one that blocks must be there, unsent and set aside.
SELECT o.subscription_id AS subscription, o.id AS event, b.event_id AS behind
FROM outbox AS o FORCE INDEX (unsent)
LEFT JOIN outbox_blocked AS b ON b.shard_id = o.shard_id AND b.subscription_id = o.subscription_id
WHERE o.shard_id = %(shard)s AND o.sent_at IS NULL AND o.held = 1 AND (b.event_id IS NULL OR b.event_id > o.id)
UNION ALL
SELECT b.subscription_id, b.event_id, NULL
FROM outbox_blocked AS b
LEFT JOIN outbox AS o ON o.shard_id = b.shard_id AND o.id = b.event_id AND o.subscription_id = b.subscription_id
WHERE b.shard_id = %(shard)s AND (o.id IS NULL OR o.sent_at IS NOT NULL OR o.held <> 1)

-- name: counters
-- A counter that is behind would give out a number a second time.
SELECT used.name AS counter, used.highest, c.next_value
FROM (
  SELECT 'ledger' AS name, MAX(id) AS highest FROM ledger_entry WHERE shard_id = %(shard)s
  UNION ALL SELECT 'event', MAX(id) FROM outbox WHERE shard_id = %(shard)s
  UNION ALL
  SELECT 'id', MAX(id)
  FROM (SELECT MAX(id) AS id FROM invoice WHERE shard_id = %(shard)s
        UNION ALL SELECT MAX(id) FROM billing_job WHERE shard_id = %(shard)s) AS ids) AS used
LEFT JOIN shard_sequence AS c ON c.shard_id = %(shard)s AND c.name = used.name
WHERE c.next_value IS NULL OR used.highest >= c.next_value

-- name: job_state
SELECT j.id AS job, i.id AS invoice, j.status AS job_status, i.status AS invoice_status
FROM billing_job AS j
JOIN invoice AS i ON i.shard_id = j.shard_id AND i.id = j.invoice_id
WHERE j.shard_id = %(shard)s
  AND (j.lane > 201 OR j.status > 5 OR i.status NOT IN (CASE j.status WHEN 2 THEN 2 WHEN 3 THEN 3 ELSE 1 END, IF(j.status = 3, 4, 0)))

-- name: leases
SELECT id AS job, invoice_id AS invoice, due_at AS lease_ended, lease_token <> 0 AS has_token
FROM billing_job
WHERE shard_id = %(shard)s AND status = 1
  AND (due_at < NOW(6) - INTERVAL %(margin_seconds)s SECOND OR lease_token = 0 OR attempt_open = 0)

-- name: attempt_job
{with_jobs}
SELECT t.job_id AS job, t.attempt_no AS attempt, t.amount, t.currency
FROM payment_attempt AS t
LEFT JOIN job AS j ON j.id = t.job_id
WHERE t.shard_id = %(shard)s AND (j.id IS NULL OR (t.amount, t.currency) <> (j.amount, j.currency))

-- name: attempt_numbers
SELECT j.id AS job, j.invoice_id AS invoice, j.attempt_no AS last_attempt, COALESCE(t.attempts, 0) AS attempts
FROM billing_job AS j
LEFT JOIN (
  SELECT job_id, COUNT(*) AS attempts, MIN(attempt_no) AS lowest, MAX(attempt_no) AS highest
  FROM payment_attempt
  WHERE shard_id = %(shard)s
  GROUP BY job_id) AS t ON t.job_id = j.id
WHERE j.shard_id = %(shard)s
  AND (COALESCE(t.attempts, 0) <> j.attempt_no OR t.lowest <> 1 OR t.highest <> j.attempt_no)
UNION ALL
SELECT t.job_id, NULL, MAX(t.attempt_no), COUNT(*)
FROM payment_attempt AS t
LEFT JOIN billing_job AS j ON j.shard_id = t.shard_id AND j.id = t.job_id
WHERE t.shard_id = %(shard)s AND j.id IS NULL
GROUP BY t.job_id
HAVING MAX(t.attempt_no) <> COUNT(*)

-- name: open_attempts
-- Outcomes that are unknown (0), pending (5), or to be canceled (7) belong to the one open attempt of an unfinished job; and an open
-- attempt has no other.
SELECT j.id AS job, j.invoice_id AS invoice, j.status AS job_status, t.attempt_no AS attempt, t.outcome, j.attempt_open
FROM payment_attempt AS t
LEFT JOIN billing_job AS j ON j.shard_id = t.shard_id AND j.id = t.job_id
WHERE t.shard_id = %(shard)s
  AND (t.outcome IN (0, 5, 7)) <> COALESCE(j.attempt_open = 1 AND t.attempt_no = j.attempt_no AND j.status NOT IN (2, 3), FALSE)

-- name: job_keys
SELECT j.id AS job, i.id AS invoice
FROM billing_job AS j
JOIN invoice AS i ON i.shard_id = j.shard_id AND i.id = j.invoice_id
WHERE j.shard_id = %(shard)s
  AND j.idempotency_key <> UNHEX(SHA2(CONCAT(i.subscription_id, '|', i.period_start, '|', i.charge_type), 256))

-- name: attempt_keys
{with_jobs}
SELECT t.job_id AS job, t.attempt_no AS attempt
FROM payment_attempt AS t
JOIN job AS j ON j.id = t.job_id
WHERE t.shard_id = %(shard)s
  AND t.idempotency_key <> UNHEX(SHA2(CONCAT(j.idempotency_key, t.attempt_no), 256))

-- name: entry_keys
-- Of an issue or a write-off by the invoice's period, of a payment and its reversal by an attempt, of a refund by the refund.
SELECT e.id AS entry, e.kind, i.id AS invoice
FROM ledger_entry AS e
JOIN invoice AS i ON i.shard_id = e.shard_id AND i.id = e.invoice_id
LEFT JOIN (
  SELECT f.kind, UNHEX(SHA2(CONCAT(t.idempotency_key, f.fact), 256)) AS idempotency_key
  FROM payment_attempt AS t
  JOIN (SELECT 2 AS kind, 'paid' AS fact UNION ALL SELECT 4, 'reversed') AS f
  WHERE t.shard_id = %(shard)s AND IF(f.kind = 4, t.outcome = 6, t.outcome NOT IN (0, 5, 7))
  UNION ALL
  SELECT f.kind, UNHEX(SHA2(CONCAT(r.idempotency_key, f.fact), 256))
  FROM refund AS r
  JOIN (SELECT 5 AS kind, 'refunded' AS fact UNION ALL SELECT 6, 'refund failed') AS f
  WHERE r.shard_id = %(shard)s) AS known
  ON known.kind = e.kind AND known.idempotency_key = e.idempotency_key
WHERE e.shard_id = %(shard)s AND e.kind IN (1, 2, 3, 4, 5, 6)
  AND IF(e.kind IN (1, 3),
         e.idempotency_key <> UNHEX(SHA2(CONCAT(
           UNHEX(SHA2(CONCAT(i.subscription_id, '|', i.period_start, '|', i.charge_type), 256)), IF(e.kind = 1, 'issued', 'written off')), 256)),
         known.kind IS NULL)

-- name: attempts
-- For the comparison with the provider's list, in the order of our references.
{with_jobs}
SELECT j.invoice_id, t.attempt_no, t.provider_ref, t.amount, t.currency, t.outcome, t.finished_at
FROM payment_attempt AS t
JOIN job AS j ON j.id = t.job_id
WHERE t.shard_id = %(shard)s AND t.provider = %(provider)s
ORDER BY j.invoice_id, t.attempt_no

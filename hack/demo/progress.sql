-- One line of JSON; asked every two seconds while charges are under way.
-- Lane 1 is the retries'. A job with an open attempt waits to be asked about, not to be tried again.
SELECT JSON_OBJECT(
  'not_invoiced', (SELECT COUNT(*) FROM subscription WHERE next_invoice_at <= NOW(6)),
  'jobs', COUNT(*),
  'paid', CAST(COALESCE(SUM(status = 2), 0) AS SIGNED),
  'gave_up', CAST(COALESCE(SUM(status = 3), 0) AS SIGNED),
  'customer', CAST(COALESCE(SUM(status = 4), 0) AS SIGNED),
  'review', CAST(COALESCE(SUM(status = 5), 0) AS SIGNED),
  'retry', CAST(COALESCE(SUM(status = 0 AND lane = 1 AND attempt_no > 0 AND attempt_open = 0 AND due_at > NOW(6)), 0) AS SIGNED),
  'held', CAST(COALESCE(SUM(status = 1), 0) AS SIGNED),
  'unknown', CAST(COALESCE(SUM(status = 0 AND attempt_open = 1), 0) AS SIGNED),
  'held_by_range', (SELECT JSON_OBJECTAGG(first_shard, jobs)
                    FROM (SELECT shard_id DIV 64 * 64 AS first_shard, COUNT(*) AS jobs
                          FROM billing_job WHERE status = 1 GROUP BY first_shard) AS held)
)
FROM billing_job

-- name: now
-- Ages are by the server's clock, as the claims are.
SELECT NOW(6)

#!/bin/sh
# Starts mysqld; on an empty volume first makes its data: root's password from MYSQL_ROOT_PASSWORD or the file named by
# MYSQL_ROOT_PASSWORD_FILE, root reachable from MYSQL_ROOT_HOST (default: anywhere), then /docker-entrypoint-initdb.d/*.sql.
set -eu

trap 'exit 143' TERM # the first process of a container has no default for it

case "${1:-mysqld}" in
mysqld) [ $# -eq 0 ] || shift ;;
-*) ;;
*) exec "$@" ;;
esac

data=/var/lib/mysql
unfinished=$data/.initialising # while it is there, the data is half made, and made again from nothing
socket=/var/run/mysqld/initialising.sock

root_password() {
    if [ -n "${MYSQL_ROOT_PASSWORD_FILE:-}" ]; then cat "$MYSQL_ROOT_PASSWORD_FILE"; else printf %s "${MYSQL_ROOT_PASSWORD:-}"; fi
}

# A text as an SQL string literal, its backslashes and quotes doubled.
literal() { printf "'%s'" "$(printf %s "$1" | sed -e 's/\\/\\\\/g' -e "s/'/''/g")"; }

initialise() {
    password=$(root_password)
    [ -n "$password" ] || { echo "mysql-entrypoint: set MYSQL_ROOT_PASSWORD or MYSQL_ROOT_PASSWORD_FILE" >&2; exit 1; }
    find "$data" -mindepth 1 ! -name lost+found -delete
    # mysqld refuses a data folder with anything in it: the mark is set as soon as it has begun.
    mysqld --initialize-insecure "$@" &
    maker=$!
    until [ -e "$data/ibdata1" ] || ! kill -0 "$maker" 2> /dev/null; do sleep 0.05; done
    touch "$unfinished"
    wait "$maker"
    mysqld "$@" --skip-networking --socket="$socket" &
    server=$!
    until mysql --no-defaults --user=root --socket="$socket" --execute='SELECT 1' > /dev/null 2>&1; do
        kill -0 "$server" || exit 1
        sleep 0.1
    done
    host=$(literal "${MYSQL_ROOT_HOST:-%}")
    for file in /docker-entrypoint-initdb.d/*.sql; do
        [ ! -e "$file" ] || mysql --no-defaults --user=root --socket="$socket" < "$file"
    done
    mysql --no-defaults --user=root --socket="$socket" <<SQL
CREATE USER IF NOT EXISTS 'root'@$host IDENTIFIED BY $(literal "$password");
GRANT ALL ON *.* TO 'root'@$host WITH GRANT OPTION;
ALTER USER 'root'@'localhost' IDENTIFIED BY $(literal "$password");
SQL
    kill "$server"
    wait "$server"
    rm "$unfinished"
}

if [ ! -d "$data/mysql" ] || [ -e "$unfinished" ]; then initialise "$@"; fi
unset MYSQL_ROOT_PASSWORD
exec mysqld "$@"

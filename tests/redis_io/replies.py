"""Error replies of Redis, as different versions word them inside scripts and outside, and the error
that each becomes in both engines.
"""

from __future__ import annotations

from busmq_spark.errors import (
    BusError,
    LinkLost,
    RedisCommandRefused,
    RedisFull,
    RedisReadOnly,
    RedisUnauthorized,
    RedisWritesPaused,
)

_SCRIPT_6 = "ERR Error running script (call to f_1): @user_script:72: @user_script: 72: -"
_SCRIPT_7 = " script: 0123, on @user_script:72."
_NO_REPLICAS, _MISCONF = (
    "NOREPLICAS Not enough good replicas to write.",
    "MISCONF Redis is configured to save RDB snapshots, but it cannot",
)
REPLIES: dict[str, type[BusError]] = {
    "LOADING Redis is loading the dataset in memory": LinkLost,
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.": (
        LinkLost
    ),
    "TRYAGAIN Multiple keys request during rehashing of slot": LinkLost,
    "CLUSTERDOWN The cluster is down": LinkLost,
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.": LinkLost,
    "ERR max number of clients reached": LinkLost,
    "ERR max number of clients + cluster connections reached": LinkLost,
    _NO_REPLICAS: RedisWritesPaused,
    _SCRIPT_6 + _NO_REPLICAS: RedisWritesPaused,
    _NO_REPLICAS + _SCRIPT_7: RedisWritesPaused,
    "ERR " + _NO_REPLICAS.partition(" ")[2]: RedisWritesPaused,
    _MISCONF: RedisWritesPaused,
    _SCRIPT_6 + _MISCONF: RedisWritesPaused,
    "MISCONF Errors writing to the AOF file: No space left on device": RedisWritesPaused,
    "READONLY You can't write against a read only replica.": RedisReadOnly,
    _SCRIPT_6 + "READONLY You can't write against a read only replica.": RedisReadOnly,
    "OOM command not allowed when used memory > 'maxmemory'.": RedisFull,
    _SCRIPT_6 + "OOM command not allowed when used memory > 'maxmemory'.": RedisFull,
    "NOAUTH Authentication required.": RedisUnauthorized,
    "WRONGPASS invalid username-password pair or user is disabled.": RedisUnauthorized,
    "NOPERM this user has no permissions to run the 'get' command": RedisUnauthorized,
    "ERR The user executing the script can't run this command or subcommand": RedisUnauthorized,
    "EXECABORT Transaction discarded because of previous errors.": RedisCommandRefused,
    "WRONGTYPE Operation against a key holding the wrong kind of value": RedisCommandRefused,
    "BUSYGROUP Consumer Group name already exists": RedisCommandRefused,
    "ERR unknown command": RedisCommandRefused,
}

"""Error replies of Redis, as different versions word them inside scripts and outside, and the error
that each becomes in both engines.
"""

from __future__ import annotations

from busmq_spark.errors import (
    BusError,
    LinkLost,
    ReadOnly,
    ServerFull,
    ServerRefused,
    Unauthorized,
    WritesPaused,
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
    _NO_REPLICAS: WritesPaused,
    _SCRIPT_6 + _NO_REPLICAS: WritesPaused,
    _NO_REPLICAS + _SCRIPT_7: WritesPaused,
    "ERR " + _NO_REPLICAS.partition(" ")[2]: WritesPaused,
    _MISCONF: WritesPaused,
    _SCRIPT_6 + _MISCONF: WritesPaused,
    "MISCONF Errors writing to the AOF file: No space left on device": WritesPaused,
    "READONLY You can't write against a read only replica.": ReadOnly,
    _SCRIPT_6 + "READONLY You can't write against a read only replica.": ReadOnly,
    "OOM command not allowed when used memory > 'maxmemory'.": ServerFull,
    _SCRIPT_6 + "OOM command not allowed when used memory > 'maxmemory'.": ServerFull,
    "NOAUTH Authentication required.": Unauthorized,
    "WRONGPASS invalid username-password pair or user is disabled.": Unauthorized,
    "NOPERM this user has no permissions to run the 'get' command": Unauthorized,
    "ERR The user executing the script can't run this command or subcommand": Unauthorized,
    "EXECABORT Transaction discarded because of previous errors.": ServerRefused,
    "WRONGTYPE Operation against a key holding the wrong kind of value": ServerRefused,
    "BUSYGROUP Consumer Group name already exists": ServerRefused,
    "ERR unknown command": ServerRefused,
}

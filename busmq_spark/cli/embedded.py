"""``busmq embedded``: a real Redis for trying things out, gone without a trace at Ctrl-C."""

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.text import Text

from busmq_spark.cli.options import JsonOption
from busmq_spark.cli.output import CliOutput
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import ConfigError, LinkLost

ALIVE_CHECK_INTERVAL_S = 1.0


def embedded(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 picks a free one.")
    ] = 0,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            file_okay=False,
            help="Keep the data in this folder. Without it a temporary one is used and removed.",
        ),
    ] = None,
    aof: Annotated[
        bool,
        typer.Option(
            "--aof",
            help=(
                "Write every change to an append-only file in --dir, so that messages survive a"
                " restart."
            ),
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a Redis on this machine, to try things out.

    It listens on 127.0.0.1 only, and leaves no files unless --dir says so.

    ```
    busmq embedded
    busmq embedded --port 6379 --dir ./bus --aof
    ```
    """
    out = CliOutput(as_json)
    if aof and folder is None:
        raise ConfigError(
            reason=(
                "--aof keeps messages in a folder, and the temporary one is removed at the end."
                " Give --dir too"
            )
        )
    stop = threading.Event()

    def leave(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, leave)  # an orderly end that was asked for: exit code 0
    with EmbeddedRedis(folder, port=port, aof=aof) as server:
        _print_welcome(out, server, folder, aof)
        while not stop.wait(ALIVE_CHECK_INTERVAL_S):
            if not server.running:
                tail = " ".join(server.log.splitlines()[-3:])
                raise LinkLost(
                    url=server.url,
                    reason=f"the embedded server has ended by itself. Its log ends with: {tail}",
                )
        out.note("Redis stopped.")


def _print_welcome(out: CliOutput, server: EmbeddedRedis, folder: Path | None, aof: bool) -> None:
    if out.as_json:
        out.print_json(
            url=server.url,
            pid=server.pid,
            folder=str(server.folder),
            temporary=folder is None,
            aof=aof,
        )
        out.flush()
        return
    kept = "in a temporary folder that goes with it" if folder is None else f"in {folder}"
    durable = ", every change in the append-only file" if aof else ", messages in memory only"
    out.print_lines(
        Text.assemble("Redis is running at ", (server.url, "bold cyan"), f" {kept}{durable}."),
        "",
        "In another terminal:",
        Text(f"  export BUSMQ_REDIS_URL={server.url}", "green"),
        Text("  busmq push hello 'first message'", "green"),
        Text("  busmq tail hello", "green"),
        "",
        "In Spark:",
        Text(
            '  spark.readStream.format("busmq").option("redis.url",'
            f' "{server.url}").option("subscribe", "hello").load()',
            "green",
        ),
        "",
        Text("Ctrl-C ends it.", "dim"),
    )
    out.flush()

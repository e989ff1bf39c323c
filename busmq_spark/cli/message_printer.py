"""Messages to stdout, in the form asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from rich.text import Text

from busmq_spark.cli.options import check_exclusive
from busmq_spark.cli.output import CliOutput
from busmq_spark.cli.terminal_text import SHOWN_CHARS, value_json, value_text
from busmq_spark.errors import ConfigError
from busmq_spark.queue.message import Message


@dataclass(frozen=True, slots=True)
class MessagePrinter:
    """Writes messages of one queue; each call is flushed, so what it returned from has left this
    process.
    """

    out: CliOutput
    queue: str
    raw: bool
    null: bool

    def __post_init__(self) -> None:
        check_exclusive(json=self.out.as_json, raw=self.raw)
        if self.null and not self.raw:
            raise ConfigError(reason="--null separates the bytes that --raw writes. Give --raw too")

    def write(self, messages: Iterable[Message]) -> None:
        """All of them, in order."""
        if self.raw:
            end = b"\0" if self.null else b"\n"
            self.out.flush()
            sys.stdout.buffer.write(b"".join([message.value + end for message in messages]))
            sys.stdout.buffer.flush()
        elif self.out.as_json:
            sys.stdout.write("".join([self._json_line(message) for message in messages]))
        elif self.out.on_terminal:
            for message in messages:
                self.out.print_lines(
                    Text.assemble(
                        (f"{message.id:>6}", "cyan"), "  ", value_text(message.value, SHOWN_CHARS)
                    )
                )
        else:
            sys.stdout.write(
                "".join([f"{message.id:>6}  {value_text(message.value)}\n" for message in messages])
            )
        self.out.flush()

    def _json_line(self, message: Message) -> str:
        return (
            json.dumps({"queue": self.queue, "id": message.id, **value_json(message.value)}) + "\n"
        )

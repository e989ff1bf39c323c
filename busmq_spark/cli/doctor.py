"""``busmq doctor``: problems of Redis, the bus, a federation link or Spark, before they cost a
message.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from busmq_spark.cli.options import JsonOption
from busmq_spark.cli.output import CliOutput, escape_control_characters, format_count, one_line
from busmq_spark.cli.queue_lookup import open_links
from busmq_spark.doctor.bus import check_outboxes
from busmq_spark.doctor.federation import check_federation
from busmq_spark.doctor.findings import CHECKS, Finding, Level, exit_code
from busmq_spark.doctor.gather import GAP_S, examine, read_federation, read_outbox
from busmq_spark.doctor.spark import check_checkpoint, check_spark
from busmq_spark.environment import read_variable
from busmq_spark.errors import ConfigError
from busmq_spark.options import RedisOptions
from busmq_spark.spark.facts import check_checkpoint_folder, read_spark, start_session

if TYPE_CHECKING:
    from busmq_spark.federation.address import FederationAddress

MAX_GAP_S = 3600
STYLES: dict[Level, str] = {
    "ok": "green",
    "warning": "yellow",
    "failure": "bold red",
    "unknown": "magenta",
}
ORDER: tuple[Level, ...] = ("failure", "unknown", "warning", "ok")


def doctor(  # noqa: PLR0913  # the options of a command
    *,
    list_checks: Annotated[
        bool, typer.Option("--list", help="List the checks, and make none.")
    ] = False,
    all_: Annotated[
        bool, typer.Option("--all", help="Show the checks that are fine, too.")
    ] = False,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            "--skip",
            metavar="CODE",
            help="Leave out the findings of this check. Repeatable.",
            show_default=False,
        ),
    ] = None,
    acl_user: Annotated[
        str,
        typer.Option(
            "--acl-user",
            metavar="NAME",
            help="Check the rights of this user of Redis, not those of --user.",
            show_default=False,
        ),
    ] = "",
    gap: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            max=MAX_GAP_S,
            help="Time between two looks at the memory of Redis. A longer one gives a better rate.",
        ),
    ] = GAP_S,
    outbox: Annotated[
        list[Path] | None,
        typer.Option(
            "--outbox",
            metavar="FILE",
            help="Check this outbox, too. Repeatable.",
            show_default=False,
        ),
    ] = None,
    federation_urls: Annotated[
        list[str] | None,
        typer.Option(
            "--url",
            metavar="WSS_URL",
            help=(
                "Check this federation server. Its secret is taken from BUSMQ_FEDERATION_SECRET."
                " Repeatable."
            ),
            show_default=False,
        ),
    ] = None,
    federation_ca: Annotated[
        str | None,
        typer.Option(
            "--url-tls-ca",
            metavar="FILE",
            help="PEM file of the authority to trust with --url.",
            show_default=False,
        ),
    ] = None,
    spark: Annotated[
        bool,
        typer.Option("--spark", help="Start Spark with its settings here, and check it."),
    ] = False,
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            "--checkpoint",
            metavar="DIR",
            help="Check that this checkpoint folder supports fsync and rename. Repeatable.",
            show_default=False,
        ),
    ] = None,
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """Find failures before they come: a full Redis, expiring queues, unused subscriptions.

    Each finding has a code, its reason and the command that fixes it. The exit code is 0 when all
    is well, 1 for warnings, 2 for failures and for checks that could not be made.

    ```
    busmq doctor
    busmq doctor --list
    busmq doctor --acl-user spark --skip redis-min-replicas
    busmq doctor --url wss://bus.example.com/bus
    busmq doctor --spark --checkpoint /data/checkpoints
    busmq doctor --json | jq 'select(.level != "ok")'
    ```
    """
    out = CliOutput(as_json)
    left_out = check_codes(skip or [])
    if list_checks:
        _print_checks(out)
        return
    found: list[Finding] = []
    links_to = [_federation_address(each, federation_ca) for each in federation_urls or ()]
    if redis.url or not (outbox or links_to or spark or checkpoint):
        with open_links(redis) as links:
            found += examine(links, user=acl_user, gap_s=gap)
    for address in links_to:
        found += check_federation(read_federation(address))
    if spark:
        found += check_spark(read_spark(start_session))
    found += [check_checkpoint(each, check_checkpoint_folder(each)) for each in checkpoint or ()]
    found += check_outboxes([read_outbox(path) for path in outbox or ()])
    shown = sorted(
        (each for each in found if each.code not in left_out),
        key=lambda each: ORDER.index(each.level),
    )
    if as_json:
        for each in shown:
            out.print_json(**each.to_json())
    else:
        _print_findings(out, shown, all_=all_)
    raise typer.Exit(exit_code(shown))


def _federation_address(url: str, authority: str | None) -> "FederationAddress":
    """Raises ConfigError for an address, a secret or a file that cannot be used."""
    from busmq_spark.federation.address import FederationAddress

    secret = read_variable("BUSMQ_FEDERATION_SECRET") or ""
    address = FederationAddress(url, secret, tls_ca=authority)
    address.check_offline()
    return address


def check_codes(codes: Iterable[str]) -> set[str]:
    """Return the codes; raises ConfigError for one that is none."""
    wrong = [code for code in codes if code not in CHECKS]
    if wrong:
        raise ConfigError(
            reason=f"--skip is {wrong[0]!r}; expected a code that busmq doctor --list shows"
        )
    return set(codes)


def _print_checks(out: CliOutput) -> None:
    for check in CHECKS.values():
        if out.as_json:
            out.print_json(code=check.code, subject=check.subject, title=check.title, why=check.why)
        else:
            out.print_lines(
                Text.assemble((check.code, "cyan"), f"  {check.title}"), f"    {check.why}"
            )


def _print_findings(out: CliOutput, found: list[Finding], *, all_: bool) -> None:
    for each in found:
        if each.level == "ok" and not all_:
            continue
        head = Text.assemble(
            (f"{each.level:8}", STYLES[each.level]),
            (each.code, "cyan"),
            f"  {escape_control_characters(each.where)}",
        )
        lines: list[str | Text] = [head, f"        {one_line(each.found)}"]
        if each.level != "ok":
            lines.append(f"        why: {CHECKS[each.code].why}")
        if each.fix:
            lines.append(f"        fix: {escape_control_characters(each.fix)}")
        out.print_lines(*lines)
    counts = {level: sum(each.level == level for each in found) for level in ORDER}
    fine = f"{format_count(counts['ok'], 'check')} fine"
    parts = [
        format_count(counts["failure"], "failure"),
        format_count(counts["warning"], "warning"),
        f"{counts['unknown']} not made",
        fine,
    ]
    out.print_lines(", ".join(parts))

"""``busmq token``: makes a token that grants access for a limited time, without the secret."""

from typing import Annotated

import typer

from busmq_spark.cli.options import JsonOption, parse_seconds
from busmq_spark.cli.output import CliOutput
from busmq_spark.cli.serve import AudienceOption, SecretsFolderOption, SecretsOption
from busmq_spark.errors import ConfigError
from busmq_spark.federation.gate.keyring import Keyring

_PATTERN_OPTION_HELP = (
    "pattern; may be repeated. With any of these options the token may only do what they and the"
    " secret allow."
)


def token(  # noqa: PLR0913  # the options of a command
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Which secret of the file to sign with.", show_default=False
        ),
    ],
    *,
    secrets: SecretsOption = None,
    secrets_dir: SecretsFolderOption = None,
    expires: Annotated[
        str, typer.Option(metavar="TIME", help="How long it lets in: 90s, 15m, 12h, 7d.")
    ] = "1h",
    read: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help=f"Narrow it to reading these: {_PATTERN_OPTION_HELP}"),
    ] = None,
    write: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="To writing these.")
    ] = None,
    browse: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="To looking at these, a part of --read."),
    ] = None,
    consume: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="To taking from these, a part of --read."),
    ] = None,
    push: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="To pushing to these, a part of --write."),
    ] = None,
    create: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="To creating these, a part of --write."),
    ] = None,
    admin: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="To administering these.")
    ] = None,
    events: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="To subscribing to events of these patterns."),
    ] = None,
    deny: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="To all but these.")
    ] = None,
    audience: AudienceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Sign a token, which a peer shows instead of the secret until it expires.

    A token ends with the secret that signed it. Of two secrets of a name the first one signs.

    ```
    busmq token reports --secrets secrets.toml --expires 12h --read 'orders-*'
    ```
    """
    out = CliOutput(as_json)
    if secrets is None:
        raise ConfigError(
            reason="no secrets are named. Give --secrets FILE, the one that busmq serve is given"
        )
    given = {
        "read": read,
        "write": write,
        "browse": browse,
        "consume": consume,
        "push": push,
        "create": create,
        "admin": admin,
    }
    given |= {"events": events, "deny": deny}
    narrow = {verb: patterns for verb, patterns in given.items() if patterns}
    expires_s = parse_seconds(expires, "--expires")
    keyring = Keyring.load(secrets, secrets_dir)
    if list(narrow) == ["deny"]:
        narrow |= {"read": ["*"], "write": ["*"], "admin": ["*"], "events": ["#"]}
    made = keyring.sign(name, expires_s, narrow or None, audience=audience)
    if as_json:
        out.print_json(token=made, name=name, expires_in_s=expires_s)
    else:
        print(made)

"""``busmq serve`` and ``busmq token``."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from busmq_spark.cli.options import parse_listen_address
from busmq_spark.cli.serve import limits_with
from busmq_spark.errors import ConfigError
from busmq_spark.federation.gate.handshake import is_loopback
from busmq_spark.federation.gate.keyring import Keyring
from tests.cli.conftest import Busmq, Start, line_of
from tests.conftest import Fresh
from tests.federation.raw import CLOSE, Object, Raw
from tests.support import PATIENCE_S
from tests.tls import Authority

pytestmark = pytest.mark.redis
SECRET = "a-secret-of-some-length"


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    path = tmp_path / "secrets.toml"
    path.write_text(f'[reports]\nsecret = "{SECRET}"\nread = ["*"]\nwrite = ["*"]\n')
    path.chmod(0o600)
    return path


def serving(process: subprocess.Popen[bytes]) -> tuple[dict[str, Any], int]:
    found = json.loads(line_of(process))
    return found, int(re.findall(r":(\d+)/", found["url"])[0])


def test_it_serves_the_bus_and_ends_at_a_signal(start: Start, fresh: Fresh, secrets: Path) -> None:
    for number, code in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
        process = start(
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--path",
            "/the/bus",
            "--secrets",
            str(secrets),
            "--json",
        )
        found, port = serving(process)
        assert found["url"] == f"ws://127.0.0.1:{port}/the/bus"
        assert (found["secrets"], found["protocols"], found["pages"]) == (
            ["reports"],
            ["busmq", "busmq.bulk.v1"],
            ["/healthz", "/livez", "/readyz", "/metrics"],
        )

        async def talk(
            port: int, number: signal.Signals, process: subprocess.Popen[bytes] = process
        ) -> bytes:
            raw = await Raw.open(port, f"/the/bus?secret={SECRET}")
            queue = await Object(raw).create("queue", ["exists", "attach", "push"], fresh())
            assert await queue.call("exists") == [None, False]
            process.send_signal(number)
            while (last := await raw.message())[0] != CLOSE:
                pass
            await raw.close()
            return last[1]

        assert asyncio.run(talk(port, number))[:2] == (1001).to_bytes(2, "big")
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out, b"Traceback" in err) == (code, b"", False)
        assert SECRET not in err.decode()


def test_without_secrets_one_is_made_for_the_run_and_printed_on_stderr_only(start: Start) -> None:
    secrets = []
    for _ in range(2):
        process = start("serve", "--listen", "127.0.0.1:0", "--json")
        assert process.stderr is not None
        note = json.loads(process.stderr.readline())["note"]
        [secret] = re.findall(r"secret of this run is (\S+)", note)
        assert "--secrets" in note
        secrets.append(secret)
        found, port = serving(process)
        assert secret not in json.dumps(found)

        async def tried(port: int, secret: str) -> None:
            with pytest.raises(ConnectionRefusedError, match="401"):
                await Raw.open(port, "/bus?secret=notsosecret")
            with pytest.raises(ConnectionRefusedError, match="401"):
                await Raw.open(port, "/bus")
            await (await Raw.open(port, f"/bus?secret={secret}")).close()

        asyncio.run(tried(port, secret))
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    assert len({*secrets}) == 2
    assert min(map(len, secrets)) >= 32


@pytest.mark.parametrize("host", ["0.0.0.0:0", "example.com:0"])
def test_without_secrets_only_this_machine_is_served(busmq: Busmq, host: str) -> None:
    done = busmq("serve", "--listen", host, "--json")
    assert (done.code, done.error["code"]) == (2, "BUSMQ_CONFIG")
    assert "--secrets" in done.error["message"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--path", "/metrics"],
        ["--origin", "https://app.example.com/page"],
        ["--limit", "conections=5"],
        ["--tls-key", "key.pem"],
        ["--tls-cert", "no-such.pem"],
        ["--secrets", "no-such.toml"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_meant_is_exit_code_2(busmq: Busmq, arguments: list[str]) -> None:
    done = busmq("serve", "--listen", "127.0.0.1:0", *arguments, "--json")
    assert (done.code, done.out, done.error["code"]) == (2, b"", "BUSMQ_CONFIG")


def test_a_secrets_file_for_everybody_is_refused_and_not_shown(busmq: Busmq, secrets: Path) -> None:
    secrets.chmod(0o644)
    done = busmq("serve", "--secrets", str(secrets))
    assert done.code == 2
    assert "chmod o-rwx" in done.err
    assert SECRET not in done.err


def test_a_taken_port_is_exit_code_1_and_no_redis_is_2(busmq: Busmq, start: Start) -> None:
    process = start("serve", "--listen", "127.0.0.1:0", "--json")
    _, port = serving(process)
    done = busmq("serve", "--listen", f"127.0.0.1:{port}")
    assert done.code == 1
    assert "in use" in done.err
    assert busmq("serve", url=None).code == 2


def test_with_a_certificate_it_speaks_tls_only(start: Start, secrets: Path, tmp_path: Path) -> None:
    authority = Authority.in_(tmp_path / "ca")
    certificate, key = authority.issue("localhost")
    files = ["--tls-cert", str(certificate), "--tls-key", str(key)]
    process = start("serve", "--listen", "localhost:0", "--secrets", str(secrets), *files, "--json")
    found, port = serving(process)
    assert found["url"].startswith("wss://")

    async def tried() -> None:
        import ssl

        trusting = ssl.create_default_context(cafile=str(authority.file))
        raw = await Raw.open(
            port, f"/bus?secret={SECRET}", ssl=trusting, server_hostname="localhost"
        )
        await raw.close()
        with pytest.raises(ssl.SSLCertVerificationError):
            await Raw.dial(port, ssl=ssl.create_default_context(), server_hostname="localhost")
        plain = await Raw.dial(port)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await plain.ask(b"GET /healthz HTTP/1.1\r\n\r\n")
        await plain.close()

    asyncio.run(tried())


def test_a_token_lets_in_as_far_as_it_was_narrowed(busmq: Busmq, secrets: Path) -> None:
    ring = Keyring.load(secrets)
    made = busmq(
        "token", "reports", "--secrets", str(secrets), "--expires", "15m", "--read", "orders-*"
    ).text.strip()
    found = ring.identify_token(made)
    assert found is not None
    assert [found.may(verb, "queue", "orders-1") for verb in ("read", "write", "admin")] == [
        True,
        False,
        False,
    ]
    denying = ring.identify_token(
        busmq(
            "token", "reports", "--secrets", str(secrets), "--deny", "orders-*", "--json"
        ).records[0]["token"]
    )
    assert denying is not None
    assert [denying.may("write", "queue", name) for name in ("orders-1", "other")] == [False, True]
    for wrong in (["nobody"], ["reports", "--expires", "soon"], ["reports", "--read", "queues:x"]):
        assert busmq("token", *wrong, "--secrets", str(secrets)).code == 2
    assert busmq("token", "reports").code == 2


def test_where_to_listen() -> None:
    assert [
        parse_listen_address(text)
        for text in ("127.0.0.1:80", "localhost", "[::1]:0", "[::]", "example.com:443")
    ] == [
        ("127.0.0.1", 80),
        ("localhost", 7130),
        ("::1", 0),
        ("::", 7130),
        ("example.com", 443),
    ]
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost")] == [
        True
    ] * 4
    assert [
        is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.example.com", "")
    ] == [False] * 5
    for text in ("", ":80", "::1:80", "a b:1", "host:port", "host:99999"):
        with pytest.raises(ConfigError):
            parse_listen_address(text)


def test_limits_by_name() -> None:
    limits = limits_with(["connections=5", "send_s=0.5"])
    assert (limits.connections, limits.send_s) == (5, 0.5)
    assert type(limits.connections) is int
    for text in (
        "conections=5",
        "connections=0",
        "connections=1.5",
        "connections",
        "send_s=x",
        "=5",
    ):
        with pytest.raises(ConfigError):
            limits_with([text])

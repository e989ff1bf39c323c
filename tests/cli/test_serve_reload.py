"""``busmq serve`` while it runs: SIGHUP, and certificates of clients."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Start, line_of
from tests.federation.raw import Raw, frame, request
from tests.support import PATIENCE_S
from tests.tls import Authority


def secrets(path: Path, **tables: str) -> None:
    path.write_text(
        "".join(
            f'[{name}]\nsecret = "{secret}"\nread = ["*"]\nwrite = ["*"]\n'
            for name, secret in tables.items()
        )
    )
    path.chmod(0o600)


async def status(port: int, secret: str, tls: ssl.SSLContext | None = None) -> int:
    raw = await Raw.dial(port, **({"ssl": tls, "server_hostname": "localhost"} if tls else {}))
    try:
        return (await raw.ask(request("/bus", f"Authorization: Bearer {secret}")))[0]
    finally:
        await raw.close()


@pytest.mark.redis
def test_sighup_reloads_secrets_and_certificates_and_cuts_off_who_has_none_any_more(
    start: Start, tmp_path: Path
) -> None:
    path, old, new = (
        tmp_path / "secrets.toml",
        Authority.in_(tmp_path / "old"),
        Authority.in_(tmp_path / "new"),
    )
    secrets(path, stays="secret-that-stays-the-same", goes="secret-that-goes-away")
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    put(old, certificate, key)
    process = start(
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--secrets",
        str(path),
        "--tls-cert",
        str(certificate),
        "--tls-key",
        str(key),
        "--json",
    )
    port = int(json.loads(line_of(process))["url"].rpartition(":")[2].partition("/")[0])

    async def run() -> None:
        trusting = {each: ssl.create_default_context(cafile=each.file) for each in (old, new)}
        opened = [
            await Raw.open(
                port,
                "/bus",
                f"Authorization: Bearer {secret}",
                ssl=trusting[old],
                server_hostname="localhost",
            )
            for secret in ("secret-that-stays-the-same", "secret-that-goes-away")
        ]
        path.write_text("nonsense")
        process.send_signal(signal.SIGHUP)
        await asyncio.to_thread(said, process, "nothing is reloaded")
        assert await status(port, "secret-that-goes-away", trusting[old]) == 101
        put(new, certificate, key)
        secrets(path, stays="secret-that-stays-the-same", goes="another-secret-than-before")
        process.send_signal(signal.SIGHUP)
        await asyncio.to_thread(said, process, "read anew")
        async with asyncio.timeout(PATIENCE_S):
            await opened[1].drained()
        found = [
            await status(port, each, trusting[new])
            for each in ("secret-that-goes-away", "another-secret-than-before")
        ]
        assert found == [401, 101]
        opened[0].send(frame(b"ping", 9))
        assert (await opened[0].message())[1] == b"ping"
        for each in opened:
            await each.close()

    asyncio.run(run())


def put(authority: Authority, certificate: Path, key: Path) -> None:
    """A new certificate in the place of the one before."""
    for source, target in zip(authority.issue("localhost"), (certificate, key), strict=True):
        target.write_bytes(source.read_bytes())


def said(process: subprocess.Popen[bytes], words: str) -> None:
    """Until a line of its log has these words."""
    assert process.stderr is not None
    for line in process.stderr:
        if words.encode() in line:
            return
    raise AssertionError(f"it never said {words!r}")


@pytest.mark.redis
def test_with_an_authority_of_clients_only_those_with_its_certificate_get_as_far_as_the_secret(
    start: Start, tmp_path: Path
) -> None:
    path, authority = tmp_path / "secrets.toml", Authority.in_(tmp_path)
    certificate, key = authority.issue("localhost")
    secrets(path, all="secret-that-stays-the-same")
    files = (
        "--tls-cert",
        str(certificate),
        "--tls-key",
        str(key),
        "--tls-client-ca",
        str(authority.file),
    )
    process = start("serve", "--listen", "127.0.0.1:0", "--secrets", str(path), *files, "--json")
    port = int(json.loads(line_of(process))["url"].rpartition(":")[2].partition("/")[0])

    async def run() -> None:
        stranger, known = (ssl.create_default_context(cafile=authority.file) for _ in range(2))
        known.load_cert_chain(*authority.issue("client"))
        assert await status(port, "secret-that-stays-the-same", known) == 101
        with pytest.raises((OSError, EOFError)):
            await status(port, "secret-that-stays-the-same", stranger)

    asyncio.run(run())


def mount(folder: Path, version: str, **files: str) -> None:
    """Put files where Kubernetes mounts them: the link ``..data`` changes for all at once."""
    (made := folder / f"..{version}").mkdir()
    for name, text in files.items():
        (made / name).write_text(text)
        (made / name).chmod(0o440)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    (folder / "..new").symlink_to(made.name)
    (folder / "..new").rename(folder / "..data")
    for link in folder.iterdir():
        if not link.exists():
            link.unlink()


@pytest.mark.redis
def test_a_mounted_secret_is_rotated_without_a_cut(start: Start, tmp_path: Path) -> None:
    old, new = "the-secret-of-yesterday", "the-secret-of-tomorrow"
    rights, folder = tmp_path / "rights.toml", tmp_path / "mounted"
    rights.write_text('[app]\nread = ["*"]\nwrite = ["*"]\n')
    rights.chmod(0o644)
    folder.mkdir()
    mount(folder, "1", app=old)
    process = start(
        *("serve", "--listen", "127.0.0.1:0", "--json"),
        *("--secrets", str(rights), "--secrets-dir", str(folder)),
    )
    port = int(json.loads(line_of(process))["url"].rpartition(":")[2].partition("/")[0])

    async def run() -> None:
        peer = await Raw.open(port, "/bus", f"Authorization: Bearer {old}")
        mount(folder, "2", **{"app": new + "\n", "app.previous": old})
        await asyncio.to_thread(said, process, "read anew")
        assert [await status(port, each) for each in (new, old)] == [101, 101]
        peer.send(frame(b"ping", 9))
        assert (await peer.message())[1] == b"ping"
        mount(folder, "3", app=new)
        await asyncio.to_thread(said, process, "read anew")
        async with asyncio.timeout(PATIENCE_S):
            await peer.drained()
        assert [await status(port, each) for each in (new, old)] == [101, 401]
        (folder / "..3" / "app").chmod(0o644)
        process.send_signal(signal.SIGHUP)
        await asyncio.to_thread(said, process, "nothing is reloaded")
        assert await status(port, new) == 101
        await peer.close()

    asyncio.run(run())

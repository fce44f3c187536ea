"""TLS between hosts, by the certificates that Ray uses."""

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from raydix.errors import ConfigError
from raydix.runtime.actors.links import socket_link
from raydix.runtime.actors.links.link import Link, LinkClosed, LinkRefused, LinkSilent
from raydix.runtime.actors.links.socket_dialer import connect
from raydix.runtime.actors.links.socket_listener import Listener, listen
from raydix.runtime.actors.links.tls import TlsFiles
from tests.runtime.actors.links.link_ends import FAR, NEAR, SECRET, large, numbered

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="needs the command openssl (apt-get install openssl)"
)


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def certified(folder: Path, names: str) -> TlsFiles:
    """A new authority, and a certificate of it for these names."""
    folder.mkdir()
    request = ("req", "-newkey", "rsa:2048", "-nodes", "-subj")
    openssl(folder, *request, "/CN=authority", "-x509", "-keyout", "ca.key", "-out", "ca.crt")
    openssl(folder, *request, "/CN=node", "-keyout", "node.key", "-out", "node.csr")
    (folder / "names").write_text(f"subjectAltName={names}\n")
    sign = ("x509", "-req", "-in", "node.csr", "-CA", "ca.crt", "-CAkey", "ca.key")
    openssl(folder, *sign, "-CAcreateserial", "-extfile", "names", "-out", "node.crt")
    paths = (str(folder / name) for name in ("node.crt", "node.key", "ca.crt"))
    return TlsFiles(**dict(zip(("certificate", "key", "authority"), paths, strict=True)))


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return certified(tmp_path_factory.mktemp("tls") / "ours", "DNS:localhost,IP:127.0.0.1")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return certified(tmp_path_factory.mktemp("tls") / "theirs", "IP:127.0.0.1")


async def listening(files: TlsFiles | None) -> tuple[Listener, "asyncio.Queue[Link]"]:
    links: asyncio.Queue[Link] = asyncio.Queue()
    tls = None if files is None else files.for_listener()
    return await listen("tcp:127.0.0.1:0", NEAR, SECRET, links.put, tls=tls), links


async def test_links_go_through_tls(ours: TlsFiles) -> None:
    listener, links = await listening(ours)
    far = await connect(listener.address, FAR, SECRET, tls=ours.for_dialer())
    near = await links.get()
    near.send(large(1 << 18))
    far.send(numbered(3))
    assert await near.receive() == numbered(3)
    assert await far.receive()
    far.close()
    with pytest.raises(LinkClosed):
        await near.receive()
    await listener.close()


async def test_the_secret_is_asked_for_under_tls_too(ours: TlsFiles) -> None:
    listener, links = await listening(ours)
    with pytest.raises(LinkRefused):
        await connect(listener.address, FAR, b"guess", tls=ours.for_dialer())
    assert links.empty()
    await listener.close()


async def test_certificates_of_another_authority_are_refused_by_either_end(
    ours: TlsFiles, theirs: TlsFiles
) -> None:
    listener, links = await listening(ours)
    with pytest.raises(LinkRefused, match="TLS"):
        await connect(listener.address, FAR, SECRET, tls=theirs.for_dialer())
    # It believes the listener, which does not believe it.
    mixed = TlsFiles(
        certificate=theirs.certificate, key=theirs.key, authority=ours.authority
    ).for_dialer()
    with pytest.raises(LinkRefused):
        await connect(listener.address, FAR, SECRET, tls=mixed)
    assert links.empty()
    await listener.close()


async def test_a_certificate_is_good_for_the_host_that_it_names(theirs: TlsFiles) -> None:
    listener, links = await listening(theirs)
    elsewhere = listener.address.replace("127.0.0.1", "localhost")
    with pytest.raises(LinkRefused, match="localhost"):
        await connect(elsewhere, FAR, SECRET, tls=theirs.for_dialer())
    assert links.empty()
    await listener.close()


async def test_an_end_with_tls_and_one_without_do_not_meet(
    ours: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_link, "HANDSHAKE_S", 0.2)
    # Without TLS a dialer waits for a greeting, and the listener for TLS to begin.
    for at_listener, at_dialer, end in ((ours, None, LinkSilent), (None, ours, LinkRefused)):
        listener, links = await listening(at_listener)
        tls = None if at_dialer is None else at_dialer.for_dialer()
        with pytest.raises(end):
            await connect(listener.address, FAR, SECRET, tls=tls)
        assert links.empty()
        await listener.close()


async def test_connections_that_fail_tls_keep_nobody_out(
    ours: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener, links = await listening(ours)
    port = listener.port
    for _ in range(300):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        writer.close()
    far = await connect(listener.address, FAR, SECRET, tls=ours.for_dialer())
    assert (await links.get()).hello == FAR
    far.close()
    await listener.close()


def test_rays_variables_name_the_files() -> None:
    files = {
        "RAY_TLS_SERVER_CERT": "/c",
        "RAY_TLS_SERVER_KEY": "/k",
        "RAY_TLS_CA_CERT": "/a",
    }
    assert TlsFiles.of(files) is None
    assert TlsFiles.of({**files, "RAY_USE_TLS": "0"}) is None
    assert TlsFiles.of({**files, "RAY_USE_TLS": "1"}) == TlsFiles(
        certificate="/c", key="/k", authority="/a"
    )
    with pytest.raises(ConfigError, match="RAY_TLS_SERVER_KEY, RAY_TLS_CA_CERT is not"):
        TlsFiles.of({"RAY_USE_TLS": "1", "RAY_TLS_SERVER_CERT": "/c"})


def test_files_that_cannot_be_used_are_named() -> None:
    files = TlsFiles(certificate="/c", key="/k", authority="/a")
    for load in (files.for_listener, files.for_dialer):
        with pytest.raises(ConfigError, match="/c, /k and /a cannot be used"):
            load()

"""A Temporal of the operator's own: reached with its certificates and key, and missed clearly where it is another."""

import asyncio
import contextlib
import os
import ssl
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from perdure.local import DataParts
from perdure.local.config import ROOT
from perdure.local.services import external_temporal, wait_until_reachable
from perdure.temporal.client import connect, register_search_attributes
from tests.conftest import Urls

HOST = "127.0.0.1"


class Papers(NamedTuple):
    certificate: Path
    key: Path


class Authority:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        self.certificate = folder / "authority.pem"
        self._write("authority", self._name, self._key, own=True)

    def papers(self, name: str) -> Papers:
        key = ec.generate_private_key(ec.SECP256R1())
        self._write(name, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key, own=False)
        private = self._folder / f"{name}.key"
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        private.write_bytes(key.private_bytes(*form))
        return Papers(self._folder / f"{name}.pem", private)

    def _write(self, name: str, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, own: bool) -> None:
        now = datetime.now(UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=own, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address(HOST))]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        (self._folder / f"{name}.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def tls_address(authority: Authority, parts: DataParts) -> AsyncIterator[str]:
    """The address of a door in front of Temporal that asks for a client's certificate."""
    assert parts.temporal is not None
    host, _, port = parts.temporal.address.partition(":")
    papers = authority.papers("server")
    door = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    door.load_cert_chain(papers.certificate, papers.key)
    door.load_verify_locations(authority.certificate)
    door.verify_mode = ssl.CERT_REQUIRED
    door.set_alpn_protocols(["h2"])

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(65_536):
                writer.write(chunk)
                await writer.drain()
        writer.close()

    async def let_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(carry(reader, inner_writer), carry(inner_reader, writer))

    server = await asyncio.start_server(let_in, HOST, 0, ssl=door)
    yield f"{HOST}:{server.sockets[0].getsockname()[1]}"
    server.close()


def tls(authority: Authority, papers: Papers) -> dict[str, str]:
    paths = {"SERVER_CA_CERT": authority.certificate, "CLIENT_CERT": papers.certificate, "CLIENT_KEY": papers.key}
    return {f"TEMPORAL_TLS_{name}_PATH": str(path) for name, path in paths.items()}


@pytest.mark.parametrize("by", ["variables", "a profile"])
async def test_a_secured_cluster_is_reached_with_the_configured_certificates_and_key(
    tls_address: str, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    own = authority.papers("client")
    environ = {
        "TEMPORAL_ADDRESS": tls_address, "TEMPORAL_API_KEY": "a key", "TEMPORAL_TLS": "true", **tls(authority, own),
    }  # fmt: skip
    if by == "a profile":
        (tmp_path / "temporal.toml").write_text(
            f'[profile.work]\naddress = "{tls_address}"\napi_key = "a key"\n[profile.work.tls]\n'
            f'server_ca_cert_path = "{authority.certificate}"\nclient_cert_path = "{own.certificate}"\n'
            f'client_key_path = "{own.key}"\n'
        )
        environ = {"TEMPORAL_CONFIG_FILE": str(tmp_path / "temporal.toml"), "TEMPORAL_PROFILE": "work"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    outside = external_temporal(environ)
    assert outside is not None and outside.address == tls_address
    await wait_until_reachable("TEMPORAL_ADDRESS", outside.address)
    client = await connect()
    await register_search_attributes(client)
    handle = await client.start_workflow("TurnWait", {}, id=f"through the door, by {by}", task_queue="nobody's")
    assert (await handle.describe()).workflow_type == "TurnWait"
    await handle.terminate()
    assert client.service_client.config.api_key == "a key"


async def test_without_a_certificate_of_the_clusters_authority_nothing_is_sent(
    tls_address: str, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "others").mkdir()
    foreign = Authority(tmp_path / "others").papers("client")
    for name, value in {"TEMPORAL_ADDRESS": tls_address, **tls(authority, foreign)}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeError):
        await connect()


async def test_a_missing_namespace_is_one_line_and_never_ready(urls: Urls, parts: DataParts, tmp_path: Path) -> None:
    assert parts.temporal is not None and parts.redis_url is not None
    given = {"DATABASE_URL": urls.app, "REDIS_URL": parts.redis_url, "TEMPORAL_ADDRESS": parts.temporal.address}
    given |= {"TEMPORAL_NAMESPACE": "misspelt", "PERDURE_READY_FILE": str(tmp_path / "ready")}
    command = (sys.executable, "worker.py", "--queues", "llm")
    worker = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env={**os.environ, **given}, stderr=PIPE)
    _, said = await worker.communicate()
    assert worker.returncode == 1 and not (tmp_path / "ready").exists()
    last = said.decode().splitlines()[-1]
    assert parts.temporal.address in last and "misspelt" in last

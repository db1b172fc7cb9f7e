"""A Kerberos realm in a folder: MIT's KDC on a free port of loopback, principals with keytabs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

from tests.registry.zookeeper.secured import free_port

REALM = "JOBPIPE.TEST"
START_SECONDS = 20.0

_KRB5 = """\
[libdefaults]
  default_realm = {realm}
  dns_lookup_kdc = false
  dns_lookup_realm = false
  dns_canonicalize_hostname = false
  rdns = false
  udp_preference_limit = 1
[realms]
  {realm} = {{
    kdc = 127.0.0.1:{port}
  }}
[domain_realm]
  localhost = {realm}
"""
_KDC = """\
[kdcdefaults]
  kdc_listen = 127.0.0.1:{port}
  kdc_tcp_listen = 127.0.0.1:{port}
[realms]
  {realm} = {{
    database_name = {folder}/principal
    key_stash_file = {folder}/stash
    acl_file = {folder}/acl
    max_life = 1h
  }}
[logging]
  kdc = FILE:{folder}/kdc.log
"""


def missing() -> str | None:
    """Return what is not installed here, None if all is."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    programs = [
        name for name in ("krb5kdc", "kdb5_util", "kadmin.local", "kinit") if shutil.which(name, path=path) is None
    ]
    if programs:
        return f"{programs[0]} (apt install krb5-kdc krb5-admin-server krb5-user)"
    if importlib.util.find_spec("kerberos") is None:
        return "the package kerberos (apt install libkrb5-dev gcc; pip install 'kerberos>=1.3.1')"
    return None


class Realm:
    """A running KDC. A context manager ends it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.port = free_port()
        self.config = folder / "krb5.conf"
        self.config.write_text(_KRB5.format(realm=REALM, port=self.port))
        (folder / "kdc.conf").write_text(_KDC.format(realm=REALM, port=self.port, folder=folder))
        self._environ = {
            **os.environ,
            "PATH": os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]),
            "KRB5_CONFIG": str(self.config),
            "KRB5_KDC_PROFILE": str(folder / "kdc.conf"),
        }
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")
        self._kdc: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Realm:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def keytab(self, principal: str) -> Path:
        """Make a principal with a random key; return its keytab."""
        path = self.folder / f"{principal.replace('/', '-')}.keytab"
        self._run("kadmin.local", "-r", REALM, "-q", f"addprinc -randkey {principal}")
        self._run("kadmin.local", "-r", REALM, "-q", f"ktadd -k {path} {principal}")
        return path

    def log_in(self, principal: str, tickets: Path, seconds: int) -> None:
        """Put a ticket that expires after so many seconds into a cache, as a person does."""
        keytab = self.folder / f"{principal.replace('/', '-')}.keytab"
        self._run("kinit", "-c", f"FILE:{tickets}", "-l", f"{seconds}s", "-k", "-t", str(keytab), principal)

    def has_ticket(self, tickets: Path) -> bool:
        """Tell whether a cache has a ticket that is still good."""
        return (
            subprocess.run(
                [self._find("klist"), "-s", "-c", f"FILE:{tickets}"], env=self._environ, timeout=30, check=False
            ).returncode
            == 0
        )

    def start(self) -> None:
        """Start the KDC, on the same port as before; return once it listens."""
        with (self.folder / "output").open("ab") as output:
            self._kdc = subprocess.Popen(
                [self._find("krb5kdc"), "-n", "-r", REALM],
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
            except OSError:
                assert self._kdc.poll() is None, (self.folder / "output").read_text()
                assert time.monotonic() < deadline, "the KDC does not listen"
                time.sleep(0.05)
            else:
                return

    def stop(self) -> None:
        """End the KDC; its principals stay."""
        kdc, self._kdc = self._kdc, None
        if kdc is not None:
            kdc.kill()
            kdc.wait(10.0)

    def _find(self, program: str) -> str:
        found = shutil.which(program, path=self._environ["PATH"])
        assert found is not None, program
        return found

    def _run(self, program: str, *arguments: str) -> None:
        command = [self._find(program), *arguments]
        done = subprocess.run(command, env=self._environ, capture_output=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr.decode()

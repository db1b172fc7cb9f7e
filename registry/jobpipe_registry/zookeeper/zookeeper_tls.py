"""TLS to ZooKeeper with a context of our own.

kazoo's own options trust every CA of the system besides the one given, and leave the host name unchecked unless told
otherwise; here only the given CA counts, the name of the host that was dialled must be in the certificate, and TLS is
1.2 or newer. There is no way to switch a check off.
"""

from __future__ import annotations

import os
import ssl
import stat

from jobpipe_registry.credentials import Tls
from jobpipe_registry.registry_errors import BadOption


def make_context(tls: Tls) -> ssl.SSLContext:
    """Return a context from the files as they are now.

    Raises:
        BadOption: a file is missing, unreadable or no PEM, the key is encrypted, is not that of the certificate, or
            may be read by group or others.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks names; not create_default_context: it trusts more CAs
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.hostname_checks_common_name = False
    try:
        context.load_verify_locations(cafile=tls.ca)
    except OSError as error:  # ssl.SSLError is one
        raise BadOption("ssl.ca", f"a readable file of CA certificates in PEM: {tls.ca} ({_cause(error)})") from error
    if tls.cert is not None and tls.key is not None:
        try:
            mode = stat.S_IMODE(os.stat(tls.key).st_mode)
            if mode & 0o077:
                text = f"a private key that only its owner may read (chmod 600), not mode {mode:04o}: {tls.key}"
                raise BadOption("ssl.key", text)
            context.load_cert_chain(tls.cert, tls.key, password=_no_password)
        except OSError as error:
            text = f"a certificate in PEM, {tls.cert}, with its private key {tls.key} ({_cause(error)})"
            raise BadOption("ssl.cert", text) from error
    return context


def _no_password() -> str:
    """OpenSSL would ask for it at the terminal."""
    raise BadOption("ssl.key", "a private key without a password")


def _cause(error: OSError) -> str:
    return getattr(error, "reason", None) or error.strerror or str(error)

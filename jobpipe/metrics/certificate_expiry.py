"""When the certificates of a configuration end."""

from __future__ import annotations

import logging

from jobpipe.config import Config
from jobpipe.discovery.configured_tls import credentials
from jobpipe.errors import JobpipeError
from jobpipe.metrics.metric_samples import CertificateSample

log = logging.getLogger(__name__)


def certificate_samples(config: Config) -> tuple[CertificateSample, ...]:
    """Return when the certificates end that are in force now; none of a file that cannot be read, which is logged."""
    from jobpipe.net.tls.certificates import describe_all

    found = []
    try:
        if (files := credentials(config)) is not None:
            for key, path in (("jobpipe.ssl.ca", files.ca), ("jobpipe.ssl.cert", files.cert)):
                ends = min(each.not_after for each in describe_all(path))  # a file may hold several
                found.append(CertificateSample(key, ends.timestamp()))
    except JobpipeError as error:
        log.warning("when the certificates end cannot be told: %s", error)
    return tuple(found)

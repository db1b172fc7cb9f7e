"""jobpipe: chain Spark Structured Streaming jobs directly over TCP. Typed rows, exactly once, no broker.

Each name below is loaded on first use, so that a process that does not use Spark does not load Spark. Importing jobpipe
makes Spark start its workers with this interpreter, unless another one has been chosen, a JVM is running already, or
the configuration names a cluster or Spark Connect (:mod:`jobpipe.spark.session.python_interpreter`).
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from jobpipe.spark.session.python_interpreter import choose as _choose_python

if TYPE_CHECKING:
    from jobpipe.config.job_secrets import secret
    from jobpipe.flows.flow_driver import Flow
    from jobpipe.flows.flow_settings import FlowState, FlowStatus, PartitionStatus
    from jobpipe.flows.user_function import FlowContext
    from jobpipe.publishing.plain_publisher import PlainPublisher, publisher
    from jobpipe.publishing.topic_publisher import SealedBatch
    from jobpipe.spark.flow.spark_flow import flow, flow_test
    from jobpipe.spark.register import register
    from jobpipe.spark.session.job_session import session
    from jobpipe.spark.sink.foreach_batch_sink import JobPipeSink
    from jobpipe.spark.termination.await_end import await_end
    from jobpipe.spark.termination.close import close
    from jobpipe.spark.termination.query_stop import stoppable
    from jobpipe.spark.termination.run import run
    from jobpipe.subscribing.python_client import Subscription, subscribe

__all__ = [
    "Flow",
    "FlowContext",
    "FlowState",
    "FlowStatus",
    "JobPipeSink",
    "PartitionStatus",
    "PlainPublisher",
    "SealedBatch",
    "Subscription",
    "await_end",
    "close",
    "flow",
    "flow_test",
    "publisher",
    "register",
    "run",
    "secret",
    "session",
    "stoppable",
    "subscribe",
]
__version__ = "0.1.0"

_HOME = {
    "Flow": "jobpipe.flows.flow_driver",
    "FlowContext": "jobpipe.flows.user_function",
    "FlowState": "jobpipe.flows.flow_settings",
    "FlowStatus": "jobpipe.flows.flow_settings",
    "JobPipeSink": "jobpipe.spark.sink.foreach_batch_sink",
    "PartitionStatus": "jobpipe.flows.flow_settings",
    "PlainPublisher": "jobpipe.publishing.plain_publisher",
    "SealedBatch": "jobpipe.publishing.topic_publisher",
    "Subscription": "jobpipe.subscribing.python_client",
    "await_end": "jobpipe.spark.termination.await_end",
    "close": "jobpipe.spark.termination.close",
    "flow": "jobpipe.spark.flow.spark_flow",
    "flow_test": "jobpipe.spark.flow.spark_flow",
    "publisher": "jobpipe.publishing.plain_publisher",
    "register": "jobpipe.spark.register",
    "run": "jobpipe.spark.termination.run",
    "secret": "jobpipe.config.job_secrets",
    "session": "jobpipe.spark.session.job_session",
    "stoppable": "jobpipe.spark.termination.query_stop",
    "subscribe": "jobpipe.subscribing.python_client",
}

_NEED_SPARK = {"JobPipeSink", "await_end", "register", "session", "stoppable"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'jobpipe' has no attribute {name!r}")
    if name in _NEED_SPARK and find_spec("pyspark") is None:
        from jobpipe.spark.session.supported_versions import none_installed

        raise none_installed(f"jobpipe.{name}")
    try:
        return getattr(import_module(_HOME[name]), name)
    except ImportError as error:
        from jobpipe.spark.session.supported_versions import of_pyarrow

        raise of_pyarrow(error) or error from None


_choose_python()

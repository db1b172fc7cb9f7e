"""To which topics routes lead."""

from __future__ import annotations

import pytest

from jobpipe.errors import ConfigError
from jobpipe.pipelines.file.spec import RouteSpec
from jobpipe.pipelines.model.routes import Routes
from jobpipe.pipelines.plugins.api import Topics

NONE = Topics(())


def routes(*pairs: tuple[str, str], symbol: str | None = None, source: Topics = NONE) -> Routes:
    specs = [
        RouteSpec.model_validate({"source-table": source, "sink-table": sink, "replace-symbol": symbol})
        for source, sink in pairs
    ]
    return Routes(specs, "others", source)


def test_by_the_whole_name_and_by_all_that_match() -> None:
    made = routes((r"orders\.\w+", "orders"), ("orders.eu", "europe"), ("refunds", "europe"))
    assert made.targets("orders.eu") == ("orders", "europe")
    assert made.targets("orders.us") == ("orders",)
    assert made.targets("refunds") == ("europe",)
    assert made.targets("my.orders.eu") == ("others",)
    assert made.fixed == ("orders", "europe", "others")


def test_by_the_name_of_the_source() -> None:
    """With a symbol, or the groups of the expression, as Flink CDC has them or Python."""
    assert routes((".*", "ods-<>"), symbol="<>").targets("orders") == ("ods-orders",)
    made = routes((r"(\w+)\.(\w+)", "$2-$1"), (r"(\w+)\.eu", r"\1.europe"))
    assert made.targets("orders.eu") == ("eu-orders", "orders.europe")
    assert made.fixed == ("others",)


@pytest.mark.parametrize(
    ("sink", "told"), [("<>", "would go back to orders"), ("a/<>", "'a/orders', which cannot name a topic")]
)
def test_what_names_no_other_topic(sink: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        routes((".*", sink), symbol="<>").targets("orders")


def test_a_topic_that_the_pattern_of_the_source_matches() -> None:
    """Its rows would come back, and go to copy-copy-orders."""
    made = routes((".*", "copy-<>"), symbol="<>", source=Topics((), ".*"))
    with pytest.raises(ConfigError, match="would go to copy-orders, which the job's subscribePattern matches"):
        made.targets("orders")
    assert routes((".*", "copy-<>"), symbol="<>", source=Topics((), "ord.*")).targets("orders") == ("copy-orders",)

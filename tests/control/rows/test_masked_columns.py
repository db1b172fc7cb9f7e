"""Which columns and fields a configuration masks, and that nothing of them is left."""

from __future__ import annotations

import pyarrow as pa
import pytest

from jobpipe.control.rows.masked_columns import MaskedColumns

BUYER = pa.struct([("name", pa.string()), ("card", pa.struct([("number", pa.string()), ("until", pa.int32())]))])
ROW = {"name": "Ann", "card": {"number": "4111", "until": 2030}}
ROWS = pa.RecordBatch.from_arrays(
    [
        pa.array([1, 2, 3]),
        pa.array([ROW, None, {"name": "Bo", "card": None}], BUYER),
        pa.array([[ROW], None, []], pa.list_(BUYER)),
        pa.array([[ROW], None, []], pa.large_list(BUYER)),
        pa.array([[ROW], None, [ROW]], pa.list_(BUYER, 1)),
        pa.array([[("first", ROW)], None, []], pa.map_(pa.string(), BUYER)),
        pa.array(["x", "y", None]),
    ],
    names=["n", "buyer", "buyers", "large", "fixed", "by_name", "a.b"],
)
NESTED = ("buyer", "buyers", "large", "fixed", "by_name")


def test_nothing_is_masked_by_default() -> None:
    masks = MaskedColumns((), "orders")
    assert masks.apply(ROWS).equals(ROWS)
    assert masks.names(ROWS.schema) == ()


@pytest.mark.parametrize("entry", ["n", "N", "orders.n", "ORDERS.N"])
def test_a_column(entry: str) -> None:
    masks = MaskedColumns((entry,), "orders")
    assert masks.apply(ROWS).schema.names == masks.schema(ROWS.schema).names == list(ROWS.schema.names[1:])
    assert masks.names(ROWS.schema) == ("n",)
    assert MaskedColumns(("payments.n",), "orders").apply(ROWS).equals(ROWS)
    capital = ROWS.rename_columns(["N", *ROWS.schema.names[1:]])
    assert masks.names(capital.schema) == ("N",)


@pytest.mark.parametrize("column", NESTED)
@pytest.mark.parametrize("rows", [ROWS, ROWS.slice(1), ROWS.slice(0, 1)], ids=["all", "the last", "the first"])
def test_a_field(column: str, rows: pa.RecordBatch) -> None:
    """Also within lists and maps; what is null stays null."""
    masks = MaskedColumns((f"{column}.card.number",), "orders")
    left = masks.apply(rows)
    assert left.schema.equals(masks.schema(rows.schema))
    left.validate(full=True)
    assert masks.names(rows.schema) == (f"{column}.card.number",)
    assert "4111" not in str(left.column(column).to_pylist())
    assert str(left.column(column).to_pylist()) == str(rows.column(column).to_pylist()).replace(
        "'number': '4111', ", ""
    )


def test_a_column_whose_fields_are_all_masked() -> None:
    masks = MaskedColumns(("buyer.name", "buyer.card.number", "buyer.card.until"), "orders")
    assert "buyer" not in masks.apply(ROWS).schema.names
    assert masks.names(ROWS.schema) == ("buyer",)


def test_an_entry_of_two_meanings_masks_both() -> None:
    """The column ``b`` of topic ``a``, and the column that is called ``a.b``."""
    assert "a.b" not in MaskedColumns(("a.b",), "orders").apply(ROWS).schema.names
    renamed = ROWS.rename_columns(["b", *ROWS.schema.names[1:]])
    assert MaskedColumns(("a.b",), "a").names(renamed.schema) == ("b", "a.b")


def test_all_columns() -> None:
    """As many rows are left, without columns."""
    left = MaskedColumns(ROWS.schema.names, "orders").apply(ROWS)
    assert (left.num_rows, left.num_columns) == (3, 0)


OTHERS = {
    "list_view": pa.list_view(BUYER),
    "union": pa.dense_union([pa.field("a", BUYER), pa.field("b", pa.int64())]),
    "run_end": pa.run_end_encoded(pa.int32(), BUYER),
}


@pytest.mark.parametrize("kind", OTHERS.values(), ids=OTHERS)
def test_a_type_that_cannot_be_made_again_goes_as_a_whole(kind: pa.DataType) -> None:
    """If something in it is masked; else it stays."""
    schema = pa.schema([pa.field("buyer", kind), pa.field("n", pa.int64())])
    assert MaskedColumns(["buyer.card"], "orders").schema(schema).names == ["n"]
    assert MaskedColumns(["buyer.card"], "orders").names(schema) == ("buyer",)
    assert MaskedColumns(["n.card"], "orders").schema(schema) == schema


@pytest.mark.parametrize(
    "entry", ["buyers.element.card", "buyers.item.card", "by_name.value.card", "orders.buyers.element.card"]
)
def test_the_items_of_lists_and_maps_may_be_named(entry: str) -> None:
    """As Spark and Arrow name them."""
    column = "by_name" if "by_name" in entry else "buyers"
    assert MaskedColumns([entry], "orders").names(ROWS.schema) == (f"{column}.card",)


def test_names_are_compared_in_one_form_of_unicode() -> None:
    schema = pa.schema([pa.field("cafe\u0301", pa.string()), pa.field("n", pa.int64())])
    assert MaskedColumns(["caf\u00e9"], "orders").schema(schema).names == ["n"]


def test_a_masked_row_of_dead_letters_masks_all_that_has_its_values() -> None:
    """Of another topic with a column of that name, the column alone."""
    letters = pa.schema([pa.field(name, pa.string()) for name in ("row", "stage", "source_row", "error_message")])
    assert MaskedColumns(["row"], "t.dead-letters").schema(letters).names == ["stage"]
    assert MaskedColumns(["stage"], "t.dead-letters").schema(letters).names == ["row", "source_row", "error_message"]
    others = pa.schema([pa.field(name, pa.string()) for name in ("row", "source_row")])
    assert MaskedColumns(["row"], "t").schema(others).names == ["source_row"]

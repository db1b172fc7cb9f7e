"""A column of each Spark type that can pass, as SQL; the versions of Spark in which some of them began."""

from __future__ import annotations

POINT = "X'0101000000000000000000F03F0000000000000040'"
STRUCT = "named_struct('a', 1, 'b', 'x')"  # a and b may not be null, the struct may: as after an outer join
MOMENT = "timestamp'2013-07-04 12:34:56.123456'"

# Two values of each kind; a third row has null in every column.
VALUES = {
    "c_boolean": ("true", "false"),
    "c_tinyint": ("cast(-128 as tinyint)", "cast(127 as tinyint)"),
    "c_smallint": ("cast(-32768 as smallint)", "cast(32767 as smallint)"),
    "c_int": ("-2147483648", "2147483647"),
    "c_bigint": ("cast('-9223372036854775808' as bigint)", "9223372036854775807L"),
    "c_float": ("cast('NaN' as float)", "cast('-0.0' as float)"),
    "c_double": ("cast('-Infinity' as double)", "1.7976931348623157e308D"),
    "c_decimal": ("cast('-99999999999999999999.999999999999999999' as decimal(38,18))", "cast(0 as decimal(38,18))"),
    "c_small_decimal": ("9.99BD", "-0.01BD"),
    "c_string": ("''", "concat('grüße \\u0000 ', repeat('日本', 40000))"),
    "c_collated": ("'Ab' collate UTF8_LCASE", "'cD' collate UTF8_LCASE"),
    "c_unicode_ci": ("'Ab' collate UNICODE_CI", "'cD' collate UNICODE_CI"),
    "c_binary": ("X''", "X'00FF10'"),
    "c_date": ("date'0001-01-01'", "date'9999-12-31'"),
    "c_timestamp": ("timestamp'1900-01-01 00:00:00.000001'", MOMENT),
    "c_timestamp_ntz": ("timestamp_ntz'1582-10-04 00:00:00'", "timestamp_ntz'9999-12-31 23:59:59.999999'"),
    "c_day_time": ("interval '-2 03:04:05.123456' day to second", "interval '0 00:00:00' day to second"),
    "c_hours": ("interval '5' hour", "interval '-7' hour"),
    "c_time": ("time'00:00:00'", "time'23:59:59.999999'"),
    "c_time_seconds": ("cast('12:03:04' as time(0))", "cast('23:59:59' as time(0))"),
    "c_void": ("null", "null"),
    "c_variant": ("parse_json('{\"a\": [1, null, {}]}')", "parse_json('null')"),
    "c_geometry": (f"st_geomfromwkb({POINT})", f"st_geomfromwkb({POINT})"),
    "c_geography": (f"st_geogfromwkb({POINT})", f"st_geogfromwkb({POINT})"),
    "n_array": ("array(1, null, 3)", "cast(array() as array<int>)"),
    "n_arrays": ("array(array('a', null), null, array())", "array(array('b'))"),
    "n_binaries": ("array(X'00', null)", "array(X'')"),
    "n_decimals": ("array(1.50BD, null)", "array(-9.99BD)"),
    "n_moments": (f"array(named_struct('t', {MOMENT}, 'u', 1), null)", f"array(named_struct('t', {MOMENT}, 'u', 2))"),
    "n_struct": (STRUCT, STRUCT),
    "n_structs": (f"named_struct('x', {STRUCT}, 't', {MOMENT})", f"named_struct('x', {STRUCT}, 't', {MOMENT})"),
    "n_null_struct": (f"named_struct('x', if(id > 9, {STRUCT}, null))", f"named_struct('x', {STRUCT})"),
    "n_empty_struct": ("named_struct()", "named_struct()"),
    "n_map": ("map('a', 1, 'b', null)", "cast(map() as map<string, int>)"),
    "n_map_structs": (f"map(1, named_struct('t', {MOMENT}), 2, null)", f"map(3, named_struct('t', {MOMENT}))"),
    "n_map_arrays": ("map(date'2020-01-01', array(time'01:02:03'))", "map(date'2020-01-02', null)"),
    "n_ntz": ("array(timestamp_ntz'2020-01-01 00:00:00', null)", "array(timestamp_ntz'1969-12-31 23:59:59')"),
    "n_intervals": ("map('a', interval '5' day)", "map('a', null)"),
    "n_variants": ("array(parse_json('1'), null)", "array(parse_json('{}'))"),
    "n_variant": ("named_struct('v', parse_json('[]'))", "named_struct('v', cast(null as variant))"),
    "n_geometries": (f"array(st_geomfromwkb({POINT}))", f"array(st_geomfromwkb({POINT}), null)"),
    "n_void": ("array(null)", "array()"),
}

# The others are in 3.5 already.
SINCE = {
    (4, 0): ("c_collated", "c_unicode_ci", "c_variant", "n_variants", "n_variant"),
    (4, 1): ("c_time", "c_time_seconds", "c_geometry", "c_geography", "n_map_arrays", "n_geometries"),
}


def began(column: str) -> tuple[int, int]:
    """Return the version of Spark that knew a column's type first, of those that jobpipe works with."""
    return next((version for version, names in SINCE.items() if column in names), (3, 5))


def selected(columns: tuple[str, ...]) -> list[str]:
    """Return expressions over ``id`` of rows 0, 1 and 2: a row of nulls, then the two values of each column."""
    return [f"case id when 1 then {one} when 2 then {two} end as {name}" for name, (one, two) in _values(columns)]


def _values(columns: tuple[str, ...]) -> list[tuple[str, tuple[str, str]]]:
    return [(name, VALUES[name]) for name in columns]

# %% [markdown]
# # Follow a topic without Spark
#
# Run `make demo` in another terminal, then these cells in a notebook, or the whole file as a script:
#
#     JOBPIPE_CONFIG=.demo/jobpipe.yaml python examples/follow.py

# %%
import sys

import pyarrow as pa
import pyarrow.compute as pc

import jobpipe

# %% [markdown]
# A subscription has a name, unique for its topic, and is iterated. Each item is a `pyarrow.RecordBatch` with the
# publisher's schema. A batch counts as read when the next one is asked for; the same name goes on after it next time.

# %%
flights = jobpipe.subscribe("flights", name="notebook", starting="earliest")

# %% [markdown]
# Columns, not rows: pyarrow computes on a whole batch at once. This keeps the flights per carrier and their worst delay
# while they come in, and ends with the topic's end mark, or on Ctrl-C.

# %%
seen: pa.Table | None = None
try:
    with flights:
        for batch in flights:
            part = pa.table(batch.select(["carrier", "dep_delay"])).append_column(
                "flights", pa.repeat(1, batch.num_rows)
            )
            sums = (part if seen is None else pa.concat_tables([seen, part])).group_by("carrier")
            seen = sums.aggregate([("dep_delay", "max"), ("flights", "sum")]).rename_columns(
                ["carrier", "dep_delay", "flights"]
            )
            print(f"{pc.sum(seen['flights']).as_py():>9,} flights, {batch.num_rows:,} of them in the last batch")
except KeyboardInterrupt:  # the subscription is closed by now, with what was read
    sys.exit(130)

# %% [markdown]
# The result is an ordinary table: `seen.to_pandas()`, `seen.sort_by(...)`, write it as parquet, whatever comes next.

# %%
if seen is not None:
    for row in seen.sort_by([("flights", "descending")]).to_pylist():
        print(f"{row['carrier']}  {row['flights']:>7,} flights, worst delay {row['dep_delay']:>5} minutes")

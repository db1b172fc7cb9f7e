"""Ways to bring Arrow record batches from one process to another, without Spark.

Each is a module with two classes that :func:`~benchmarks.side_by_side.obey.obey` runs, each in a process of its own::

    class Server:  open(parts, gigabytes) -> told;  say(count, pause) -> [[began, ended], ...];  end()
    class Reader:  connect(told);  listen();  hear(count) -> [at, ...];
                   read(part, seconds) -> {bytes, began, ended};  end()

``say`` makes small batches, one after another; ``listen`` returns once the reader will know of the next one, ``hear``
tells when it knew of each. Times are seconds of the wall clock.
``read`` reads a part, record batch by record batch, again and again for so many seconds, or once.

    python -m benchmarks.side_by_side.transports MODULE Server|Reader FOLDER
"""

"""Records as a data source of Spark 4."""

import pyarrow as pa

from .needs import needed
from .scan import Split
from .store import EMPTY, checked_columns, connect, selected

# The types of Spark for those of Arrow that it does not have. Spark's times have microseconds.
TYPES = {pa.large_binary(): pa.binary(), pa.uint32(): pa.int64(), pa.timestamp("ns", "UTC"): pa.timestamp("us", "UTC")}
NAMES = {pa.utf8(): "string", pa.int64(): "bigint", pa.binary(): "binary", pa.timestamp("us", "UTC"): "timestamp",
         pa.map_(pa.utf8(), pa.binary()): "map<string, binary>"}
CONNECTS = ("address", "ca", "cert", "key", "token_file")
OPTIONS = (*CONNECTS, "timeout", "groups", "columns", "view", "split_bytes")


def register(spark, name="sheaf"):
    """Lets a session of Spark 4 read records: spark.read.format("sheaf").option("address", ...).load(). Options:

    address, ca, cert, key, token_file, timeout  as of sheafdb.connect; executors need these files, too
    groups, columns                              names, divided by commas; all, if they are left out
    view                                         the id of a view, which is read instead of the newest versions
    split_bytes                                  about how much a task reads; 256 MiB, if it is left out

    A task reads one part of the scan. A part ends ten minutes after its last use, unless it is one of a view: give a
    view for jobs that take longer or repeat tasks. Executors may be another caller than the driver, who may scan.
    """
    base = needed("pyspark.sql.datasource", "pyspark", "sheafdb.spark.register")

    class Source(base.DataSource):
        @classmethod
        def name(cls):
            return name

        def schema(self):
            fields = selected(EMPTY, wanted_of(self.options)["columns"]).schema
            return ", ".join(f"`{field.name}` {NAMES[spark_type(field.type)]}" for field in fields)

        def reader(self, schema):
            return Reader(wanted_of(self.options))

    class Reader(base.DataSourceReader):
        def __init__(self, wanted):
            self.wanted = wanted

        def partitions(self):
            wanted = self.wanted
            with store_of(wanted) as store:
                splits = store.splits(wanted["groups"], wanted["columns"], wanted["split_bytes"], wanted["view"],
                                      shared=True)
            return [base.InputPartition((s.ticket, s.addresses, s.group, s.records, s.bytes)) for s in splits]

        def read(self, partition):
            if partition is None:  # there is nothing to read
                return
            with store_of(self.wanted) as store:
                for batch in Split(store, *partition.value, self.wanted["columns"]).read():
                    yield pa.RecordBatch.from_arrays(
                        [column.cast(spark_type(column.type), safe=False) for column in batch.columns],
                        names=batch.schema.names)

    spark.dataSource.register(Source)


def spark_type(kind):
    return TYPES.get(kind, kind)


def wanted_of(options):
    """What the options of a read say. Spark does not tell capitals in their names apart."""
    given = {key.lower(): value for key, value in options.items()}
    unknown = sorted(set(given) - set(OPTIONS))
    if unknown:
        raise ValueError(f"there is no option {unknown[0]!r}: options are {', '.join(OPTIONS)}")
    wanted = {key: given.get(key) for key in OPTIONS}
    for key in ("groups", "columns"):
        if wanted[key] is not None:
            wanted[key] = [word.strip() for word in wanted[key].split(",") if word.strip()]
    wanted["columns"] = checked_columns(wanted["columns"])
    wanted["split_bytes"] = None if wanted["split_bytes"] is None else int(wanted["split_bytes"])
    return wanted


def store_of(wanted):
    facts = {key: wanted[key] for key in CONNECTS}
    if wanted["timeout"] is not None:
        facts["timeout"] = float(wanted["timeout"])
    return connect(**facts)

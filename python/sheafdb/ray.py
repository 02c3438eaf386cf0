"""Records as a data set of Ray."""

import pyarrow as pa

from .needs import needed
from .store import EMPTY, checked_columns, selected


def read(store, groups=None, columns=None, *, view=None, split_bytes=None, **options):
    """A ray.data.Dataset of the newest version of all records of these groups, or of all groups. A task reads one part
    of the scan, about split_bytes (256 MiB if it is None), and yields blocks of about 1 MiB, of which Ray makes larger
    ones.

    Each execution scans the store anew. A task that Ray repeats reads the same part again, if the part has not ended,
    which it does ten minutes after its last use: give a view, or its id, for work that takes longer. Workers connect by
    themselves, so they need the files with which the store was connected, but may be another caller who may scan.

    options  are those of ray.data.read_datasource, such as override_num_blocks and ray_remote_args
    """
    data = needed("ray.data", "ray[data]", "sheafdb.ray.read")
    block = needed("ray.data.block", "ray[data]", "sheafdb.ray.read")
    columns = checked_columns(columns)
    schema = selected(EMPTY, columns).schema

    class Sheaf(data.Datasource):
        def get_read_tasks(self, parallelism, per_task_row_limit=None, data_context=None):
            tasks = []
            for split in store.splits(groups, columns, split_bytes, view, shared=True):
                # The number of records is an estimate, which Ray would take for a count.
                facts = block.BlockMetadata(num_rows=None, size_bytes=split.bytes, exec_stats=None, input_files=None)
                tasks.append(data.ReadTask(task_of(split), facts, schema, per_task_row_limit=per_task_row_limit))
            return tasks

        def estimate_inmemory_data_size(self):
            return None

    return data.read_datasource(Sheaf(), **options)


def task_of(split):
    """What a worker does with a part."""
    def blocks():
        for batch in split.read():
            yield pa.Table.from_batches([batch])
    return blocks
